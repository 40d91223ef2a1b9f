//! Folders of `torch.distributed.checkpoint`, read only. Tensors are in pieces: each process has
//! written the pieces that it held.
//!
//! ```text
//! step/.metadata        a pickle: names, shapes, pieces, and where each piece lies
//! step/__0_0.distcp     | zip of torch.save: a piece | zip of torch.save: a piece or an object | ...     process 0
//! step/__1_0.distcp     ...
//! ```
//!
//! To read a region of an array, regrow reads the pieces that overlap it. A tensor in one piece is
//! a slice of the map. Other values (numbers, texts, lists) are separate objects, and the tree has
//! the pytree of each object.

use regrow_storage::Found;
use regrow_storage::location::Location;

#[cfg(feature = "torch")]
mod metadata;
#[cfg(feature = "torch")]
mod pieces;
#[cfg(feature = "torch")]
mod reader;

#[cfg(feature = "torch")]
pub(super) use reader::DcpReader;

/// The index of a folder.
pub const INDEX: &str = ".metadata";

#[cfg(feature = "torch")]
const SUFFIX: &str = ".distcp";

/// The first byte of a pickle.
const PROTO: u8 = 0x80;

/// Whether the folder `at` a location is a checkpoint of `torch.distributed.checkpoint`.
pub(super) fn is_one(at: &Location) -> bool {
    let index = at.join(INDEX);
    matches!(index.look(), Ok(Some(Found::File { .. })))
        && index.read_beginning(1).ok().flatten().is_some_and(|first| first == [PROTO])
}
