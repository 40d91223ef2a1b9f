//! The types that the functions of every system use.

/// Identifies a file or folder under any of its names. Two files that exist at the same time have
/// different identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// The device with the file system.
    pub device: u64,
    /// The number of the file on the device.
    pub number: u64,
}

/// The state of a file according to the system. Times are seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct FileState {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The identity of the file.
    pub id: FileId,
    /// The time of the last change of the content, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// The time of the last change of content, name, owner or mode. Programs cannot set it. On
    /// systems without this time, the time of creation.
    pub changed: (i64, i64),
}

/// Whether reads and writes go through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Reads and writes go through the page cache.
    Through,
    /// Reads and writes go past the page cache.
    Past,
}

/// How a file or map will be read. Only advice for the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// At scattered offsets: the system should not read ahead.
    Random,
    /// The whole file or map, in order.
    Sequential,
    /// The whole file or map, soon: the system may begin to read now.
    Soon,
}

/// The result of a request for a record lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLock {
    /// This process holds the lock.
    Ours,
    /// Another process holds the lock.
    Theirs,
    /// The file system has no locks.
    Missing,
}

/// The space on a file system.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Free space for this user's files.
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Number of further files that are possible; `None` if there is no limit.
    pub free_files: Option<u64>,
}
