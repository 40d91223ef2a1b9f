//! Layouts: each saved tree loads as it was, and files of the original tools open.
//!
//! | file | rule |
//! |---|---|
//! | `default_layout` | the default layout from save to load, with its errors |
//! | `chunks` | chunked and compressed arrays load as saved |
//! | `base` | a save with a base has the tree's bytes, and the base does not change |
//! | `items` | several items are committed together or not at all |
//! | `convert_matrix` | any conversion keeps every bit that it does not list as lost |
//! | `convert_checks` | a dry run finds the errors of the run |
//! | `orbax_fixtures` | every golden Orbax checkpoint, leaf by leaf, and damaged ones |
//! | `dialects` | checkpoints that other programs made with the same tools |
//! | `archives` | every layout is read inside tar and zip |
//! | `toy` | a layout of another crate is saved, read and converted |

mod archives;
mod base;
mod chunks;
mod convert_checks;
mod convert_matrix;
mod default_layout;
mod dialects;
mod items;
mod orbax_fixtures;
mod toy;
