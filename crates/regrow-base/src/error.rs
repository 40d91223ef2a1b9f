//! The error type of the engine: what failed, where, what was expected and found, and what to do.
//!
//! Every layer adds its part: the cursor adds the offset, the leaf loop the key path, and the
//! opener the file. Kind and place stay data until the error is printed:
//!
//! ```text
//! leaf params/dense/kernel is damaged: chunk c/0/3 fails its crc32c
//!   in step_400/params.dense.kernel/c/0/3, at byte 65536
//!   expected 00000000, found 1b2e9a40
//!   help: copy the file again, or restore the other leaves
//! ```
//!
//! Printed text is [printable](crate::text): names from files cannot control a terminal.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::key::{Key, KeyPath};
use crate::text::{brief, printable, printable_lines};

/// The result of functions of regrow.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. Kinds are stable, so a program may depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The requested path, leaf, step or item does not exist.
    NotFound,
    /// The path exists, but has no known layout.
    NotACheckpoint,
    /// A checkpoint that was never committed: a save in progress, or one that was killed.
    Uncommitted,
    /// Stored bytes do not match their checksum or record, or break the rules of their layout.
    Corrupt,
    /// The checkpoint has no signature by a trusted key, or its signature is not valid.
    Untrusted,
    /// Valid data of a version, codec or dtype that this build cannot read or write.
    Unsupported,
    /// The template and the checkpoint differ; the message lists the first differences.
    Mismatch,
    /// The target already exists and `overwrite` is not set.
    AlreadyExists,
    /// Another process is changing this checkpoint. The error names the process.
    Busy,
    /// Two leaves would get the same stored name, or the layout cannot represent a key.
    NameCollision,
    /// An argument of the caller is not valid: a bad glob, a slice outside the shape, an unknown
    /// option.
    InvalidArgument,
    /// A size exceeds a limit of regrow. The limits keep any input from using unbounded memory.
    Limit,
    /// The system refused a read or write: a read-only file system, missing permission.
    PermissionDenied,
    /// The file system is full, or a quota or a limit on the size of files is reached.
    StorageFull,
    /// The complete new checkpoint has the path, but the disk did not confirm the sync: a power cut
    /// may destroy it. After every other error of a save, the path has its old content.
    NotDurable,
    /// Another checkpoint took the path during the read.
    Replaced,
    /// The caller cancelled the call through a [`Monitor`](crate::Monitor).
    Cancelled,
    /// A leaf was changed while it was being saved in the background. Only some saves check this.
    SourceChanged,
    /// Other processes of the job did not arrive in time, or have ended.
    TimedOut,
    /// Any other failure of the operating system.
    Io,
    /// A bug of regrow: a caught panic.
    Internal,
}

impl ErrorKind {
    /// Whether this kind means that stored data is lost, damaged or unusable for this build. If
    /// not, the call was wrong or is not permitted now. A salvage continues without such data.
    pub fn is_damage(self) -> bool {
        self.is_of_content() || matches!(self, Self::NotFound | Self::Io)
    }

    /// Whether this kind means that the bytes have changed, or that this build does not know their
    /// form. The other kinds of damage mean that the bytes could not be read.
    pub fn is_of_content(self) -> bool {
        matches!(self, Self::Corrupt | Self::Limit | Self::Unsupported)
    }

    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::NotFound,
        Self::NotACheckpoint,
        Self::Uncommitted,
        Self::Corrupt,
        Self::Untrusted,
        Self::Unsupported,
        Self::Mismatch,
        Self::AlreadyExists,
        Self::Busy,
        Self::NameCollision,
        Self::InvalidArgument,
        Self::Limit,
        Self::PermissionDenied,
        Self::StorageFull,
        Self::NotDurable,
        Self::Replaced,
        Self::Cancelled,
        Self::SourceChanged,
        Self::TimedOut,
        Self::Io,
        Self::Internal,
    ];

    /// The kind with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A lower-case name for JSON and for exceptions, for example `not_a_checkpoint`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotACheckpoint => "not_a_checkpoint",
            Self::Uncommitted => "uncommitted",
            Self::Corrupt => "corrupt",
            Self::Untrusted => "untrusted",
            Self::Unsupported => "unsupported",
            Self::Mismatch => "mismatch",
            Self::AlreadyExists => "already_exists",
            Self::Busy => "busy",
            Self::NameCollision => "name_collision",
            Self::InvalidArgument => "invalid_argument",
            Self::Limit => "limit",
            Self::PermissionDenied => "permission_denied",
            Self::StorageFull => "storage_full",
            Self::NotDurable => "not_durable",
            Self::Replaced => "replaced",
            Self::Cancelled => "cancelled",
            Self::SourceChanged => "source_changed",
            Self::TimedOut => "timed_out",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }
}

/// The place of an error, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, or the key in a kvstore, with the faulty bytes.
    pub file: Option<PathBuf>,
    /// The leaf that was being read or written.
    pub leaf: Option<KeyPath>,
    /// The offset in `file`, in bytes.
    pub offset_bytes: Option<u64>,
}

/// An error: its kind, text, place and help. Its size is one pointer.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: String,
    place: Place,
    expected_found: Option<(String, String)>,
    help: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that says `what`, in lower case and without a full stop.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            what: what.into(),
            place: Place::default(),
            expected_found: None,
            help: None,
            source: None,
        }))
    }

    /// The error for stored bytes that break the rules of their layout.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, what)
    }

    /// The error for valid data that this build does not support. `what` includes the version,
    /// codec or dtype.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    /// The error for an argument that is not valid.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, what)
    }

    /// The error for a read during which another checkpoint or file took the path. Reads start
    /// again after this error.
    pub fn replaced(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Replaced, what)
    }

    /// The error for a failure of the operating system. `what` is a verb phrase, such as "cannot
    /// read", and `file` is its object.
    ///
    /// The kind follows from the system's error: a full disk is `StorageFull`, a missing permission
    /// is `PermissionDenied`.
    pub fn io(what: &str, file: impl Into<PathBuf>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Os;
        let (kind, help) = match source.kind() {
            Os::NotFound => (ErrorKind::NotFound, None),
            Os::PermissionDenied => {
                (ErrorKind::PermissionDenied, Some("check the owner and mode of the file and its folder"))
            }
            Os::ReadOnlyFilesystem => (
                ErrorKind::PermissionDenied,
                Some("the file system is mounted read-only; choose another folder"),
            ),
            Os::StorageFull | Os::QuotaExceeded => (
                ErrorKind::StorageFull,
                Some("free some space or choose another disk; existing data did not change"),
            ),
            Os::FileTooLarge => (
                ErrorKind::StorageFull,
                Some(
                    "the file would be larger than this process (`ulimit -f`) or the file system allows; \
                     existing data did not change",
                ),
            ),
            _ => (ErrorKind::Io, None),
        };
        let error = Self::new(kind, format!("{what}: {source}")).in_file(file).caused_by(source);
        match help {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The place of the failure.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The text of the first line, without place and help.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The expected and the found value, if the error comes from a comparison.
    pub fn expected_found(&self) -> Option<(&str, &str)> {
        self.0.expected_found.as_ref().map(|(expected, found)| (expected.as_str(), found.as_str()))
    }

    /// What the user can do about the error.
    pub fn help_text(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Adds the file, unless the error already has a file.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<PathBuf>) -> Self {
        if self.0.place.file.is_none() {
            self.0.place.file = Some(file.into());
        }
        self
    }

    /// Adds the leaf, unless the error already has a leaf.
    #[must_use]
    pub fn at_leaf(mut self, leaf: &KeyPath) -> Self {
        if self.0.place.leaf.is_none() {
            self.0.place.leaf = Some(leaf.clone());
        }
        self
    }

    /// Adds a key in front of the leaf's path, for an error in a tree that is a part of another
    /// tree. Changes nothing if the error has no leaf.
    #[must_use]
    pub fn below(mut self, key: &Key) -> Self {
        if let Some(leaf) = &mut self.0.place.leaf {
            let mut whole = KeyPath::root();
            whole.push(key.clone());
            leaf.keys().iter().for_each(|key| whole.push(key.clone()));
            *leaf = whole;
        }
        self
    }

    /// Adds the offset, unless the error already has an offset.
    #[must_use]
    pub fn at_byte(mut self, offset_bytes: u64) -> Self {
        if self.0.place.offset_bytes.is_none() {
            self.0.place.offset_bytes = Some(offset_bytes);
        }
        self
    }

    /// Adds `base_bytes` to the offset: converts an offset in a part of a file to an offset in the
    /// file.
    #[must_use]
    pub fn shift(mut self, base_bytes: u64) -> Self {
        if let Some(offset) = &mut self.0.place.offset_bytes {
            *offset = offset.saturating_add(base_bytes);
        }
        self
    }

    /// Adds the expected and the found value.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        self.0.expected_found = Some((expected.to_string(), found.to_string()));
        self
    }

    /// Adds the help text.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Adds the cause of this error.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }
}

impl Error {
    /// A copy of the error, with the same source.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let Inner { kind, what, place, expected_found, help, source } = &*self.0;
        let (place, expected_found, help) = (place.clone(), expected_found.clone(), help.clone());
        let (what, source) = (what.clone(), source.clone());
        Self(Box::new(Inner { kind: *kind, what, place, expected_found, help, source }))
    }

    /// The same error without its leaf, for a caller that knows the leaf by another path.
    #[must_use]
    pub fn of_no_leaf(mut self) -> Self {
        self.0.place.leaf = None;
        self
    }

    /// The same error with another kind.
    #[must_use]
    pub fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The same error with another file.
    #[must_use]
    pub fn of_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.0.place.file = Some(file.into());
        self
    }

    /// The same error with another text.
    #[must_use]
    pub fn reworded(mut self, what: String) -> Self {
        self.0.what = what;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let file = inner.place.file.as_ref().map(|file| file.to_string_lossy());
        let file = file.as_deref().map(printable);
        let what = printable_lines(&inner.what);
        match inner.place.leaf.as_ref().map(ToString::to_string) {
            // For damage, users first want to know which leaf is lost.
            Some(leaf) if inner.kind == ErrorKind::Corrupt => {
                write!(f, "leaf {} is damaged: {what}", brief(&leaf))?;
            }
            Some(leaf) => write!(f, "{what}\n  leaf {}", brief(&leaf))?,
            None => f.write_str(&what)?,
        }
        match (file, inner.place.offset_bytes) {
            (Some(file), Some(offset)) => write!(f, "\n  in {file}, at byte {offset}")?,
            (Some(file), None) => write!(f, "\n  in {file}")?,
            (None, Some(offset)) => write!(f, "\n  at byte {offset}")?,
            (None, None) => {}
        }
        if let Some((expected, found)) = &inner.expected_found {
            write!(f, "\n  expected {}, found {}", printable_lines(expected), printable_lines(found))?;
        }
        if let Some(help) = &inner.help {
            write!(f, "\n  help: {}", printable_lines(help))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.0.kind.name())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Adds a place to the error in a `Result`, for use with `?`.
pub trait ResultExt<T> {
    /// Applies [`Error::in_file`] to the error.
    fn in_file(self, file: impl Into<PathBuf>) -> Result<T>;
    /// Applies [`Error::at_leaf`] to the error.
    fn at_leaf(self, leaf: &KeyPath) -> Result<T>;
    /// Applies [`Error::shift`] to the error.
    fn shift(self, base_bytes: u64) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn in_file(self, file: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|error| error.in_file(file))
    }

    fn at_leaf(self, leaf: &KeyPath) -> Result<T> {
        self.map_err(|error| error.at_leaf(leaf))
    }

    fn shift(self, base_bytes: u64) -> Result<T> {
        self.map_err(|error| error.shift(base_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn prints_what_where_and_the_way_out() {
        let leaf = KeyPath::from_iter([Key::dict("params"), Key::Index(0)]);
        let error = Error::corrupt("chunk c/0/3 fails its crc32c")
            .at_byte(6)
            .shift(10)
            .in_file("step/d/x")
            .at_leaf(&leaf)
            .in_file("elsewhere")
            .expected("00", "ff")
            .help("copy it again");
        assert_eq!(
            error.to_string(),
            "leaf params/0 is damaged: chunk c/0/3 fails its crc32c\n  in step/d/x, at byte 16\n  expected 00, found ff\n  help: copy it again"
        );
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.place().offset_bytes, Some(16));
        let error = Error::invalid("no such axis").at_leaf(&leaf);
        assert_eq!(error.to_string(), "no such axis\n  leaf params/0");
    }

    #[test]
    fn a_full_disk_has_its_own_kind() {
        let error = Error::io("cannot write", "x", std::io::ErrorKind::StorageFull.into());
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.help_text().is_some());
    }
}
