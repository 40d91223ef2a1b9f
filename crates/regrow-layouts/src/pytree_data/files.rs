//! Finds the data file and the manifest of a path. After a killed save, a file may have a temporary
//! name.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::system::name_of_bytes;
use regrow_storage::local::{Begun, begun, where_is};
use regrow_storage::location::Location;

pub use crate::options::{DATA_SUFFIX, MANIFEST_SUFFIX};

/// The number of bytes read to see whether a file may be a manifest.
const HEAD_LEN_BYTES: u64 = 64 << 10;

/// A manifest and its data.
#[derive(Debug, Clone)]
pub struct Files {
    /// The common prefix of both names.
    stem: Location,
    /// The file with the positions of the arrays.
    pub manifest: Location,
    /// The file with the arrays, unless the manifest refers to another file beside it.
    pub data: Location,
    /// The temporary folder of a save on a local disk that was killed before both files had their
    /// names.
    unfinished: Option<PathBuf>,
}

impl Files {
    /// The files of a location that is the stem of both, or one of them.
    pub fn of(at: &Location) -> Self {
        Self::named(&stem_of(at), DATA_SUFFIX, MANIFEST_SUFFIX)
    }

    /// The files of a stem, with these suffixes.
    pub fn named(stem: &Location, data_suffix: &str, manifest_suffix: &str) -> Self {
        let (manifest, data) = (stem.with_suffix(manifest_suffix), stem.with_suffix(data_suffix));
        Self { stem: stem.clone(), manifest, data, unfinished: None }
    }

    /// The same files at their current locations. If a save was killed before it gave a file its
    /// name, this is the temporary location of the file. See [`commit`](regrow_storage::local).
    #[must_use]
    pub fn located(mut self) -> Self {
        if self.stem.local_path().is_err() || self.manifest.exists() {
            return self;
        }
        if let Some(Begun::Dead(folder)) = begun_at(&self.stem) {
            self.manifest = now_at(self.manifest, &folder);
            self.data = now_at(self.data, &folder);
            self.unfinished = Some(folder);
        }
        self
    }

    pub(super) fn data_named(&self, name: &str) -> Location {
        let at = self.stem.with_name(name);
        match &self.unfinished {
            Some(folder) => now_at(at, folder),
            None => at,
        }
    }

    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Whether the files of a location exist, or at least a manifest that looks like one. False if
    /// another file or folder has the name of the stem.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn are_at(at: &Location) -> Result<bool> {
        let named = Self::of(at);
        let files = named.clone().located();
        let is_manifest = named.manifest.path() == at.path();
        let is_data = named.data.path() == at.path();
        if !files.manifest.is_file() || !is_manifest && !is_data && at.exists() {
            return Ok(false);
        }
        // Two files are a pair, even if the manifest is damaged, unless the path is the data file.
        // Otherwise the manifest must look like one.
        if !is_data && files.data.is_file() {
            return Ok(true);
        }
        looks_like_manifest(&files.manifest)
    }
}

fn stem_of(at: &Location) -> Location {
    let name = at.name().as_encoded_bytes();
    let stem = [DATA_SUFFIX, MANIFEST_SUFFIX].iter().find_map(|suffix| name.strip_suffix(suffix.as_bytes()));
    let Some(stem) = stem.filter(|stem| !stem.is_empty()) else { return at.clone() };
    let stem = at.with_name(name_of_bytes(stem));
    // During a commit, or after a killed commit, the file may not have its name.
    let is_unfinished = || !at.exists() && begun_at(&stem).is_some();
    if at.is_file() || is_unfinished() { stem } else { at.clone() }
}

/// [`begun`] for a stem on a local disk. Other storages have no temporary names.
fn begun_at(stem: &Location) -> Option<Begun> {
    begun(stem.local_path().ok()?)
}

/// The current location of a file on a local disk, if its writer died between two steps.
fn now_at(file: Location, folder: &Path) -> Location {
    match file.local_path() {
        Ok(path) => Location::local(where_is(path, folder)),
        Err(_) => file,
    }
}

/// Whether a file begins like a list and has the words of a manifest, or is an empty list: a model
/// without arrays.
fn looks_like_manifest(file: &Location) -> Result<bool> {
    let Some(head) = file.read_beginning(HEAD_LEN_BYTES)? else { return Ok(false) };
    let has = |word: &str| head.windows(word.len()).any(|part| part == word.as_bytes());
    if head.trim_ascii() == b"[]" {
        return Ok(true);
    }
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    Ok(matches!(first, Some(b'[' | b'(' | b'#')) && ["path", "dtype", "nbytes"].into_iter().all(has))
}

/// How long a reader waits for a commit of both files, which takes a few syncs.
const COMMIT_WAIT: Duration = Duration::from_secs(10);

const COMMIT_PACE: Duration = Duration::from_millis(1);

/// Waits for the end of a running commit of the files `at` a location, so that the caller can look
/// for the checkpoint again. Returns an error if the commit takes longer than `COMMIT_WAIT`.
pub fn unfinished(at: &Location) -> Option<Error> {
    at.local_path().ok()?;
    let since = Instant::now();
    let stem = stem_of(at);
    while matches!(begun_at(&stem)?, Begun::Living) {
        if since.elapsed() > COMMIT_WAIT {
            let what = "this checkpoint is being committed, which takes unusually long";
            return Some(Error::new(ErrorKind::Uncommitted, what).in_file(at).help("try again"));
        }
        std::thread::sleep(COMMIT_PACE);
    }
    None
}

/// Whether the manifest of these files exists, now or after the commit that is under way. A commit
/// removes the old manifest before it adds the new one.
pub fn appears(files: &Files) -> bool {
    comes(&files.stem, || files.clone())
}

/// As `appears`, for a location that is the stem of both files, or one of them. Looks up the files
/// of the location again while it waits, because a commit can change them.
pub(super) fn appears_at(at: &Location) -> bool {
    comes(&stem_of(at), || Files::of(at))
}

/// Waits for the manifest of the files of a stem.
fn comes(stem: &Location, files: impl Fn() -> Files) -> bool {
    let since = Instant::now();
    let is_there = || files().located().manifest.exists();
    // Only on a local disk does a commit remove the old file first.
    let Ok(stem) = stem.local_path() else { return is_there() };
    while !is_there() {
        if !matches!(begun(stem), Some(Begun::Living)) {
            // The file may have appeared before the last commit ended.
            return is_there();
        }
        if since.elapsed() > COMMIT_WAIT {
            return false;
        }
        std::thread::sleep(COMMIT_PACE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_base::monitor::Monitor;
    use regrow_storage::NewSiblings;
    use regrow_storage::local::Staged;

    #[test]
    fn a_pair_goes_by_one_of_its_files_also_while_a_living_writer_has_it_moved() {
        let root = tempfile::tempdir().unwrap();
        let suffixes = [DATA_SUFFIX, MANIFEST_SUFFIX].map(str::to_owned);
        let stage = |stem: &Path| {
            let staged = Staged::of_siblings(stem, &suffixes, true).unwrap();
            for at in 0..suffixes.len() {
                staged.sibling_writer(at, 0, 0).unwrap().finish().unwrap();
            }
            staged
        };
        for moves in 1..4 {
            let stem = root.path().join(format!("model_{moves}"));
            stage(&stem).commit().unwrap();
            let mut staged = stage(&stem);
            let _lock = Location::local(&stem).lock("save", None, &Monitor::new()).unwrap();
            assert!(staged.die_after(moves).is_err());
            // The writer still holds its lock.
            assert!(matches!(begun(&stem), Some(Begun::Living)));
            let file = |suffix: &str| Location::local(&stem).with_suffix(suffix);
            for suffix in [DATA_SUFFIX, MANIFEST_SUFFIX] {
                let files = Files::of(&file(suffix));
                assert!(files.manifest.is_same(&file(MANIFEST_SUFFIX)), "{suffix} after {moves} moves");
            }
        }
    }
}
