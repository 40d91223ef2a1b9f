//! Opens a checkpoint: finds the layout, reads the metadata, returns lazy leaves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::OpenOptions;
use super::keys;
use super::sealed::read_under_seal;
use super::search;
use crate::commit::reappears;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{
    Description, Detected, Format, Reader, beginnings, contents, foreign, formats, located, looked_for,
    siblings, suggestions,
};
use crate::location::{Location, StepFolder, ToLocation};
use crate::options::LostFiles;
use crate::storage::Retries;
use crate::storage::{Entry, Found, Identity, Reading, archive};
use crate::text::printable;
use crate::tree::{KeyPath, LeafInfo, Tree};

/// An opened checkpoint: its metadata, and its leaves to be read one at a time. Cheap to clone.
///
/// A leaf is given by its position in flatten order. [`find`](Self::find) turns a printed key path
/// into a position.
#[derive(Debug, Clone)]
pub struct Checkpoint(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    location: Location,
    name: PathBuf,
    /// The identity of the opened folder: another identity at the same path is another checkpoint.
    identity: Option<Identity>,
    reader: Box<dyn Reader>,
    /// Whether leaves are read as views of files that other programs may write into.
    is_mapped: bool,
    /// Whether every file is read in the version that existed at the opening.
    is_pinned: bool,
    paths: OnceLock<Vec<KeyPath>>,
    by_text: OnceLock<HashMap<String, Match>>,
    /// For each leaf, the number of leaves before it on disk.
    ranks: OnceLock<Vec<usize>>,
    /// The number of lookups so far that walked the whole tree to find one leaf.
    searches: AtomicU32,
}

/// An index is built after this many walks through the whole tree. The index costs about as much as
/// these walks.
const SEARCHES_MAX: u32 = 16;

#[derive(Debug, Clone, Copy)]
enum Match {
    One(usize),
    Several,
}

/// Opens the checkpoint at a path or URL, in any layout: metadata only.
///
/// # Errors
/// `NotFound`; `NotACheckpoint`, with the expected and the found files; `Uncommitted`; `Corrupt`;
/// `Unsupported` (also for a URL without a storage in this build). A checkpoint with
/// [`warnings`](Description::warnings) is opened, but with [`LostFiles::Error`] the result is
/// `Corrupt`.
pub fn open(path: impl ToLocation) -> Result<Checkpoint> {
    open_with(path, &OpenOptions::default())
}

/// Opens a step or an item of the checkpoint at a path or URL.
///
/// # Errors
/// The errors of [`open`]; `NotFound` also for a step or an item that does not exist.
pub fn open_with(path: impl ToLocation, options: &OpenOptions) -> Result<Checkpoint> {
    Checkpoint::open_as(located(path)?, options, |at| open_any(at, options))
}

/// The identity of the checkpoint at a location. Any other checkpoint at the same location has
/// another identity.
pub(super) fn identity(at: &Location) -> Option<Identity> {
    at.identity().or_else(|| siblings::main_files(at).find_map(|file| file.identity()))
}

/// The location of a checkpoint before it is opened. An opening during a replacement may read parts
/// of two checkpoints.
struct Before {
    reading: Reading,
    identity: Option<Identity>,
    main_files: Vec<PathBuf>,
}

impl Before {
    fn look(at: &Location) -> Result<Self> {
        let reading = at.for_reading()?;
        let identity = reading.identity.or_else(|| identity(&reading.location));
        let main_files = Self::main_files(&reading.location);
        Ok(Self { reading, identity, main_files })
    }

    /// The paths of main files if `at` is a stem of [`siblings`]; empty if a file or folder exists
    /// at `at`. If a save finishes the commit of a killed save, the paths change and the files stay
    /// the same.
    fn main_files(at: &Location) -> Vec<PathBuf> {
        if at.exists() { Vec::new() } else { siblings::main_files(at).map(|file| file.describe()).collect() }
    }

    /// Whether the opened checkpoint may mix the bytes of two checkpoints.
    fn is_mixed(&self, opened: &Checkpoint) -> bool {
        let standing = opened.reader().standing();
        // Reads of a replaced checkpoint fail by their checksum or their version.
        let is_checked = self.reading.is_pinned() && standing.has_data_checksums;
        !standing.reads_open_files && !is_checked && opened.is_replaced()
    }

    /// Whether the error may come from a replacement during the opening.
    fn may_explain(&self, error: &Error, at: &Location) -> bool {
        if error.kind() == ErrorKind::Replaced {
            return true;
        }
        if self.identity.is_none() {
            // Another writer may have committed the checkpoint during this opening. The opening may
            // have read a side file before the checkpoint got its name.
            return error.kind().is_of_content() && identity(at).is_some()
                || siblings::layouts().any(|(_, siblings)| siblings.appear(at))
                || at.local_path().is_ok_and(reappears);
        }
        // An address into an archive may leave a folder out, so compare the resolved paths.
        let now = at.for_reading().ok().map(|now| Self::main_files(&now.location));
        identity(at) != self.identity || now.is_some_and(|now| now != self.main_files)
    }
}

fn open_any(at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
    let unfinished = || siblings::layouts().find_map(|(_, siblings)| siblings.unfinished(at));
    let is_there = match at.look() {
        // A read from a pipe or a device may never end.
        Ok(Some(Found::Other(_))) => return Err(not_a_checkpoint(at)),
        Ok(Some(_)) => true,
        Ok(None) if siblings::are_at(at)? => false,
        Ok(None) => {
            let source = std::io::Error::from_raw_os_error(2);
            let missing = || {
                let error = Error::io("cannot open the checkpoint", at, source);
                match at.has_listings() {
                    true => error,
                    false => error.help(format!(
                        "web servers list no files: give the address of the checkpoint itself: its folder \
                         (with one of {}), a file, or a path in an archive",
                        beginnings().join(", ")
                    )),
                }
            };
            return Err(unfinished().unwrap_or_else(missing));
        }
        Err(error) => return Err(unfinished().unwrap_or(error)),
    };
    for format in formats() {
        let may_be = is_there || format.roles().siblings.is_some();
        if let Some(open) = may_be.then(|| format.detect(at, options)).transpose()?.flatten() {
            return open_detected(format, open, at, options);
        }
    }
    if let Some(format) = contents::layout_of(at)? {
        return unless_lost(format.open(at, options)?, at, options);
    }
    match at.only_entry() {
        Some(entry) => open_any(&entry, options),
        None => Err(not_a_checkpoint(at)),
    }
}

/// Opens a checkpoint in the detected layout. If the content does not fit the file's suffix, the
/// file may have another layout.
fn open_detected(
    format: &dyn Format,
    open: Detected<'_>,
    at: &Location,
    options: &OpenOptions,
) -> Result<Box<dyn Reader>> {
    let error = match open(at, options).and_then(|reader| unless_lost(reader, at, options)) {
        Err(error) if error.kind().is_of_content() || error.kind() == ErrorKind::Unsupported => error,
        opened => return opened,
    };
    match contents::layout_of(at) {
        Ok(Some(other)) if other.name() != format.name() => {
            unless_lost(other.open(at, options)?, at, options)
        }
        _ => Err(foreign::told(error, at, format.name())),
    }
}

fn unless_lost(reader: Box<dyn Reader>, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
    match reader.description().warnings.first() {
        Some(warning) if options.lost_files == LostFiles::Error => Err(Error::corrupt(warning)
            .in_file(at)
            .help("copy the whole checkpoint again, or pass `LostFiles::Warn`")),
        _ => Ok(reader),
    }
}

impl Checkpoint {
    /// Opens the checkpoint at a path or URL with a reader that the caller makes, for options that
    /// only one layout has. Leaves are read as with [`OpenOptions::mapped`].
    ///
    /// # Errors
    /// Errors of `read`. If the checkpoint is replaced during the opening, `read` is called again.
    #[doc(hidden)]
    pub fn open_by(
        path: impl ToLocation,
        read: impl Fn(&Location) -> Result<Box<dyn Reader>>,
    ) -> Result<Self> {
        Self::open_as(located(path)?, &OpenOptions { mapped: true, ..OpenOptions::default() }, read)
    }

    fn open_as(
        at: Location,
        options: &OpenOptions,
        read: impl Fn(&Location) -> Result<Box<dyn Reader>>,
    ) -> Result<Self> {
        let at = archive::find(&at)?.unwrap_or(at);
        let mut retries = Retries::begin();
        loop {
            let before = Before::look(&at)?;
            let opened = read_under_seal(&before.reading.location, options, &read).map(|reader| {
                Self::of(&at, before.identity, options.mapped, before.reading.is_pinned(), reader)
            });
            let is_mixed = match &opened {
                Ok(checkpoint) => before.is_mixed(checkpoint),
                Err(error) => before.may_explain(error, &at),
            };
            if is_mixed && retries.another() {
                continue;
            }
            if opened.is_ok() && !is_mixed {
                retries.were_of_use();
            }
            // Some errors of layouts name no file: name the checkpoint in them.
            return opened.map_err(|error| match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Limit => error.in_file(&at),
                _ => error,
            });
        }
    }

    /// A checkpoint that is in memory instead of on disk. Its path is empty.
    #[doc(hidden)]
    pub fn in_memory(reader: Box<dyn Reader>) -> Self {
        Self::of(&Location::local(""), None, true, false, reader)
    }

    fn of(
        at: &Location,
        identity: Option<Identity>,
        is_mapped: bool,
        is_pinned: bool,
        reader: Box<dyn Reader>,
    ) -> Self {
        let (paths, by_text, ranks) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (location, name) = (at.clone(), at.describe());
        Self(Arc::new(Inner {
            location,
            name,
            identity,
            reader,
            is_mapped,
            is_pinned,
            paths,
            by_text,
            ranks,
            searches: AtomicU32::new(0),
        }))
    }

    pub(super) fn read_by(&self, reader: impl FnOnce(Self) -> Box<dyn Reader>) -> Self {
        let Inner { location, identity, is_mapped, is_pinned, .. } = &*self.0;
        Self::of(location, *identity, *is_mapped, *is_pinned, reader(self.clone()))
    }

    /// Whether the checkpoint was opened with views of all raw data.
    pub(super) fn is_mapped(&self) -> bool {
        self.0.is_mapped
    }

    /// Whether leaves are read as views of maps: the options ask for views, or the files have no
    /// other writers.
    pub(super) fn has_views(&self) -> bool {
        self.is_mapped()
            || self.reader().standing().is_never_rewritten && !self.0.location.is_in_written_file()
    }

    /// Returns an error if a read would skip checks although the checkpoint was opened with trusted
    /// keys, which prove each byte.
    pub(super) fn check_unverified(&self, is_unverified: bool) -> Result<()> {
        match self.reader().standing().signer.filter(|_| is_unverified) {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "a checkpoint that was opened with trusted keys cannot be read without verification",
            )
            .in_file(self.path())
            .help("leave out the trusted keys, or read with verification")),
        }
    }

    /// The path or URL that was opened.
    pub fn path(&self) -> &Path {
        &self.0.name
    }

    /// The location that was opened.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Whether another checkpoint has replaced this one at its path since the opening.
    pub fn is_replaced(&self) -> bool {
        let step = self.reader().standing().step_folder;
        identity(&self.0.location) != self.0.identity || step.is_some_and(StepFolder::is_replaced)
    }

    /// Returns the result, or `Replaced` if the checkpoint was replaced and the result may mix the
    /// old and the new checkpoint. A result is not mixed if all bytes came from files that stayed
    /// open or from pinned versions, or if every byte passed a checksum that was read first.
    pub(super) fn unless_replaced<T>(&self, result: Result<T>) -> Result<T> {
        let is_whole = self.0.is_pinned
            || self.reader().standing().reads_open_files
            || result.is_ok() && self.reader().standing().has_data_checksums;
        let is_cancelled = matches!(&result, Err(error) if error.kind() == ErrorKind::Cancelled);
        if is_whole || is_cancelled || !self.is_replaced() {
            return result;
        }
        Err(self.was_replaced())
    }

    /// Returns an error if a read has findings that may come from a replaced checkpoint: its
    /// removed files look like damage.
    pub(super) fn unless_missing(&self, has_findings: bool) -> Result<()> {
        if !has_findings || self.reader().standing().reads_open_files || !self.is_replaced() {
            return self.unless_replaced(Ok(()));
        }
        Err(self.was_replaced())
    }

    pub(super) fn was_replaced(&self) -> Error {
        Error::replaced("the checkpoint was replaced or removed while it was being read")
            .in_file(self.path())
            .help("open it again")
    }

    /// The reader of the checkpoint's layout.
    #[doc(hidden)]
    pub fn reader(&self) -> &dyn Reader {
        &*self.0.reader
    }

    /// The layout, the metadata and the warnings of the checkpoint.
    pub fn description(&self) -> &Description {
        self.0.reader.description()
    }

    /// The pytree, with the metadata of each leaf.
    pub fn tree(&self) -> &Tree<LeafInfo> {
        self.0.reader.tree()
    }

    /// The key path of every leaf, in flatten order. The first call computes them.
    pub fn paths(&self) -> &[KeyPath] {
        self.0.paths.get_or_init(|| self.tree().paths())
    }

    /// Sorts leaves by their order on disk. The first call computes the order of all leaves,
    /// because loads in parts need it many times.
    pub(super) fn sort_by_place(&self, leaves: &mut [usize]) {
        if leaves.len() < 2 {
            return;
        }
        let ranks = self.0.ranks.get_or_init(|| {
            let order = self.reader().read_order();
            let mut ranks = vec![0; order.len()];
            for (rank, leaf) in order.into_iter().enumerate() {
                if let Some(slot) = ranks.get_mut(leaf) {
                    *slot = rank;
                }
            }
            ranks
        });
        leaves.sort_unstable_by_key(|&leaf| ranks.get(leaf));
    }

    /// A text for each leaf, in flatten order, with which [`find`](Self::find) finds exactly this
    /// leaf. The text is the printed key path. If several leaves print as the same text, `keys` has
    /// the stored name, or the key path with every key quoted (`['a/b'][0]`).
    pub fn keys(&self) -> Vec<String> {
        keys::unique(self.tree(), self.paths())
    }

    /// The first `count` of [`keys`](Self::keys); `None` if they depend on the paths of all leaves.
    #[doc(hidden)]
    pub fn first_keys(&self, count: usize) -> Option<Vec<String>> {
        let first = || self.tree().iter().take(count).map(|(path, _)| path.to_string()).collect();
        keys::print_apart(self.tree()).then(first)
    }

    /// The position of a leaf. `text` is its printed key path (`params/dense/kernel`), its stored
    /// name (`params.dense.kernel`) or its text in [`keys`](Self::keys).
    ///
    /// # Errors
    /// `NotFound` with the nearest names; `InvalidArgument` if two leaves print as this text and
    /// the stored names do not decide.
    pub fn find(&self, text: &str) -> Result<usize> {
        // Key paths are compared by their printed text.
        let printed = printable(text);
        if self.0.by_text.get().is_none()
            && self.may_search()
            && let Some(leaf) = search::leaf_of(self.tree(), &printed, text)
        {
            return Ok(leaf);
        }
        let by_text = self.0.by_text.get_or_init(|| self.index_texts());
        match by_text.get(text).or_else(|| by_text.get(&*printed)) {
            Some(Match::One(leaf)) => Ok(*leaf),
            Some(Match::Several) => {
                let same_text =
                    self.paths().iter().zip(self.keys()).filter(|(path, _)| path.to_string() == text);
                let keys: Vec<String> = same_text.take(5).map(|(_, key)| key).collect();
                Err(Error::invalid(format!("several leaves have the printed key path {text:?}"))
                    .in_file(self.path())
                    .help(format!("use their names: {}", keys.join(", "))))
            }
            None => {
                let near = self.near(text);
                let error = Error::new(ErrorKind::NotFound, format!("no leaf has the key path {text:?}"))
                    .in_file(self.path());
                Err(match near.is_empty() {
                    true => error,
                    false => error.help(format!("the key paths are {}", near.join(", "))),
                })
            }
        }
    }

    /// The metadata of a leaf.
    ///
    /// # Errors
    /// `InvalidArgument` if the position is beyond the last leaf.
    pub fn info(&self, leaf: usize) -> Result<&LeafInfo> {
        self.tree().leaves().get(leaf).ok_or_else(|| {
            Error::invalid("the leaf does not exist")
                .expected(format_args!("a position below {}", self.tree().len()), leaf)
        })
    }

    /// The key path of a leaf.
    ///
    /// # Errors
    /// `InvalidArgument` if the position is beyond the last leaf.
    pub fn key_path(&self, leaf: usize) -> Result<KeyPath> {
        self.info(leaf)?;
        if self.0.paths.get().is_none() && self.may_search() {
            return Ok(self.tree().path_of(leaf));
        }
        Ok(self.paths().get(leaf).cloned().unwrap_or_default())
    }

    fn may_search(&self) -> bool {
        // Relaxed is enough for a counter that orders no other data.
        self.0.searches.fetch_add(1, Ordering::Relaxed) < SEARCHES_MAX
    }

    fn index_texts(&self) -> HashMap<String, Match> {
        let mut by_text = HashMap::with_capacity(2 * self.tree().len());
        for (leaf, path) in self.paths().iter().enumerate() {
            by_text
                .entry(path.to_string())
                .and_modify(|found| *found = Match::Several)
                .or_insert(Match::One(leaf));
        }
        // Index the names second: users see key paths first, and names are unique.
        for (leaf, info) in self.tree().leaves().iter().enumerate() {
            let found = by_text.entry(info.name.to_string()).or_insert(Match::One(leaf));
            if matches!(found, Match::Several) {
                *found = Match::One(leaf);
            }
        }
        if !keys::print_apart(self.tree()) {
            by_text.extend(self.keys().into_iter().enumerate().map(|(leaf, key)| (key, Match::One(leaf))));
        }
        by_text
    }

    /// At most five key paths that share their last key or their beginning with `text`; the first
    /// five key paths if there are none.
    fn near(&self, text: &str) -> Vec<String> {
        let last = text.rsplit(['/', '.']).next().unwrap_or(text);
        let printed = self.paths().iter().map(ToString::to_string);
        let mut near: Vec<String> =
            printed.filter(|path| path.ends_with(last) || path.starts_with(text)).take(5).collect();
        if near.is_empty() {
            near = self.paths().iter().take(5).map(ToString::to_string).collect();
        }
        near
    }
}

fn not_a_checkpoint(at: &Location) -> Error {
    const SHOWN_MAX: usize = 8;
    let error = Error::new(ErrorKind::NotACheckpoint, "this is not a checkpoint").in_file(at);
    let found = match at.entries() {
        Ok(mut entries) => {
            if let Some(foreign) = foreign::folder_of(&entries) {
                return Error::new(ErrorKind::NotACheckpoint, format!("this is {}", foreign.what))
                    .in_file(at)
                    .help(foreign.help);
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            let name = |entry: &Entry| match foreign::file_at(&at.join(&entry.name)) {
                Some(foreign) => format!("{:?} ({})", entry.name, foreign.what),
                None => format!("{:?}", entry.name),
            };
            let names: Vec<String> = entries.iter().take(SHOWN_MAX + 1).map(name).collect();
            match names.len() {
                0 => "an empty folder".to_owned(),
                n if n > SHOWN_MAX => {
                    format!("{} and more", names.get(..SHOWN_MAX).unwrap_or_default().join(", "))
                }
                _ => names.join(", "),
            }
        }
        Err(_) => match foreign::file_at(at) {
            Some(foreign) => {
                return Error::new(ErrorKind::NotACheckpoint, format!("this is {}", foreign.what))
                    .in_file(at)
                    .help(foreign.help);
            }
            None => "a file of another kind".to_owned(),
        },
    };
    error.expected(format_args!("one of {}", looked_for()), found).help(
        suggestions::checkpoints_in(at).unwrap_or_else(|| {
            "give the folder that has these files, or the folder of steps above it".to_owned()
        }),
    )
}
