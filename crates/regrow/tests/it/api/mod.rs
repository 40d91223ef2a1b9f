//! Calls on an opened checkpoint: what they read, compare, count and report.
//!
//! | file | rule |
//! |---|---|
//! | `reading` | a load reads only the requested bytes, and checks them |
//! | `regions` | regions of many leaves in one call, each byte read once |
//! | `diff` | two checkpoints of any layouts: all differences, and no others |
//! | `statistics` | statistics of all leaves, equal in every layout |
//! | `monitor` | progress, and cancelling at any moment without traces |
//! | `page_cache` | `keep_cached` leaves the files of a save in the page cache |
//! | `sharding` | shardings as Orbax wrote them and as JAX computes them |
//! | `sharding_words` | shardings in words, of leaves and in the overview |
//! | `resharding` | plans of new shardings: every process reads its regions once |
//! | `examples` | the example of own Rust types runs |

mod diff;
mod examples;
mod monitor;
mod page_cache;
mod reading;
mod regions;
mod resharding;
mod sharding;
mod sharding_words;
mod statistics;
