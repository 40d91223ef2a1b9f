//! The trait that each layout implements for the engine: how to recognise, open and write the
//! layout, and which trees it can store.

use std::ffi::OsStr;
use std::fmt::Debug;

use super::own_files::FileNames;
use super::{Loss, Preview, Reader, Recovery, Target};
use crate::options::{LeafChunking, OpenOptions, SaveOptions};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_storage::{MergedFolder, NewFile, NewFolder, NewSiblings};
use regrow_tree::tree::{Leaf, LeafInfo, PathPattern, Tree};

/// Opens the checkpoint that [`Format::detect`] has found, without looking at its files a second
/// time.
pub type Detected<'a> = Box<dyn FnOnce(&Location, &OpenOptions) -> Result<Box<dyn Reader>> + 'a>;

/// One layout.
pub trait Format: Fidelity + Debug + Sync {
    /// The layout's name in `layout=`, in reports and in `Description`.
    fn name(&self) -> &'static str;

    /// The file names that belong to this layout.
    fn file_names(&self) -> FileNames {
        FileNames::NONE
    }

    /// Whether the file or folder `at` a location, which exists, looks like this layout. Reads only
    /// names and first bytes.
    ///
    /// # Errors
    /// Errors of the file system; `Uncommitted` for a save that never finished.
    fn recognise(&self, at: &Location) -> Result<bool>;

    /// Recognises a checkpoint as [`recognise`](Self::recognise) does, and returns a function that
    /// opens it. A layout that reads many names to recognise a checkpoint passes its findings to
    /// that function.
    ///
    /// # Errors
    /// As `recognise`.
    fn detect(&self, at: &Location, _options: &OpenOptions) -> Result<Option<Detected<'_>>> {
        let open = |at: &Location, options: &OpenOptions| self.open(at, options);
        Ok(self.recognise(at)?.then(|| Box::new(open) as Detected<'_>))
    }

    /// Reads the metadata of the checkpoint `at` a location, but no array data.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`, each with file and offset.
    fn open(&self, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>>;

    /// How a save at this location writes its files.
    fn write_as(&self, at: &Location, options: &SaveOptions) -> WriteAs;

    /// Returns the error that a save of `tree` at `target` would return. Plans the save and stops
    /// there: reads at most scalars and short arrays, and writes nothing.
    ///
    /// # Errors
    /// The errors of a [`WriteAs`], except errors of the disk.
    fn check(&self, tree: &Tree<Leaf>, target: &Location, options: &SaveOptions) -> Result<()>;

    /// The further abilities of the layout, besides reading and writing.
    fn roles(&self) -> Roles<'_> {
        Roles::default()
    }
}

/// Writes all files of a new folder.
pub type WriteFolder = fn(&Tree<Leaf>, &dyn NewFolder, &SaveOptions) -> Result<()>;

/// Writes a new file.
pub type WriteFile = fn(&Tree<Leaf>, &dyn NewFile, &SaveOptions) -> Result<()>;

/// Writes new files of one stem.
pub type WriteSiblings = fn(&Tree<Leaf>, &dyn NewSiblings, &SaveOptions) -> Result<()>;

/// How a layout writes a checkpoint: the kind of the checkpoint, with the function that writes all
/// its files; the caller commits. The leaves have been cast as the options ask, unless the layout
/// [casts](Features::casts) them itself.
///
/// The functions return `NameCollision` or `Unsupported` for a leaf that the layout cannot store;
/// `StorageFull` and other errors of the storage.
#[derive(Debug)]
pub enum WriteAs {
    /// A folder.
    Folder(WriteFolder),
    /// A single file.
    File(WriteFile),
    /// Several files of one stem.
    Siblings {
        /// The suffix of each file. The last file makes the checkpoint.
        suffixes: Vec<String>,
        /// The function.
        write: WriteSiblings,
    },
}

impl WriteAs {
    /// The kind of the checkpoint.
    pub fn kind(self) -> Target {
        match self {
            Self::Folder(_) => Target::Folder,
            Self::File(_) => Target::File,
            Self::Siblings { suffixes, .. } => Target::Siblings { suffixes },
        }
    }
}

/// The further abilities of a layout, besides reading and writing.
#[derive(Clone, Copy, Default)]
pub struct Roles<'f> {
    /// Recognises checkpoints that are one file; `None` if the layout has no single files.
    pub single_file: Option<&'f dyn SingleFile>,
    /// Lets several processes write one checkpoint; `None` if one process writes all of it.
    pub many_writers: Option<&'f dyn ManyWriters>,
    /// Finds the files of a checkpoint of several files with one stem; `None` for other layouts.
    pub siblings: Option<&'f dyn Siblings>,
    /// Rebuilds lost files from other files; `None` if no two files hold the same data.
    pub recovery: Option<&'f dyn Recovery>,
}

/// Which options and guarantees a save in a layout supports. The default has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Features<'o> {
    /// Every tree loads exactly as it was saved: there are no losses.
    pub is_exact: bool,
    /// The writer casts leaves itself, and records their original dtypes.
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
    /// The chunking options that apply to single leaves.
    pub per_leaf: &'o [(PathPattern, LeafChunking)],
}

/// Which of the processes that write one checkpoint this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterRank {
    /// The rank, from 0 on. A process that replaces a dead one has a new rank, beyond `count`.
    pub rank: u32,
    /// The number of processes, without replacements of dead ones.
    pub count: u32,
}

impl WriterRank {
    /// The rank of a save by one process.
    pub const ALONE: Self = Self { rank: 0, count: 1 };
}

/// A layout that several processes can write together. Each process writes the shards that it
/// holds.
pub trait ManyWriters {
    /// Adds the files of one process to a publication that all processes have joined.
    ///
    /// # Errors
    /// Those of a [`WriteAs`].
    fn write_share(
        &self,
        tree: &Tree<Leaf>,
        writer: WriterRank,
        publication: &dyn NewFolder,
        options: &SaveOptions,
    ) -> Result<()>;

    /// Merges the files of these `writers`, which are ranks, into one checkpoint. `tree` is the
    /// tree of the calling process, which holds only some of the shards. Files of processes that
    /// died before they finished are removed.
    ///
    /// # Errors
    /// `InvalidArgument` with the region and the leaf where shards overlap or are missing; as
    /// [`Format::write_as`].
    fn merge(
        &self,
        tree: &Tree<Leaf>,
        writers: &[u32],
        publication: &dyn MergedFolder,
        options: &SaveOptions,
    ) -> Result<()>;

    /// How writers claim numbers of their own; `None` if [`merge`](Self::merge) cannot leave out
    /// the files of a writer that died.
    fn claims(&self) -> Option<Claims> {
        None
    }
}

/// How a writer claims a number: the writer creates a file with the number in its name.
#[derive(Debug, Clone, Copy)]
pub struct Claims {
    /// The name of the file for a number.
    pub name: fn(u32) -> String,
    /// Whether a name is the name of a file for some number.
    pub is_name: fn(&str) -> bool,
}

/// Which parts of a tree a layout preserves. `convert` returns an error for losses, unless the
/// caller allows them.
pub trait Fidelity {
    /// The parts of `tree` that a load from this layout would not restore as they were. `tree` is a
    /// tree that a save accepts. `texts` are the text leaves, by position.
    fn losses(&self, tree: &Tree<LeafInfo>, texts: &[(usize, &str)], options: &SaveOptions) -> Vec<Loss>;

    /// The reason why this layout cannot write a leaf like this in any tree; `None` if it can. If
    /// there is a reason, `convert` writes the closest possible leaf.
    fn refusal(&self, leaf: &LeafInfo, options: &SaveOptions) -> Option<Error>;

    /// The features of a save with these options.
    fn features<'o>(&self, options: &'o SaveOptions) -> Features<'o>;
}

/// How to recognise a checkpoint that is one file.
pub trait SingleFile {
    /// Whether the name alone shows that a file has this layout, such as `x.msgpack`. False for a
    /// name that other programs use for their own files, too.
    fn claims_name(&self, name: &OsStr) -> bool;

    /// Whether a file with this name and these first bytes would be
    /// [recognised](Format::recognise). The file is not yet written.
    fn recognise_preview(&self, name: &OsStr, preview: &Preview) -> bool;

    /// The beginning of the file that a save would make of `tree`, without its array data. A dry
    /// run shows the preview to all layouts to see which of them would recognise the file. The
    /// preview is empty for layouts whose files are recognised by their names alone.
    ///
    /// # Errors
    /// The errors of [`check`](Format::check).
    fn preview(&self, tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Preview>;

    /// The suffix of this layout's files, if files with other names are recognised by their
    /// content. A save refuses another name if the content would not show the layout.
    fn suffix(&self) -> Option<&'static str>;
}

/// A layout whose checkpoints are several files with one stem, in the order of
/// [`FileNames::pair_suffixes`]. The last file describes the others.
pub trait Siblings {
    /// The files that belong to a path. The path is their stem, or one of them.
    fn files(&self, at: &Location) -> Vec<Location>;

    /// As `files`, but with the temporary name of each file that a killed save has not renamed to
    /// its final name.
    fn files_now(&self, at: &Location) -> Vec<Location>;

    /// The name of the first file, as the last file records it; `None` if this is the expected
    /// name.
    ///
    /// # Errors
    /// `Corrupt` for a damaged last file; errors of the storage.
    fn other_name(&self, at: &Location) -> Result<Option<String>>;

    /// Whether the last file exists. Waits for commits that are under way.
    fn appear(&self, at: &Location) -> bool;

    /// Waits for the end of a commit that is under way. Returns an error if the commit takes too
    /// long.
    fn unfinished(&self, at: &Location) -> Option<Error>;
}

/// The functions of [`SingleFile`], with defaults for layouts without single files.
pub trait FormatExt: Format {
    /// Whether the name alone shows that a file has this layout.
    fn claims_name(&self, name: &OsStr) -> bool {
        self.roles().single_file.is_some_and(|file| file.claims_name(name))
    }

    /// Whether a file with this name and these first bytes would be recognised.
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

    /// The required suffix of file names, if there is one.
    fn suffix(&self) -> Option<&'static str> {
        self.roles().single_file.and_then(SingleFile::suffix)
    }
}
impl<T: Format + ?Sized> FormatExt for T {}
