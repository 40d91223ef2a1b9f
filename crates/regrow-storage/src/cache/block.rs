//! One block in its own file.
//!
//! ```text
//! byte  0   "regrow cache 1\n\0"
//!      16   digest of the identity (BLAKE3, 32 bytes): the file's name, once more
//!      48   length of the block, u64, little endian
//!      56   crc32c of the block, u32, little endian
//!      60   zeros
//!      64   the block
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::Source;
use crate::bytes::checksum::crc32c;
use crate::bytes::limits::work_space;
use crate::system::{FileExt, make_private_folders, private_file, reading_no_link};

pub(super) const HEADER_LEN_BYTES: u64 = 64;

const MAGIC: &[u8; 16] = b"regrow cache 1\n\0";

/// The time of use is updated only after this long, because each update writes to the disk.
const USE_AGE_MIN: Duration = Duration::from_secs(60);

/// The digest of everything that distinguishes a block from other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity([u8; 32]);

impl Identity {
    pub(super) fn of(source: &Source<'_>, position: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        for text in [source.storage, source.key, source.tag] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        for number in [source.len_bytes, super::BLOCK_LEN_BYTES, position] {
            hasher.update(&number.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// The file of the block, below the folder of the cache.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        let name = blake3::Hash::from_bytes(self.0).to_hex();
        let (start, _) = name.split_at(2);
        folder.join("blocks").join(start).join(name.as_str())
    }

    fn header(&self, bytes: &[u8]) -> [u8; HEADER_LEN_BYTES as usize] {
        let mut header = [0; HEADER_LEN_BYTES as usize];
        let parts: [&[u8]; 4] =
            [MAGIC, &self.0, &(bytes.len() as u64).to_le_bytes(), &crc32c(bytes).to_le_bytes()];
        for (to, from) in header.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        header
    }
}

/// The result of reading a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Read,
    Missing,
    /// The file of the block was damaged; it is now removed.
    Damaged,
}

/// Fills `out` with bytes of a block of `len_bytes`, from `skip` on. Checks the whole block.
pub(super) fn read(path: &Path, identity: &Identity, len_bytes: u64, skip: usize, out: &mut [u8]) -> Outcome {
    let Ok(file) = reading_no_link().open(path) else {
        return Outcome::Missing;
    };
    let checked = read_checked(&file, identity, len_bytes, skip, out);
    if !matches!(checked, Ok(true)) {
        // If another process has just replaced this block by a good block, this call removes the
        // good block. The block is then fetched once more.
        let _ = fs::remove_file(path);
        return Outcome::Damaged;
    }
    // The time of use decides only the order of removal, so an old time is good enough.
    let is_old = |used: SystemTime| used.elapsed().is_ok_and(|age| age > USE_AGE_MIN);
    if file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(is_old) {
        let _ = touch(path);
    }
    Outcome::Read
}

fn touch(path: &Path) -> io::Result<()> {
    File::options().append(true).open(path)?.set_modified(SystemTime::now())
}

fn read_checked(
    file: &File,
    identity: &Identity,
    len_bytes: u64,
    skip: usize,
    out: &mut [u8],
) -> io::Result<bool> {
    if file.metadata()?.len() != HEADER_LEN_BYTES + len_bytes {
        return Ok(false);
    }
    let mut header = [0; HEADER_LEN_BYTES as usize];
    file.read_exact_at(&mut header, 0)?;
    if out.len() as u64 == len_bytes {
        file.read_exact_at(out, HEADER_LEN_BYTES)?;
        return Ok(identity.header(out) == header);
    }
    let mut block = work_space(len_bytes).map_err(|error| io::Error::other(error.to_string()))?;
    file.read_exact_at(&mut block, HEADER_LEN_BYTES)?;
    let part = block.get(skip..skip.saturating_add(out.len()));
    match part.filter(|_| identity.header(&block) == header) {
        Some(part) => {
            out.copy_from_slice(part);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Writes a block under a temporary name, then renames it. The block is not synced: if a power cut
/// tears it, its checksum no longer matches.
pub(super) fn write(path: &Path, identity: &Identity, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent()
        && !folder.is_dir()
    {
        make_private_folders(folder)?;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let written = private_file().open(&temporary).and_then(|mut file| {
        file.write_all(&identity.header(bytes))?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_blocks_have_their_whole_identity() {
        let sources = [
            ("s3 bucket", "x/y", "\"1\"", 10),
            ("s3 other", "x/y", "\"1\"", 10),
            ("s3 bucket", "x/z", "\"1\"", 10),
            ("s3 bucket", "x/y", "\"2\"", 10),
            ("s3 bucket", "x/y", "\"1\"", 11),
            // The same letters, divided in another way into storage, key and tag.
            ("s3 bucketx", "/y", "\"1\"", 10),
            ("s3 bucket", "x/y\"", "1\"", 10),
        ];
        let mut names = Vec::new();
        for (storage, key, tag, len_bytes) in sources {
            let source = Source { storage, key, tag, len_bytes };
            names.extend([0, 1].map(|position| Identity::of(&source, position).path(Path::new("/cache"))));
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 2 * sources.len());
    }
}
