//! Writing Orbax checkpoints.
mod chunking;
pub(crate) mod documents;
pub(crate) mod names;
pub(crate) mod refusals;
