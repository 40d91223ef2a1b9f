//! Folders and files as numbered inodes. So a crash can lose a name without its file, and a file
//! without its name.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

/// The number of an inode. [`ROOT`] is the recorded folder.
pub type Inode = usize;

pub const ROOT: Inode = 0;

/// The content of an inode.
#[derive(Debug, Clone, Hash)]
pub enum Content {
    Folder(BTreeMap<String, Inode>),
    /// The bytes of a file. They are shared until a write, because the disk is copied for each
    /// state.
    File(Arc<Vec<u8>>),
}

/// A change to a disk that a crash either keeps or loses as a whole.
#[derive(Debug, Clone)]
pub enum Change {
    /// Names that change together, as in a rename. Each has its folder, its name, and its new
    /// inode.
    Names(Vec<(Inode, String, Option<Inode>)>),
    /// Bytes of a file. If the file ends before their offset, the gap is filled with zeros.
    Bytes { file: Inode, offset: usize, bytes: Arc<Vec<u8>> },
    /// A file gets at least this length. New bytes are zero.
    Grow { file: Inode, len: usize },
    /// A file gets this length.
    Resize { file: Inode, len: usize },
}

impl Change {
    /// Whether the change is about names, and not about the content of a file.
    pub fn is_of_names(&self) -> bool {
        matches!(self, Self::Names(_))
    }

    /// Whether the change is about this inode: the content of a file, or names in a folder.
    pub fn is_of(&self, inode: Inode) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|(folder, ..)| *folder == inode),
            Self::Bytes { file, .. } | Self::Grow { file, .. } | Self::Resize { file, .. } => *file == inode,
        }
    }
}

/// The content of a disk.
#[derive(Debug, Clone)]
pub struct Disk {
    inodes: Vec<Content>,
}

impl Disk {
    /// Reads a folder. Returns its content, and the number of each inode by the system's inode
    /// number.
    ///
    /// # Errors
    /// Errors of the file system; `Unsupported` for anything except folders and files.
    pub fn of_folder(root: &Path) -> io::Result<(Self, BTreeMap<u64, Inode>)> {
        let mut disk = Self { inodes: Vec::new() };
        let mut known = BTreeMap::new();
        disk.add(root, &mut known)?;
        Ok((disk, known))
    }

    fn add(&mut self, path: &Path, known: &mut BTreeMap<u64, Inode>) -> io::Result<Inode> {
        let found = fs::symlink_metadata(path)?;
        if let Some(&inode) = known.get(&found.ino()) {
            return Ok(inode);
        }
        let is_folder = found.is_dir();
        if !is_folder && !found.is_file() {
            return Err(unsupported(format!("{} is neither a folder nor a file", path.display())));
        }
        let inode = self.create(is_folder);
        known.insert(found.ino(), inode);
        if is_folder {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let child = self.add(&entry.path(), known)?;
                self.apply(&Change::Names(vec![(inode, name(&entry.file_name())?, Some(child))]));
            }
        } else {
            self.apply(&Change::Bytes { file: inode, offset: 0, bytes: Arc::new(fs::read(path)?) });
        }
        Ok(inode)
    }

    /// The bytes of all files by their paths; `None` for folders.
    pub fn listing(&self) -> BTreeMap<String, Option<Arc<Vec<u8>>>> {
        let mut found = BTreeMap::new();
        let mut left = vec![(ROOT, String::new())];
        while let Some((inode, path)) = left.pop() {
            match self.inodes.get(inode) {
                Some(Content::Folder(names)) => {
                    left.extend(names.iter().map(|(name, child)| (*child, format!("{path}/{name}"))));
                    found.insert(path, None);
                }
                Some(Content::File(bytes)) => drop(found.insert(path, Some(Arc::clone(bytes)))),
                None => {}
            }
        }
        found
    }

    /// Makes a new inode that has no name yet.
    pub fn create(&mut self, is_folder: bool) -> Inode {
        let content =
            if is_folder { Content::Folder(BTreeMap::new()) } else { Content::File(Arc::default()) };
        self.inodes.push(content);
        self.inodes.len() - 1
    }

    /// The inode of a name in a folder.
    pub fn find(&self, folder: Inode, name: &str) -> Option<Inode> {
        match self.inodes.get(folder) {
            Some(Content::Folder(names)) => names.get(name).copied(),
            _ => None,
        }
    }

    /// The length of a file.
    pub fn len_bytes(&self, file: Inode) -> usize {
        match self.inodes.get(file) {
            Some(Content::File(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    /// Whether an inode is a folder.
    pub fn is_folder(&self, inode: Inode) -> bool {
        matches!(self.inodes.get(inode), Some(Content::Folder(_)))
    }

    /// The number of inodes, including those without a name.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Makes a change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Names(names) => {
                for (folder, name, to) in names {
                    if let Some(Content::Folder(entries)) = self.inodes.get_mut(*folder) {
                        match to {
                            Some(to) => entries.insert(name.clone(), *to),
                            None => entries.remove(name),
                        };
                    }
                }
            }
            Change::Bytes { file, offset, bytes } => {
                let end = offset + bytes.len();
                let content = self.file(*file);
                content.resize(content.len().max(end), 0);
                if let Some(place) = content.get_mut(*offset..end) {
                    place.copy_from_slice(bytes);
                }
            }
            Change::Grow { file, len } => {
                let content = self.file(*file);
                content.resize(content.len().max(*len), 0);
            }
            Change::Resize { file, len } => self.file(*file).resize(*len, 0),
        }
    }

    fn file(&mut self, file: Inode) -> &mut Vec<u8> {
        match self.inodes.get_mut(file) {
            Some(Content::File(bytes)) => Arc::make_mut(bytes),
            other => unreachable!("inode {file} is no file: {other:?}"),
        }
    }

    /// A hash of everything that is reachable from the root. `None` for a state that no file system
    /// can have: a folder with two names.
    pub fn fingerprint(&self) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let mut seen = vec![false; self.inodes.len()];
        self.hash(ROOT, &mut seen, &mut hasher).then(|| hasher.finish())
    }

    fn hash(&self, inode: Inode, seen: &mut [bool], hasher: &mut DefaultHasher) -> bool {
        match self.inodes.get(inode) {
            Some(Content::Folder(names)) => {
                let Some(seen_here) = seen.get_mut(inode) else { return false };
                if std::mem::replace(seen_here, true) {
                    return false;
                }
                names.len().hash(hasher);
                names.iter().all(|(name, &child)| {
                    name.hash(hasher);
                    self.hash(child, seen, hasher)
                })
            }
            Some(Content::File(bytes)) => {
                bytes.hash(hasher);
                true
            }
            None => false,
        }
    }

    /// Writes the content into an empty folder. Two names of one file stay two names of one file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write_to(&self, folder: &Path) -> io::Result<()> {
        self.write_inode(ROOT, folder, &mut BTreeMap::new())
    }

    fn write_inode(
        &self,
        inode: Inode,
        path: &Path,
        written: &mut BTreeMap<Inode, std::path::PathBuf>,
    ) -> io::Result<()> {
        match self.inodes.get(inode) {
            Some(Content::Folder(names)) => {
                if inode != ROOT {
                    fs::create_dir(path)?;
                }
                names.iter().try_for_each(|(name, &child)| self.write_inode(child, &path.join(name), written))
            }
            Some(Content::File(bytes)) => match written.get(&inode) {
                Some(first) => fs::hard_link(first, path),
                None => {
                    written.insert(inode, path.to_owned());
                    fs::write(path, bytes.as_slice())
                }
            },
            None => Err(io::Error::other(format!("there is no inode {inode}"))),
        }
    }
}

pub fn name(name: &std::ffi::OsStr) -> io::Result<String> {
    name.to_str().map(str::to_owned).ok_or_else(|| unsupported(format!("{} is not UTF-8", name.display())))
}

pub fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("the model of a disk has no such thing: {text}"))
}
