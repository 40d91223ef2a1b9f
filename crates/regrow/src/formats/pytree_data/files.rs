//! Which two files a path means.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::commit::{Begun, begun, is_under_way, where_is};
use crate::error::{Error, ErrorKind, Result};

/// How the name of a data file ends.
pub const DATA_SUFFIX: &str = ".data";

/// How the name of a manifest ends.
pub const MANIFEST_SUFFIX: &str = ".manifest";

/// What is read of a file to see whether it may be a manifest.
const HEAD_LEN_BYTES: u64 = 64 << 10;

/// A manifest and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// What both names begin with.
    stem: PathBuf,
    /// Says where the arrays lie.
    pub manifest: PathBuf,
    /// Has the arrays, unless the manifest names another file beside it.
    pub data: PathBuf,
    /// The temporary folder of a save that was killed before both files had their names.
    unfinished: Option<PathBuf>,
}

impl Files {
    /// The files of a path that is the stem of both, or one of them.
    pub fn of(path: &Path) -> Self {
        Self::named(&stem_of(path), DATA_SUFFIX, MANIFEST_SUFFIX)
    }

    /// The files of a stem, by the ends of their names.
    pub fn named(stem: &Path, data_suffix: &str, manifest_suffix: &str) -> Self {
        let (manifest, data) = (with_suffix(stem, manifest_suffix), with_suffix(stem, data_suffix));
        Self { stem: stem.to_owned(), manifest, data, unfinished: None }
    }

    /// The same files where they are now: under their names, or, if the save that was to name them was killed before the
    /// last step, wherever it has left each. See [`commit`](crate::commit).
    #[must_use]
    pub fn located(mut self) -> Self {
        if self.manifest.exists() {
            return self;
        }
        if let Some(Begun::Dead(folder)) = begun(&self.stem) {
            self.manifest = where_is(&self.manifest, &folder);
            self.data = where_is(&self.data, &folder);
            self.unfinished = Some(folder);
        }
        self
    }

    /// The data file of another name.
    pub(super) fn data_named(&self, name: &str) -> PathBuf {
        let path = self.stem.with_file_name(name);
        self.unfinished.as_ref().map_or(path.clone(), |folder| where_is(&path, folder))
    }

    /// Whether the save of these files was killed before they had their names.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Whether they are there, or at least a manifest that looks like one. The stem itself names nothing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn are_at(path: &Path) -> Result<bool> {
        let named = Self::of(path);
        let files = named.clone().located();
        if !files.manifest.is_file() || named.manifest != path && named.data != path && path.exists() {
            return Ok(false);
        }
        // Two files named so are a pair, even if the manifest is damaged; of one alone more is asked.
        if files.data.is_file() && named.data != path {
            return Ok(true);
        }
        looks_like_manifest(&files.manifest)
    }
}

/// `path` with more text at the end of its name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn stem_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_file_of_ours = [DATA_SUFFIX, MANIFEST_SUFFIX]
        .iter()
        .any(|suffix| name.len() > suffix.len() && name.ends_with(suffix.as_bytes()));
    if !is_file_of_ours {
        return path.to_owned();
    }
    let stem = path.with_extension("");
    // Whether its writer lives or not: in the midst of a commit the file may have no name, and will have it again.
    let is_unfinished = || !path.exists() && begun(&stem).is_some();
    if path.is_file() || is_unfinished() { stem } else { path.to_owned() }
}

/// A list of dicts, with words that only a manifest has together; or an empty list: a model without arrays.
fn looks_like_manifest(file: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(HEAD_LEN_BYTES).read_to_end(&mut head));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("cannot read", file, error)),
    }
    let has = |word: &str| head.windows(word.len()).any(|part| part == word.as_bytes());
    if head.trim_ascii() == b"[]" {
        return Ok(true);
    }
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    Ok(matches!(first, Some(b'[' | b'(' | b'#')) && ["path", "dtype", "nbytes"].into_iter().all(has))
}

/// How long a reader waits for a commit of both files, which takes a few syncs.
const COMMIT_WAIT: Duration = Duration::from_secs(10);

/// How often it looks.
const COMMIT_PACE: Duration = Duration::from_millis(1);

/// Why there is nothing at `path`, where a save of files named after it stands between its two files. While its
/// writer lives, this waits for the end: who looks again may find the checkpoint.
pub(crate) fn unfinished(path: &Path) -> Option<Error> {
    let since = Instant::now();
    let stem = stem_of(path);
    while matches!(begun(&stem)?, Begun::Living) {
        if since.elapsed() > COMMIT_WAIT {
            let what = "this checkpoint is being committed, and that takes long";
            return Some(Error::new(ErrorKind::Uncommitted, what).in_file(path).help("try again"));
        }
        std::thread::sleep(COMMIT_PACE);
    }
    None
}

/// Whether the manifest is there, now or after the commits into its folder that are under way, if any: each has the
/// old one go before the new one comes.
pub fn appears(files: &Files) -> bool {
    comes(&files.manifest, || files.clone())
}

/// The same of a path that is the stem of both files, or one of them. Which it is can be told only while one of them is
/// there or a commit is under way, and so is looked at each time.
pub(crate) fn appears_at(path: &Path) -> bool {
    comes(path, || Files::of(path))
}

/// `beside` is anything in the folder of the files.
fn comes(beside: &Path, files: impl Fn() -> Files) -> bool {
    let since = Instant::now();
    let is_there = || files().located().manifest.exists();
    while !is_there() {
        if !is_under_way(beside) {
            // It may have come before the last commit ended.
            return is_there();
        }
        if since.elapsed() > COMMIT_WAIT {
            return false;
        }
        std::thread::sleep(COMMIT_PACE);
    }
    true
}
