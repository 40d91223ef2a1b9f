//! Functions of an operating system beyond `std`. Only this module knows which system it is.
//!
//! | module | holds | is used on |
//! |---|---|---|
//! | `linux` | Linux' own calls: direct I/O, `fallocate`, `renameat2`, `syncfs`, `openat`, `mincore`, pages made at once | Linux |
//! | `portable` | the same functions without those calls | every other system; Linux too, with the feature `portable` |
//! | `unix` | common to these systems: modes, owners, record locks, `pread`, `madvise` | Linux, macOS, BSD |
//! | `windows` | the same functions for Windows | Windows |
//! | `kinds` | the types that all these modules use | everywhere |
//! | `supported` | refuses to build for machines that regrow does not support | everywhere |
//!
//! `linux` and `portable` have the same names, and so do `unix` and `windows`: callers use a name
//! of this module and do not depend on the system. A table in `docs/limits.md` lists the effects of
//! missing calls.
//!
//! The feature `portable` exists so that `make test-portable` tests the portable functions on
//! Linux. For users the feature only makes the engine slower.

mod kinds;
mod supported;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod portable;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

pub use kinds::{Caching, FileState, Pattern, RecordLock};

#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub use linux::*;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub use portable::*;
#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;
