//! Writers that are killed, lose power, fill the disk or lose the network: a reader finds the old
//! checkpoint or the new one, whole.
//!
//! | file | rule |
//! |---|---|
//! | `killed_saves` | a killed save leaves the old checkpoint, the new one or none |
//! | `killed_pair_saves` | the same for data and manifest: never a mixed pair |
//! | `killed_trak` | a killed TRAK writer leaves no marked row without its data |
//! | `faults` | the same for a kill before each system call, and for a failure of each call |
//! | `power_cuts` | the same for every state of the disk after a power cut (`REGROW_LONG=1`) |
//! | `disk_images` | the same on real file systems that are cloned during a save (root only) |
//! | `bucket_cuts` | the same for every state of a bucket after a kill (`REGROW_LONG=1`) |
//! | `bucket_faults` | random errors of a bucket lose no checkpoint and give no wrong byte |
//! | `left_behind` | files and objects that earlier versions left behind are opened and cleaned up |
//! | `full_disk` | a full or read-only disk is an error of its own kind and changes nothing |
//! | `scenes` | shared: what a child does, and the rules that hold after any cut |

#[cfg(feature = "cloud")]
mod bucket_cuts;
#[cfg(feature = "cloud")]
mod bucket_faults;
#[cfg(target_os = "linux")]
mod disk_images;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod faults;
mod full_disk;
mod killed_pair_saves;
mod killed_saves;
mod killed_trak;
#[cfg(all(feature = "cloud", target_os = "linux", target_arch = "x86_64"))]
mod left_behind;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod power_cuts;
pub mod scenes;
