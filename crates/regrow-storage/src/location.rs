//! The location of a checkpoint: a storage, and a path in it.
//!
//! Opens, saves, loads, verifications and conversions make a [`Location`] of a path or URL, and
//! access files only through it. This module parses paths and URLs. Each kind of storage names the
//! schemes of its URLs.
//!
//! | given | is |
//! |---|---|
//! | `/data/x`, `x`, `./gs:/bucket/x`, `run:/x`, `a:b` | a path of the local file system |
//! | `~/x` | `x` in the home folder of the user; `./~/x` is a folder called `~` |
//! | `file:///data/x` | the path `/data/x` of the local file system |
//! | `s3://bucket/x`, any `scheme://` | a URL of a storage; refused if this build has no storage for the scheme |
//! | `https://host/x`, `http://host/x` | a URL of a web server; `%` escapes are decoded |
//! | `/data/x.tar/y`, where `x.tar` is an archive | a path of the local file system; `open` reads `y` in the archive |
//! | `gs:/bucket/x`, with a known scheme | a URL that lost a slash in `pathlib` or `normpath`: refused |

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use crate::StorageOptions;
use crate::bytes::glance::Language;
#[cfg(feature = "cloud")]
use crate::cache::Cache;
use crate::desktop::is_desktop_entry;
use crate::error::{Error, Result};
use crate::store::Store;
use crate::threads::for_each_parallel;
use crate::{Capabilities, Document, Entry, EntryKind, Found, Identity, ReadOnly, Reading, Storage, Url};

/// Known schemes. A path such as `gs:/bucket/x`, with a single slash, is recognized as such a URL,
/// too.
const SCHEMES: [&str; 26] = [
    "abfs", "abfss", "adl", "az", "azure", "dbfs", "file", "ftp", "gcs", "gs", "hdfs", "hf", "http", "https",
    "memory", "oci", "oss", "r2", "s3", "s3a", "s3n", "sftp", "ssh", "wasb", "wasbs", "webdav",
];

/// Number of names that are looked for at the same time.
const LOOKS_AT_ONCE_MAX: usize = 16;

/// The location at which a checkpoint is or will be. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Location {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    /// Whether a missing marker is ignored. Such a location is never written to.
    ignores_marker: bool,
}

/// Types that can be converted to a [`Location`]: paths, URLs, locations.
pub trait ToLocation {
    /// The location.
    ///
    /// # Errors
    /// `Unsupported` for a URL without a storage in this build.
    fn to_location(&self) -> Result<Location>;
}

impl<P: AsRef<Path> + ?Sized> ToLocation for P {
    fn to_location(&self) -> Result<Location> {
        Location::parse(self.as_ref())
    }
}

impl ToLocation for Location {
    fn to_location(&self) -> Result<Location> {
        Ok(self.clone())
    }
}

impl ToLocation for &Location {
    fn to_location(&self) -> Result<Location> {
        Ok((*self).clone())
    }
}

impl Location {
    /// The location for a path or URL.
    ///
    /// # Errors
    /// `Unsupported` for a URL without a storage in this build.
    pub fn parse(path: &Path) -> Result<Self> {
        Self::with_options(path, &StorageOptions::default())
    }

    /// As [`parse`](Self::parse), with options for the storage.
    ///
    /// # Errors
    /// The same as for [`parse`](Self::parse); `InvalidArgument` for options that the storage does
    /// not know.
    pub fn with_options(path: &Path, options: &StorageOptions) -> Result<Self> {
        let Some((scheme, rest)) = scheme_of(path) else {
            return match options.is_empty() {
                true => Ok(Self::local(expand_home(path)?)),
                false => Err(Error::invalid("paths of the local disk have no storage options").in_file(path)),
            };
        };
        let text = path.to_string_lossy();
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(Error::unsupported(format!("a URL with the scheme {scheme}:// has two slashes"))
                .in_file(path)
                .help(format!("{scheme}:/{rest}, or for a local folder of this name ./{scheme}:/...")));
        };
        Url { text: &text, scheme: &scheme, rest }.locate(options)
    }

    /// The same location, read through a cache on a local disk: bytes that were read before are not
    /// fetched again. Local disks and memory are read directly, and writes go only to the storage.
    ///
    /// The existence and version of a file are always requested from the storage. `verify` checks
    /// the bytes from the cache. To verify the storage itself, use the location without a cache.
    #[cfg(feature = "cloud")]
    #[must_use]
    pub fn cached(&self, cache: &Cache) -> Self {
        let cached = self.capabilities().cacheable.and_then(|storage| storage.cached(cache));
        cached.map_or_else(|| self.clone(), |storage| self.through(storage))
    }

    /// A path in a storage.
    pub fn new(storage: Arc<dyn Storage>, path: impl Into<PathBuf>) -> Self {
        Self { storage, path: path.into(), ignores_marker: false }
    }

    fn at(&self, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), storage: Arc::clone(&self.storage), ..*self }
    }

    /// The same path in another storage, which wraps the storage of this location.
    #[must_use]
    pub fn through(&self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, path: self.path.clone(), ..*self }
    }

    /// The same location, but readers treat a checkpoint as complete even without its marker. So a
    /// repair finds other damage before it restores a lost marker.
    #[must_use]
    pub fn without_marker(&self) -> Self {
        Self { ignores_marker: true, ..self.clone() }
    }

    /// The abilities of the storage, for this location.
    pub(crate) fn capabilities(&self) -> Capabilities<'_> {
        let capabilities = self.storage.capabilities();
        match self.ignores_marker {
            false => capabilities,
            true => {
                let what = "a checkpoint that is read without its marker cannot be written";
                let writes = Err(ReadOnly { what, help: None });
                Capabilities { commits_by_marker: false, writes, ..capabilities }
            }
        }
    }

    /// The storage.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The path in the storage.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path or URL as messages show it.
    pub fn describe(&self) -> PathBuf {
        self.storage.describe(&self.path)
    }

    /// The last name of the path; empty if it has none.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The last name of the path as text. Bytes that are not UTF-8 are replaced.
    pub fn name_text(&self) -> String {
        self.name().to_string_lossy().into_owned()
    }

    /// The text after the last dot of the name, in lower case; `None` if the name has no dot, or is
    /// not UTF-8.
    pub fn suffix(&self) -> Option<String> {
        suffix_of(self.name())
    }

    /// The location `name` below this one.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        self.at(self.path.join(name))
    }

    /// The path of this location relative to `folder`, or the whole path if it is not below
    /// `folder`.
    pub fn below(&self, folder: &Self) -> &Path {
        self.path.strip_prefix(&folder.path).unwrap_or(&self.path)
    }

    /// The folder that contains this location. For a bare name, the working folder.
    #[must_use]
    pub fn parent(&self) -> Self {
        self.at(self.path.parent().unwrap_or(Path::new("")))
    }

    /// The folders that contain this location, the nearest first.
    pub fn folders_above(&self) -> impl Iterator<Item = Self> + '_ {
        let above = |path: &PathBuf| path.parent().map(Path::to_owned);
        std::iter::successors(above(&self.absolute().path), above).map(|folder| self.at(folder))
    }

    /// The location of another name in the same folder.
    #[must_use]
    pub fn with_name(&self, name: impl AsRef<OsStr>) -> Self {
        self.at(self.path.with_file_name(name))
    }

    /// The location whose name is this name with `suffix` appended.
    #[must_use]
    pub fn with_suffix(&self, suffix: impl AsRef<OsStr>) -> Self {
        let mut path = OsString::from(&self.path);
        path.push(suffix);
        self.at(path)
    }

    /// Whether both are the same path of the same storage. Links are not followed.
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.describe() == other.describe()
    }

    /// Whether both lead to the same file or folder. On a disk, links are followed and the file
    /// must exist.
    pub fn leads_to(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.canonical(), other.canonical());
        mine.is_some() && mine == theirs
    }

    /// A name for the object here that no other object of any storage has; `None` if the path, or
    /// the archive that it is in, does not exist on the disk.
    fn canonical(&self) -> Option<PathBuf> {
        if let Some(path) = self.on_disk() {
            return path.canonicalize().ok();
        }
        let Some(archive) = self.capabilities().archive else { return Some(self.describe()) };
        let file = archive.file().canonical()?;
        Some(if self.path.as_os_str().is_empty() { file } else { file.join(&self.path) })
    }

    /// The kind of the entry here, with links followed; `None` if nothing is here.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn look(&self) -> Result<Option<Found>> {
        self.storage.look(&self.path)
    }

    /// Whether a file or object is here.
    pub fn is_file(&self) -> bool {
        self.seen().is_some_and(|found| found.is_file())
    }

    /// Whether a folder is here.
    pub fn is_folder(&self) -> bool {
        matches!(self.seen(), Some(Found::Folder))
    }

    /// Whether anything is here.
    pub fn exists(&self) -> bool {
        self.seen().is_some()
    }

    /// The kind of the entry here, or `None` if it cannot be read. On a disk, a failed look is
    /// repeated: a wrong answer would put a seal in the wrong place, or miss it. If the failure
    /// lasts, opening the location reports it.
    fn seen(&self) -> Option<Found> {
        match self.look() {
            Err(_) if self.on_disk().is_some() => self.look().ok().flatten(),
            found => found.ok().flatten(),
        }
    }

    /// The names in the folder, in no order, without the files of desktop programs.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = self.storage.entries(&self.path)?;
        entries.retain(|entry| !is_desktop_entry(entry));
        Ok(entries)
    }

    /// Whether the storage can list folders.
    pub fn has_listings(&self) -> bool {
        self.capabilities().has_listings
    }

    /// The entries of the folder with one of these names, for storages that cannot list folders.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn those_there(&self, names: &[&str]) -> Result<Vec<Entry>> {
        let found = Mutex::new(Vec::new());
        let look = |&name: &&str| {
            let kind = match self.join(name).look()? {
                Some(Found::File { .. }) => EntryKind::File,
                Some(Found::Folder) => EntryKind::Folder,
                Some(Found::Other(_)) => EntryKind::Other,
                None => return Ok(()),
            };
            let entry = Entry { name: name.into(), found: kind, is_link: false };
            found.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
            Ok(())
        };
        for_each_parallel(names.len().min(LOOKS_AT_ONCE_MAX), names, u64::MAX, |_| 0, look)?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The keys below the folder. The path of the folder is looked up at each access.
    pub fn store(&self) -> Arc<dyn Store> {
        self.storage.store(&self.path)
    }

    /// The keys below the folder that is here now. They stay readable when another folder takes the
    /// path.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder.
    pub fn opened(&self) -> Result<Arc<dyn Store>> {
        self.storage.opened(&self.path)
    }

    /// A whole document; `None` if no value is here. Messages call it `what`.
    ///
    /// # Errors
    /// `Limit` if it is longer than `len_max_bytes`; `Corrupt`, with the offset, if a long file
    /// cannot be a document of `language`, as soon as a piece shows this; errors of the storage.
    /// Each error has the name of the file.
    pub fn read_document(
        &self,
        what: &str,
        language: Language,
        len_max_bytes: u64,
    ) -> Result<Option<Vec<u8>>> {
        self.storage.read_document(&self.path, Document { what, language, len_max_bytes })
    }

    /// The first bytes of the value, at most `len_max_bytes`; `None` if no value is here.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn read_beginning(&self, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.storage.read_beginning(&self.path, len_max_bytes)
    }

    /// Identifies the content here, for a later comparison; `None` if nothing is here.
    pub fn identity(&self) -> Option<Identity> {
        self.storage.identity(&self.path)
    }

    /// The location from which to read the checkpoint here, and the identity that the location had
    /// at that time.
    ///
    /// # Errors
    /// `Uncommitted` if a save is writing the checkpoint; errors of the storage.
    pub fn for_reading(&self) -> Result<Reading> {
        let reading = if self.ignores_marker { None } else { self.storage.for_reading(&self.path)? };
        Ok(reading.unwrap_or_else(|| Reading { location: self.clone(), identity: None }))
    }

    /// Whether a marker makes a checkpoint complete. Storages without rename work this way.
    pub fn commits_by_marker(&self) -> bool {
        self.capabilities().commits_by_marker
    }

    /// The only entry of an archive, if this location is the top of the archive. Callers use it if
    /// the top itself is not a checkpoint.
    pub fn only_entry(&self) -> Option<Self> {
        let archive = self.capabilities().archive.filter(|_| self.path.as_os_str().is_empty())?;
        Some(self.at(archive.only_name()?))
    }

    /// Whether this location is in an archive file that programs may change, so that a map of the
    /// file may change.
    pub fn is_in_written_file(&self) -> bool {
        let file = self.capabilities().archive.map(|archive| archive.file());
        file.is_some_and(|file| file.on_disk().is_some() || file.is_in_written_file())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe().display().fmt(f)
    }
}

impl From<&Location> for PathBuf {
    fn from(location: &Location) -> Self {
        location.describe()
    }
}

impl From<Location> for PathBuf {
    fn from(location: Location) -> Self {
        location.describe()
    }
}

impl From<PathBuf> for Location {
    /// The location of a path of the local file system. The path is not parsed as a URL.
    fn from(path: PathBuf) -> Self {
        Self::local(path)
    }
}

/// The folder of a step, below the location that was opened. The identity of the folder shows
/// whether the folder is replaced. The identity of the opened location does not show this.
#[derive(Debug, Clone)]
pub struct StepFolder {
    location: Location,
    identity: Option<Identity>,
}

impl StepFolder {
    /// Records the identity of a location before anything is read from it.
    pub fn at(location: &Location) -> Self {
        Self { location: location.clone(), identity: location.identity() }
    }

    /// The location of the folder.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Whether another folder has taken the path since `at` recorded the identity.
    pub fn is_replaced(&self) -> bool {
        self.location.identity() != self.identity
    }

    /// The error for a failed read of the folder: `Replaced` if the folder was replaced, else
    /// `error`.
    pub fn blame(&self, error: Error) -> Error {
        if self.is_replaced() { self.was_replaced() } else { error }
    }

    /// The error for a folder that was replaced or removed during a read.
    pub fn was_replaced(&self) -> Error {
        Error::replaced("the step was replaced or removed while it was being read")
            .in_file(&self.location)
            .help("open it again")
    }
}

/// Replaces a leading `~` by the home folder. `~name` stays as it is, because it may be a file
/// name.
fn expand_home(path: &Path) -> Result<Cow<'_, Path>> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(Cow::Borrowed(path)) };
    match std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
        Some(home) => Ok(Cow::Owned(home.join(rest))),
        None => Err(Error::invalid("the path begins with ~, but the home folder is unknown")
            .in_file(path)
            .help("set HOME, or give an absolute path; a folder called ~ is ./~")),
    }
}

/// The text after the last dot of a name, in lower case; `None` if the name has no dot, or is not
/// UTF-8.
pub fn suffix_of(name: &OsStr) -> Option<String> {
    Some(Path::new(name).extension()?.to_str()?.to_ascii_lowercase())
}

/// The local path for a path or `file://` URL. For functions that work only on the local file
/// system.
///
/// # Errors
/// `Unsupported` for any other URL, even if this build has a storage for it.
pub fn local(path: &Path) -> Result<PathBuf> {
    Location::parse(path)?.local_path().map(Path::to_owned)
}

/// Whether a path is a URL instead of a local path: `s3://bucket/x`, also if it has lost a slash.
pub fn is_url(path: &Path) -> bool {
    scheme_of(path).is_some()
}

/// The scheme of a URL, in lower case, and the rest; `None` for a local path.
fn scheme_of(path: &Path) -> Option<(String, String)> {
    let text = path.to_string_lossy();
    let (scheme, rest) = text.split_once(':')?;
    let is_name = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let scheme = scheme.to_ascii_lowercase();
    let is_address = rest.starts_with("//") || rest.starts_with('/') && SCHEMES.contains(&scheme.as_str());
    (is_name && is_address).then(|| (scheme, rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn addresses_are_refused_by_name() {
        for (address, scheme) in [
            ("gs:/bucket/x", "gs://"),
            ("ftp://host/x", "ftp://"),
            #[cfg(not(feature = "cloud"))]
            ("https://host/x", "https://"),
            ("git+ssh://host/x", "git+ssh://"),
            ("my-store.v2://x", "my-store.v2://"),
        ] {
            let error = Location::parse(Path::new(address)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{address}");
            assert!(error.to_string().contains(scheme), "{error}");
            assert!(error.help_text().is_some());
        }
        let file = Location::parse(Path::new("file:///home/x")).unwrap();
        assert_eq!(file.local_path().unwrap(), Path::new("/home/x"));
    }

    #[test]
    fn what_is_local_by_nature_takes_no_other_storage() {
        assert_eq!(local(Path::new("file:///home/x")).unwrap(), Path::new("/home/x"));
        assert_eq!(local(Path::new("./gs:/x")).unwrap(), Path::new("./gs:/x"));
        for url in ["memory://bucket/x", "s3://bucket/x", "hdfs://host/x"] {
            assert_eq!(local(Path::new(url)).unwrap_err().kind(), ErrorKind::Unsupported, "{url}");
        }
    }

    #[test]
    fn a_tilde_is_the_home_folder() {
        let home = std::env::home_dir().unwrap();
        let of = |path: &str| Location::parse(Path::new(path)).unwrap().local_path().unwrap().to_owned();
        assert_eq!(of("~/runs/x"), home.join("runs/x"));
        assert_eq!(of("~"), home);
        for path in ["./~/x", "a/~", "~x", "/~/x"] {
            assert_eq!(of(path), Path::new(path));
        }
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        for path in [
            "x",
            "/x",
            "./gs:/bucket/x",
            "/data/gs:/x",
            "run:/x",
            "a:b",
            "gs:",
            ":",
            "://x",
            "",
            "2://x",
            "a b://x",
        ] {
            assert_eq!(Location::parse(Path::new(path)).unwrap().local_path().unwrap(), Path::new(path));
        }
    }
}
