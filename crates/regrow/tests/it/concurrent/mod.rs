//! Several threads and processes at once: on one checkpoint, or as ranks of one job.
//!
//! | file | rule |
//! |---|---|
//! | `two_at_once` | two works on one target end as if one ran after the other (`REGROW_LONG=1`) |
//! | `readers_and_a_writer` | a reader beside a writer gets one whole checkpoint or an error |
//! | `many_threads` | 64 threads read the same bits from one opened checkpoint |
//! | `nothing_held` | no file, map or thread is left after thousands of opens and failures |
//! | `coordination` | ranks exchange values and errors; missing ranks are named in time |
//! | `coordination_services` | the services that carry the values: folders, buckets, others |
//! | `shards` | arrays in shards of one or several processes load as saved |
//! | `many_writers` | one process merges the files of all writers, and no file of a dead one |
//! | `shares` | a conversion by several workers equals a conversion by one |

mod coordination;
mod coordination_services;
mod many_threads;
mod many_writers;
#[cfg(target_os = "linux")]
mod nothing_held;
mod readers_and_a_writer;
mod shards;
mod shares;
mod two_at_once;
