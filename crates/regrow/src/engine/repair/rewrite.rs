//! Writes a new version of one file, and renames it over the old one.

use super::guard::Guard;
use crate::error::Result;
use crate::location::Location;
use crate::monitor::Monitor;
use crate::storage::PublishOptions;

/// Fills a buffer with bytes of the new file from an offset on.
pub(super) type Fill<'f> = &'f mut dyn FnMut(u64, &mut [u8]) -> Result<()>;

/// Writes `len_bytes` bytes from `fill` to the file of this name below a folder.
/// Returns `Replaced` if another file has taken the path. After an error the old file is unchanged.
pub(super) fn rewrite_file(
    folder: &Location,
    name: &str,
    len_bytes: u64,
    guard: &Guard<'_>,
    fill: Fill<'_>,
) -> Result<()> {
    let target = folder.join(name);
    let publication = target.publish(PublishOptions::of_one_file(&Monitor::new()))?;
    // After the write the guard checks that the old file is still the file that was read at first.
    let mut writer = publication.files().file()?.single_writer_in_place(len_bytes)?;
    writer.write_with(len_bytes, fill)?;
    if folder.commits_by_marker() {
        // `finish` completes the upload, which is the commit, so check before `finish`.
        guard.check(name)?;
        writer.finish()?;
    } else {
        writer.finish()?;
        guard.check(name)?;
    }
    if let Some(before) = guard.file(name) {
        publication.files().file()?.only_in_place_of(before);
    }
    publication.commit()?;
    guard.has_written()
}
