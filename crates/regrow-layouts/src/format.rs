//! The interface of a layout for the engine: how it is recognised, opened and written, and what it
//! can store.

use std::ffi::OsStr;
use std::fmt::Debug;

use super::own_files::FileNames;
use super::{Loss, Preview, Reader, Recovery, Target};
use crate::options::{LeafChunking, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::Publication;
use regrow_storage::location::Location;
use regrow_tree::tree::{Leaf, LeafInfo, PathPattern, Tree};

/// Opens what [`Format::detect`] has found, without a second look.
pub type Detected<'a> = Box<dyn FnOnce(&Location, &OpenOptions) -> Result<Box<dyn Reader>> + 'a>;

/// One layout.
pub trait Format: Fidelity + Debug + Sync {
    /// Its name in `layout=`, in reports and in `Description`.
    fn name(&self) -> &'static str;

    /// Which names in a folder are its own.
    fn file_names(&self) -> FileNames {
        FileNames::NONE
    }

    /// Whether what is `at` a location (a file or a folder that exists) looks like this layout.
    /// Looks at names and first bytes only.
    ///
    /// # Errors
    /// Errors of the file system; `Uncommitted` for a save that never ended.
    fn recognise(&self, at: &Location) -> Result<bool>;

    /// Looks as [`recognise`](Self::recognise) does, and gives what opens the checkpoint then. A
    /// layout that looks at much to recognise a checkpoint hands on what it has found.
    ///
    /// # Errors
    /// As there.
    fn detect(&self, at: &Location, _options: &OpenOptions) -> Result<Option<Detected<'_>>> {
        let open = |at: &Location, options: &OpenOptions| self.open(at, options);
        Ok(self.recognise(at)?.then(|| Box::new(open) as Detected<'_>))
    }

    /// Reads the metadata of the checkpoint `at` a location, no array data.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`, each with file and offset.
    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>>;

    /// What kind of thing [`write`](Self::write) makes `at` a location.
    fn target(&self, at: &Location, options: &SaveOptions) -> Target;

    /// Refuses what [`write`](Self::write) would refuse of `tree` at `target`. Makes the plan of
    /// `write` and stops there: it reads no array data except numbers, and writes nothing.
    ///
    /// # Errors
    /// Those of `write`, but for errors of the disk.
    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()>;

    /// Adds all files of a checkpoint to a publication; the caller commits. The leaves have been
    /// cast as `options` ask, unless the layout [casts](Features::casts) them itself.
    ///
    /// # Errors
    /// `NameCollision` or `Unsupported` for a leaf that the layout cannot hold, `StorageFull` and
    /// its like.
    fn write(&self, tree: &Tree<Leaf>, publication: &dyn Publication, options: &SaveOptions) -> Result<()>;

    /// What the layout can do besides reading and writing.
    fn roles(&self) -> Roles<'_> {
        Roles::default()
    }
}

/// What a layout can do besides reading and writing.
#[derive(Clone, Copy, Default)]
pub struct Roles<'f> {
    /// Tells single files from others; `None` if the layout has none.
    pub single_file: Option<&'f dyn SingleFile>,
    /// Lets several processes write one checkpoint; `None` if one process writes all of it.
    pub many_writers: Option<&'f dyn ManyWriters>,
    /// Finds the files of a checkpoint that is several files with one stem.
    pub siblings: Option<&'f dyn Siblings>,
    /// Rebuilds lost files from others; `None` if no two files hold the same data.
    pub recovery: Option<&'f dyn Recovery>,
}

/// What a save in a layout can have. The default has nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Features<'o> {
    /// Every tree comes back as it was saved: there are no losses.
    pub is_exact: bool,
    /// The writer itself casts leaves, and records their original dtypes.
    pub casts: bool,
    /// [`SaveOptions::base`].
    pub base: bool,
    /// [`SaveOptions::about`].
    pub about: bool,
    /// Compression with zstd.
    pub compression: bool,
    /// [`SaveOptions::custom_metadata`].
    pub metadata: bool,
    /// NumPy scalars of dtypes that only NumPy has.
    pub numpy_scalars: bool,
    /// The options for single leaves.
    pub per_leaf: &'o [(PathPattern, LeafChunking)],
}

/// Which of the processes that write one checkpoint this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterRank {
    /// From 0 on. A process that does the work of one that died has a rank of its own, beyond
    /// `count`.
    pub rank: u32,
    /// How many there are, without those that died.
    pub count: u32,
}

impl WriterRank {
    /// The only one.
    pub const ALONE: Self = Self { rank: 0, count: 1 };
}

/// What a layout does where several processes write one checkpoint, each the shards that it holds.
pub trait ManyWriters {
    /// Adds the files of one process to a publication that all have joined.
    ///
    /// # Errors
    /// As [`Format::write`].
    fn write_share(
        &self,
        tree: &Tree<Leaf>,
        writer: WriterRank,
        publication: &dyn Publication,
        options: &SaveOptions,
    ) -> Result<()>;

    /// Makes one checkpoint of what these `writers` have written, each named by its rank. `tree` is
    /// that of the caller, who holds some of the shards. What others have written, which died
    /// before they were done, is removed.
    ///
    /// # Errors
    /// `InvalidArgument` with the region and the leaf where shards overlap or are missing; as
    /// [`Format::write`].
    fn merge(
        &self,
        tree: &Tree<Leaf>,
        writers: &[u32],
        publication: &dyn Publication,
        options: &SaveOptions,
    ) -> Result<()>;

    /// How writers claim numbers of their own; `None` if [`merge`](Self::merge) cannot leave out
    /// the files of a writer that died.
    fn claims(&self) -> Option<Claims> {
        None
    }
}

/// How a writer claims a number: it creates a file of this name.
#[derive(Debug, Clone, Copy)]
pub struct Claims {
    /// The name of the file for a number.
    pub name: fn(u32) -> String,
    /// Whether a file has such a name.
    pub is_name: fn(&str) -> bool,
}

/// What a layout keeps of a tree. `convert` refuses what would be lost, unless it was told that it
/// may.
pub trait Fidelity {
    /// What of `tree`, whose text leaves have these `texts`, would come back from this layout as
    /// something else, or not at all: everything that [`write`](Format::write) does not refuse, but
    /// a later load could not restore.
    fn losses(&self, tree: &Tree<LeafInfo>, texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss>;

    /// Why this layout cannot write such a leaf, in any tree; `None` if it can. `convert` puts the
    /// closest possible leaf in its place.
    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error>;

    /// What a save with these options can have.
    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o>;
}

/// How single files of a layout are told from other files.
pub trait SingleFile {
    /// Whether the name alone makes a file one of this layout: `x.msgpack`. A name that other
    /// programs use for their own files does not.
    fn claims_name(&self, name: &OsStr) -> bool;

    /// Whether a file of this name and beginning, which has not been written yet, would be
    /// [recognised](Format::recognise).
    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool;

    /// The beginning of the file that [`write`](Format::write) would make of `tree`, without its
    /// array data. A dry run shows it to all layouts to see which of them would recognise the file.
    /// Layouts whose files are recognised by their names alone give nothing.
    ///
    /// # Errors
    /// Those of [`check`](Format::check).
    fn preview(&self, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Preview>;

    /// How the names of this layout's files end, if files of other names are recognised by their
    /// content: a save refuses another name when the content would not tell.
    fn suffix(&self) -> Option<&'static str>;
}

/// A layout whose checkpoints are several files with one stem, in the order of
/// [`FileNames::pair_suffixes`]. The last file describes the others.
pub trait Siblings {
    /// The files of a path, which is their stem or one of them.
    fn files(&self, at: &Location) -> Vec<Location>;

    /// The same files, where a killed save has left them if it did not give them their names.
    fn files_now(&self, at: &Location) -> Vec<Location>;

    /// The name of the first file, if the last file gives it another name than its own.
    ///
    /// # Errors
    /// `Corrupt` for a damaged last file; errors of the storage.
    fn other_name(&self, at: &Location) -> Result<Option<String>>;

    /// Whether the last file exists. Waits for commits that are under way.
    fn appear(&self, at: &Location) -> bool;

    /// The reason why no file is there, if a commit is under way. Waits for its end.
    fn unfinished(&self, at: &Location) -> Option<Error>;
}

/// Comfort for callers: what a [`SingleFile`] says, and what holds where there is none.
pub trait FormatExt: Format {
    /// Whether the name alone makes a file one of this layout.
    fn claims_name(&self, name: &OsStr) -> bool {
        self.roles().single_file.is_some_and(|file| file.claims_name(name))
    }

    /// Whether a file of this name and beginning would be recognised.
    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool {
        self.roles().single_file.is_some_and(|file| file.recognise_preview(name, preview))
    }

    /// The beginning of the file that a save would make.
    ///
    /// # Errors
    /// As [`SingleFile::preview`].
    fn preview(&self, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Preview> {
        let single_file = self.roles().single_file;
        single_file.map_or_else(|| Ok(Preview::default()), |file| file.preview(tree, options))
    }

    /// Whether a file is one of several files of a checkpoint.
    fn is_part(&self, file: &Location) -> bool {
        self.file_names().is_part.is_some_and(|is_part| is_part(file))
    }

    /// How names end, if they have to.
    fn suffix(&self) -> Option<&'static str> {
        self.roles().single_file.and_then(SingleFile::suffix)
    }
}
impl<T: Format + ?Sized> FormatExt for T {}
