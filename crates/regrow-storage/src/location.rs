//! The location of a checkpoint: a storage, and a path in it.
//!
//! Opens, saves, loads, verifications and conversions make a [`Location`] of a path or URL, and
//! access files only through it. Only this module knows the schemes of URLs.
//!
//! | given | is |
//! |---|---|
//! | `/data/x`, `x`, `./gs:/bucket/x`, `run:/x`, `a:b` | a path of the local file system |
//! | `~/x` | `x` in the home folder of the user; `./~/x` is a folder called `~` |
//! | `file:///data/x` | the same |
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
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::threads::for_each_parallel;
use crate::{Capabilities, Document, Entry, EntryKind, Found, Identity, ReadOnly, Reading, Storage, Url};

/// Schemes that are taken for one with a single slash, too.
const SCHEMES: [&str; 26] = [
    "abfs", "abfss", "adl", "az", "azure", "dbfs", "file", "ftp", "gcs", "gs", "hdfs", "hf", "http", "https",
    "memory", "oci", "oss", "r2", "s3", "s3a", "s3n", "sftp", "ssh", "wasb", "wasbs", "webdav",
];

/// Names that are looked for at once.
const LOOKS_AT_ONCE_MAX: usize = 16;

/// A place where a checkpoint is or will be. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Location {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    /// Whether a checkpoint here counts as complete without its marker. Nothing is written then.
    ignores_marker: bool,
}

/// What can be made a [`Location`] of: a path, a URL, a location.
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
    /// What a path or a URL names.
    ///
    /// # Errors
    /// `Unsupported` for a URL without a storage in this build.
    pub fn parse(path: &Path) -> Result<Self> {
        Self::with_options(path, &StorageOptions::default())
    }

    /// The same with options for its storage.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); `InvalidArgument` for options that the storage does not know.
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
    /// What there is, and in which version, is always asked of the storage.
    /// `verify` of such a location checks the bytes that the cache gives: give it the location
    /// without.
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

    /// The same path in another storage, which wraps this one.
    #[must_use]
    pub fn through(&self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, path: self.path.clone(), ..*self }
    }

    /// The same location, where a checkpoint is read as if its marker existed. So a repair finds
    /// other losses before it restores a lost marker.
    #[must_use]
    pub fn without_marker(&self) -> Self {
        Self { ignores_marker: true, ..self.clone() }
    }

    /// What its storage can do.
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

    /// What a person would call it: a path, a URL.
    pub fn describe(&self) -> PathBuf {
        self.storage.describe(&self.path)
    }

    /// The last name of the path; empty if it has none.
    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The last name of the path as text; what is no UTF-8 is replaced.
    pub fn name_text(&self) -> String {
        self.name().to_string_lossy().into_owned()
    }

    /// What follows the last dot of the name, in lower case; `None` if it has none, or is no UTF-8.
    pub fn suffix(&self) -> Option<String> {
        suffix_of(self.name())
    }

    /// The location `name` below this one.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        self.at(self.path.join(name))
    }

    /// The path that leads here from `folder`; all of it if it leads elsewhere.
    pub fn below(&self, folder: &Self) -> &Path {
        self.path.strip_prefix(&folder.path).unwrap_or(&self.path)
    }

    /// The folder that holds this one; of a bare name, the working folder.
    #[must_use]
    pub fn parent(&self) -> Self {
        self.at(self.path.parent().unwrap_or(Path::new("")))
    }

    /// The folders that hold this one, the nearest first.
    pub fn folders_above(&self) -> impl Iterator<Item = Self> + '_ {
        let above = |path: &PathBuf| path.parent().map(Path::to_owned);
        std::iter::successors(above(&self.absolute().path), above).map(|folder| self.at(folder))
    }

    /// Another name in the same folder.
    #[must_use]
    pub fn with_name(&self, name: impl AsRef<OsStr>) -> Self {
        self.at(self.path.with_file_name(name))
    }

    /// The name with `suffix` put behind it.
    #[must_use]
    pub fn with_suffix(&self, suffix: impl AsRef<OsStr>) -> Self {
        let mut path = OsString::from(&self.path);
        path.push(suffix);
        self.at(path)
    }

    /// Whether both are the same path of the same storage, as far as the names tell.
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.describe() == other.describe()
    }

    /// Whether both lead to the same thing, which is there.
    pub fn leads_to(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.canonical(), other.canonical());
        mine.is_some() && mine == theirs
    }

    /// The one name of the object here, which no other object of any storage has; `None` if
    /// nothing exists here.
    fn canonical(&self) -> Option<PathBuf> {
        if let Some(path) = self.on_disk() {
            return path.canonicalize().ok();
        }
        let Some(archive) = self.capabilities().archive else { return Some(self.describe()) };
        let file = archive.file().canonical()?;
        Some(if self.path.as_os_str().is_empty() { file } else { file.join(&self.path) })
    }

    /// What is there, through links; `None` if nothing is.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn look(&self) -> Result<Option<Found>> {
        self.storage.look(&self.path)
    }

    /// Whether a value is there: a regular file, an object.
    pub fn is_file(&self) -> bool {
        self.seen().is_some_and(|found| found.is_file())
    }

    /// Whether a folder is there.
    pub fn is_folder(&self) -> bool {
        matches!(self.seen(), Some(Found::Folder))
    }

    /// Whether anything is there.
    pub fn exists(&self) -> bool {
        self.seen().is_some()
    }

    /// The kind of this location, if it can be read. On a disk one failed look is not enough: a
    /// seal would be put in the wrong place, or not be seen. A lasting failure is reported when it
    /// is opened.
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

    /// Whether there are lists of what is in a folder.
    pub fn has_listings(&self) -> bool {
        self.capabilities().has_listings
    }

    /// Which of these names are in the folder: for storages that have no lists.
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

    /// The keys below the folder, which is found by its path whenever one is opened.
    pub fn store(&self) -> Arc<dyn Store> {
        self.storage.store(&self.path)
    }

    /// The keys below the folder that is there now, and goes on being read when another one takes
    /// the path.
    ///
    /// # Errors
    /// Errors of the storage; an error if there is no folder.
    pub fn opened(&self) -> Result<Arc<dyn Store>> {
        self.storage.opened(&self.path)
    }

    /// The whole of a document, called `what` in messages; `None` if no value is there.
    ///
    /// # Errors
    /// `Limit` if it is longer than `len_max_bytes`; `Corrupt`, with the offset, for a long one
    /// that can be no document of `language`, as soon as that is seen; errors of the storage. Each
    /// names the file.
    pub fn read_document(
        &self,
        what: &str,
        language: Language,
        len_max_bytes: u64,
    ) -> Result<Option<Vec<u8>>> {
        self.storage.read_document(&self.path, Document { what, language, len_max_bytes })
    }

    /// The first bytes of the value, at most so many; `None` if there is no value.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn read_beginning(&self, len_max_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.storage.read_beginning(&self.path, len_max_bytes)
    }

    /// What is there now, to be compared later; `None` if nothing is.
    pub fn identity(&self) -> Option<Identity> {
        self.storage.identity(&self.path)
    }

    /// How the checkpoint here is read: where its files are, and what was there when that was found
    /// out.
    ///
    /// # Errors
    /// `Uncommitted` if it is being written; errors of the storage.
    pub fn for_reading(&self) -> Result<Reading> {
        let reading = if self.ignores_marker { None } else { self.storage.for_reading(&self.path)? };
        Ok(reading.unwrap_or_else(|| Reading { location: self.clone(), identity: None }))
    }

    /// Whether a checkpoint is complete when its marker is there, as on a storage that cannot
    /// rename.
    pub fn commits_by_marker(&self) -> bool {
        self.capabilities().commits_by_marker
    }

    /// The only entry of the archive whose top this is: it stands for a folder that is not a
    /// checkpoint itself.
    pub fn only_entry(&self) -> Option<Self> {
        let archive = self.capabilities().archive.filter(|_| self.path.as_os_str().is_empty())?;
        Some(self.at(archive.only_name()?))
    }

    /// Whether programs may write into the archive around a finished checkpoint, so that a map may
    /// change.
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
    /// A path of the local file system, taken as it is.
    fn from(path: PathBuf) -> Self {
        Self::local(path)
    }
}

/// A folder below the location that was opened, from which a checkpoint is read: the folder of a
/// step. When it is replaced, the location above it stays what it was.
#[derive(Debug, Clone)]
pub struct StepFolder {
    location: Location,
    identity: Option<Identity>,
}

impl StepFolder {
    /// What the location leads to now, before anything is read from it.
    pub fn at(location: &Location) -> Self {
        Self { location: location.clone(), identity: location.identity() }
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Whether the location leads to something else by now.
    pub fn is_replaced(&self) -> bool {
        self.location.identity() != self.identity
    }

    /// An error of reading the folder; `Replaced` if that may be why.
    pub fn blame(&self, error: Error) -> Error {
        if self.is_replaced() { self.was_replaced() } else { error }
    }

    /// That another folder has taken the place of this one.
    pub fn was_replaced(&self) -> Error {
        Error::new(ErrorKind::Replaced, "the step was replaced or removed while it was being read")
            .in_file(&self.location)
            .help("open it again")
    }
}

/// A path with the home folder in the place of a `~` that begins it. `~name` stays: it may well be
/// a name.
///
/// # Errors
/// `InvalidArgument` if the system knows no home folder.
fn expand_home(path: &Path) -> Result<Cow<'_, Path>> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(Cow::Borrowed(path)) };
    match std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
        Some(home) => Ok(Cow::Owned(home.join(rest))),
        None => Err(Error::invalid("the path begins with ~, but the home folder is unknown")
            .in_file(path)
            .help("set HOME, or give an absolute path; a folder called ~ is ./~")),
    }
}

/// What follows the last dot of a name, in lower case; `None` if it has none, or is no UTF-8.
pub fn suffix_of(name: &OsStr) -> Option<String> {
    Some(Path::new(name).extension()?.to_str()?.to_ascii_lowercase())
}

/// The path that a path or a `file://` URL names, for what only the local file system can do.
///
/// # Errors
/// `Unsupported` for any other URL, also of a storage that this build knows.
pub fn local(path: &Path) -> Result<PathBuf> {
    Location::parse(path)?.local_path().map(Path::to_owned)
}

/// Whether a path is a URL (`s3://bucket/x`, also one that lost a slash), and no path of the local
/// file system.
pub fn is_url(path: &Path) -> bool {
    scheme_of(path).is_some()
}

/// The scheme of an address, in lower case, and what follows it; `None` for a path.
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
