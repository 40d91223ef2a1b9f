//! Seals and signatures: no change to sealed or signed bytes goes unseen. Parity is in `damage`.
//!
//! | file | rule |
//! |---|---|
//! | `seals` | a seal finds every change to every file, and changes none |
//! | `bucket_seals` | a side file that a bucket does not return is an error, not absent |
//! | `signatures` | a checkpoint that opens with trusted keys has the signed bytes |

#[cfg(feature = "cloud")]
mod bucket_seals;
mod seals;
mod signatures;
