//! The types that the functions of every system use.

/// The identity of a file or folder, under any name: no two that exist at the same time have the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device that holds it.
    pub device: u64,
    /// Its number there.
    pub number: u64,
}

/// What the system says of a file. Times are seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct FileState {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Its length.
    pub len_bytes: u64,
    /// What tells it from every other file.
    pub id: FileId,
    /// When its content changed last, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Of its name, owner or mode too, and no program can set it; where the system has no such
    /// time, that of its making.
    pub changed: (i64, i64),
}

/// Whether reads go through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Reads and writes go through the page cache.
    Through,
    /// Reads and writes go past the page cache.
    Past,
}

/// How something will be read. Advice only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Here and there: what was not asked for is not to be read.
    Random,
    /// From front to back, all of it.
    Sequential,
    /// Soon, all of it: the system may begin now.
    Soon,
}

/// What came of asking for a record lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLock {
    /// This process holds the lock.
    Ours,
    /// Another process holds the lock.
    Theirs,
    /// The file system has none.
    Missing,
}

/// Room on a file system.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// For this user's files.
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// How many more files fit; `None` where there is no limit.
    pub free_files: Option<u64>,
}
