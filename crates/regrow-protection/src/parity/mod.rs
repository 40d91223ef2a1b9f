//! Parity: two side files from which damaged and lost files of a checkpoint can be restored, for
//! any layout.
//!
//! The files of a checkpoint, one after another, are one run of bytes, divided into blocks. Each
//! block belongs to a stripe, and each stripe has parity blocks. Any parity block can replace any
//! lost block of its stripe (Reed-Solomon, erasures found by checksum). The blocks of one stripe
//! lie as far apart as possible, so that damage in one place, or a missing file, is spread over all
//! stripes:
//!
//! ```text
//! run of bytes   |0|1|2|3|4|5|6|7|8|9|10|11|     twelve blocks, three stripes of four blocks
//! stripe 0        x     x     x     x            blocks 0, 3, 6 and 9
//! parity         blocks of stripe 0, then of stripe 1, then of stripe 2
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `ratio` | the ratio of parity to data |
//! | `geometry` | the position and the stripe of each block |
//! | `document` | the index with the checksum of each block: `regrow.parity.json` |
//! | `code` | makes parity blocks, and restores lost blocks |

#[cfg_attr(not(feature = "protection"), path = "code_absent.rs")]
mod code;
mod document;
mod geometry;
mod ratio;

use crate::seal::Place;
use regrow_storage::location::Location;
use regrow_storage::side_files::{PARITY as NAMES, PARITY_BLOCKS as BLOCKS_NAMES};

pub use code::{Encoder, restore};
pub use document::{CLOSING_LEN_BYTES, ParityDocument, closing, index_len_bytes};
pub use geometry::Geometry;
pub use ratio::ParityRatio;

/// The index of a folder's parity.
pub const FILE_NAME: &str = NAMES.in_folder;

/// The parity blocks of a folder, and the index once more.
pub const BLOCKS_FILE_NAME: &str = BLOCKS_NAMES.in_folder;

/// The location of a checkpoint's parity.
#[derive(Debug, Clone)]
pub struct ParityPlace {
    /// The folder, the index, and the prefix of its names.
    pub place: Place,
    /// The file with the blocks.
    pub blocks: Location,
}

impl ParityPlace {
    /// The location for the checkpoint at `at`: in its folder, or beside a single file.
    pub fn of(at: &Location) -> Self {
        // One look for both: a save may make the folder at any moment.
        let place = Place::named(at, NAMES);
        Self { blocks: place.other(BLOCKS_NAMES), place }
    }
}
