//! A *lent folder*: a local folder that other code fills with files of a checkpoint. The files of a
//! user's own handler and the state of an iterator come this way.
//!
//! On a disk, the lent folder is inside the temporary folder of the checkpoint. For other storages,
//! the lent folder is a temporary folder of this machine, and its files are uploaded.
//!
//! On a disk, if the files are the whole checkpoint, the lent folder is a subfolder of the
//! temporary folder, and `Lent::settle` moves the files up one level. The subfolder exists because
//! a writer may replace the folder that it fills, as a save does.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{NewFolder, UNCOMMITTED_MARK, is_bookkeeping};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::store::local::folders::{make_folders, random_name, sync_folder};
use crate::system;

const PIECE_LEN_BYTES: usize = 1 << 20;

/// How deep below their folder files may lie to become part of a checkpoint.
const DEPTH_MAX: usize = 32;

/// A lent folder. If it is dropped, no files stay outside of the checkpoint.
#[derive(Debug)]
pub struct Lent {
    /// Its name in the checkpoint; empty for the checkpoint itself.
    below: String,
    path: PathBuf,
    /// Whether the folder is a temporary folder outside of the checkpoint.
    is_temporary: bool,
    /// The process that may remove the folder. A forked child must not.
    pid: u32,
}

impl Lent {
    /// Makes the folder `below` in a checkpoint, or a temporary folder whose files are uploaded
    /// later. An empty name means the checkpoint itself.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(publication: &dyn NewFolder, below: &str) -> Result<Self> {
        let path = match publication.local_folder() {
            Some(folder) if below.is_empty() => {
                folder.join(format!("{}{UNCOMMITTED_MARK}", publication.target().name_text()))
            }
            Some(folder) => folder.join(below),
            None => std::env::temp_dir().join(temporary_name()?),
        };
        make_folders(&path).map_err(|error| Error::io("cannot make the folder", &path, error))?;
        let is_temporary = publication.local_folder().is_none();
        Ok(Self { below: below.to_owned(), path, is_temporary, pid: std::process::id() })
    }

    /// The folder into which the other code writes its files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name in the checkpoint.
    pub fn below(&self) -> &str {
        &self.below
    }

    /// Whether the folder directly contains an entry of this name.
    pub fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Adds the written files to the checkpoint: syncs them on a disk, uploads them elsewhere.
    /// Top-level files in `left_out` are skipped. Files written afterwards may be lost.
    ///
    /// # Errors
    /// `InvalidArgument` for anything except files and folders, and for a name that checkpoints
    /// reserve; errors of the system or the storage; `Cancelled`.
    pub fn take(&self, publication: &dyn NewFolder, left_out: &[&str]) -> Result<()> {
        self.take_folder(publication, &self.path, &self.below, 0, left_out)
    }

    /// Moves the [taken](Self::take) files of all processes up one level, if these files are the
    /// whole checkpoint. Returns the names that are now at the top of the checkpoint.
    ///
    /// # Errors
    /// `AlreadyExists` if the checkpoint already has a file of the same name; errors of the system.
    pub fn settle(&self, publication: &dyn NewFolder, left_out: &[&str]) -> Result<Vec<String>> {
        let cannot_list = |error| Error::io("cannot list", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(cannot_list)? {
            names.extend(entry.map_err(cannot_list)?.file_name().into_string());
        }
        names.retain(|name| !left_out.contains(&name.as_str()));
        names.sort();
        if let Some(folder) = publication.local_folder() {
            for name in &names {
                let (from, to) = (self.path.join(name), folder.join(name));
                if fs::symlink_metadata(&to).is_ok() {
                    return Err(Error::new(ErrorKind::AlreadyExists, "the same file is written twice")
                        .in_file(from)
                        .help("rename this file: the checkpoint has a file of this name"));
                }
                fs::rename(&from, &to).map_err(|error| Error::io("cannot move", &from, error))?;
            }
            fs::remove_dir_all(&self.path)
                .map_err(|error| Error::io("cannot remove the folder", &self.path, error))?;
        }
        Ok(names)
    }

    fn take_folder(
        &self,
        to: &dyn NewFolder,
        folder: &Path,
        name: &str,
        depth: usize,
        left_out: &[&str],
    ) -> Result<()> {
        let cannot_list = |error| Error::io("cannot list", folder, error);
        if depth > DEPTH_MAX {
            return Err(Error::invalid("the folders of an item are nested too deeply").in_file(folder));
        }
        for entry in fs::read_dir(folder).map_err(cannot_list)? {
            let entry = entry.map_err(cannot_list)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(cannot_list)?);
            let file_name = entry.file_name();
            let Some(file_name) = file_name.to_str() else {
                return Err(Error::invalid("the name of a file of an item is not UTF-8").in_file(&path));
            };
            if depth == 0 && left_out.contains(&file_name) {
                continue;
            }
            if name.is_empty() && is_bookkeeping(file_name) {
                return Err(Error::invalid(format!("{file_name} is a name that checkpoints use themselves"))
                    .in_file(&path)
                    .help("rename the file"));
            }
            let name = if name.is_empty() { file_name.to_owned() } else { format!("{name}/{file_name}") };
            if kind.is_dir() {
                self.take_folder(to, &path, &name, depth + 1, &[])?;
            } else if !kind.is_file() {
                return Err(Error::invalid("an item has an entry that is neither a file nor a folder")
                    .in_file(&path)
                    .expected(
                        "regular files and folders",
                        if kind.is_symlink() { "a link" } else { "a device or pipe" },
                    )
                    .help("replace the link by its target"));
            } else if self.is_temporary {
                upload(to, &path, &name).map_err(|error| error.in_file(&path))?;
            } else if to.is_durable() {
                let synced = system::sync_at(&path);
                synced.map_err(|error| Error::io("cannot sync", &path, error))?;
            }
            to.monitor().advance(0)?;
        }
        if !self.is_temporary && to.is_durable() {
            sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))?;
        }
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_temporary && self.pid == std::process::id() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn upload(to: &dyn NewFolder, path: &Path, name: &str) -> Result<()> {
    let cannot_read = |error: io::Error| Error::io("cannot read", path, error);
    let mut file = File::open(path).map_err(cannot_read)?;
    let len_bytes = file.metadata().map_err(cannot_read)?.len();
    let mut out = to.writer(name, len_bytes, 0)?;
    let mut piece = vec![0; PIECE_LEN_BYTES];
    loop {
        match file.read(&mut piece).map_err(cannot_read)? {
            0 => break,
            len => out.write(piece.get(..len).unwrap_or_default())?,
        }
    }
    out.finish().map(drop)
}

/// Copies a local file or folder into a checkpoint. Entries of a folder's top level that are in
/// `left_out` are skipped.
///
/// # Errors
/// The same as for [`Lent::take`]; `NotFound` if nothing is at the path.
pub fn copy_in(to: &dyn NewFolder, from: &Location, name: &str, left_out: &[&str]) -> Result<()> {
    let path = from.local_path()?;
    let kind = fs::metadata(path).map_err(|error| Error::io("cannot read", path, error))?;
    if !kind.is_dir() {
        return upload(to, path, name);
    }
    let lent = Lent { below: name.to_owned(), path: path.to_owned(), is_temporary: true, pid: 0 };
    lent.take(to, left_out)
}

fn temporary_name() -> Result<String> {
    let random = random_name()?;
    Ok(format!("regrow-item-{}-{random}", std::process::id()))
}
