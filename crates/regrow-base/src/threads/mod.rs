//! Threads that live as long as one call: [`pool`] for many items under one budget, [`Task`] for
//! one piece of work.

pub mod pool;
mod task;

pub use pool::{for_each_parallel, map_ordered, thread_count};
pub use task::Task;
