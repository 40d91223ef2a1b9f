//! Damaged files: each is an error that names the place, and repair restores what it can prove.
//!
//! | file | rule |
//! |---|---|
//! | `conformance` | any content of a file gives an error or the right answer |
//! | `flipped_bits` | every flipped bit of a file with checksums is an error or has no effect |
//! | `remains` | any subset of the files of a checkpoint loads right or is refused |
//! | `views` | `verify` finds files that are sound and contradict each other |
//! | `salvage` | intact leaves come back, and lost leaves are listed |
//! | `repair` | parity restores damage up to its strength, and makes no worse damage beyond it |
//! | `parity_of_saves` | a save computes parity from memory, and it fits the files |
//! | `bucket_repair` | the same in buckets; a network error is no damage |
//! | `recovery` | repair without parity, from files that checksums prove |

#[cfg(feature = "cloud")]
mod bucket_repair;
mod conformance;
mod flipped_bits;
mod parity_of_saves;
mod recovery;
mod remains;
mod repair;
mod salvage;
mod views;
