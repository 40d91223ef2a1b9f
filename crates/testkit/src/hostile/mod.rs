//! Hostile checkpoints: changed files with corrected checksums, so that readers go on to the code
//! after the checksums.
//!
//! | module | does |
//! |---|---|
//! | `mutation` | changes files by a sequence of bytes: the input of a fuzzer or a generator |
//! | `sums` | computes the checksums and lengths of layouts again |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod mutation;
mod sums;

pub use mutation::mutate;
pub use sums::Sums;

/// The files of a checkpoint by their paths, with slashes between names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Which checksums are corrected after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// No checksums.
    Nothing,
    /// Checksums that a document has of itself.
    Documents,
    /// All checksums, and the lengths of other files in documents.
    All,
}

/// A checkpoint on disk that is changed many times, always from its original state.
#[derive(Debug)]
pub struct Victim {
    root: PathBuf,
    files: Files,
    sums: Sums,
    /// The paths of files that differ from the original now.
    changed: Vec<String>,
}

impl Victim {
    /// Reads all files below `root`, which contains only this checkpoint.
    pub fn new(root: &Path) -> io::Result<Self> {
        let mut files: Files = crate::archives::files_below(root)?.into_iter().collect();
        sums::forget_digests(&mut files);
        let sums = Sums::of(&files);
        let mut victim = Self { root: root.to_owned(), files: Files::new(), sums, changed: Vec::new() };
        victim.write(files.clone())?;
        (victim.files, victim.changed) = (files, Vec::new());
        Ok(victim)
    }

    /// The original files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Changes the files on disk according to `choices`. The first byte decides which checksums are
    /// corrected.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn change(&mut self, choices: &[u8]) -> io::Result<()> {
        let (first, rest) = choices.split_first().unwrap_or((&0, &[]));
        let repair = match first % 8 {
            0 => Repair::Nothing,
            1 => Repair::Documents,
            _ => Repair::All,
        };
        let mut files = self.files.clone();
        mutate(&mut files, rest);
        self.sums.put_right(&mut files, repair);
        self.replace(files)
    }

    /// Replaces the files on disk, without corrected checksums.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn replace(&mut self, files: Files) -> io::Result<()> {
        self.restore()?;
        self.write(files)
    }

    /// Restores all original files.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn restore(&mut self) -> io::Result<()> {
        for name in std::mem::take(&mut self.changed) {
            let path = self.root.join(&name);
            let _ = fs::remove_file(&path);
            if let Some(bytes) = self.files.get(&name) {
                rewrite_file(&path, bytes)?;
            }
        }
        Ok(())
    }

    /// Writes files that differ from those on disk. Each gets a new inode, because a changed file
    /// would change under its maps.
    fn write(&mut self, files: Files) -> io::Result<()> {
        for name in self.files.keys().filter(|name| !files.contains_key(*name)) {
            fs::remove_file(self.root.join(name))?;
            self.changed.push(name.clone());
        }
        for (name, bytes) in files.iter().filter(|(name, bytes)| self.files.get(*name) != Some(*bytes)) {
            let path = self.root.join(name);
            let _ = fs::remove_file(&path);
            self.changed.push(name.clone());
            rewrite_file(&path, bytes)?;
        }
        Ok(())
    }
}

fn rewrite_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)
}

/// Pseudo-random bytes from a seed, for mutations without a fuzzer.
pub fn choices(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ number >> 31).to_le_bytes()
    };
    std::iter::repeat_with(&mut next).take(len.div_ceil(8)).flatten().take(len).collect()
}
