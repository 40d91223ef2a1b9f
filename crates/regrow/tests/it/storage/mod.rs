//! Storages and targets: local disks, memory, buckets, web servers; which paths a save accepts.
//!
//! | file | rule |
//! |---|---|
//! | `storages` | every layout loads as saved from every storage, with few requests |
//! | `places` | a target that a save accepts opens again; a refusal comes before any write |
//! | `open_and_replace` | an overwrite replaces checkpoints, never files of users |
//! | `bucket_overwrites` | the same in buckets, and the end of an interrupted overwrite |
//! | `remove` | removal deletes one checkpoint, whole, and nothing else |
//! | `copy` | a copy is complete or the target unchanged; an interrupted copy resumes |
//! | `cache` | the read-through cache gives the bytes of the bucket, within its bound |
//! | `http` | checkpoints on web servers, read by ranges, of one version |

#[cfg(feature = "cloud")]
mod bucket_overwrites;
#[cfg(feature = "cloud")]
mod cache;
mod copy;
#[cfg(feature = "cloud")]
mod http;
mod open_and_replace;
mod places;
mod remove;
mod storages;
