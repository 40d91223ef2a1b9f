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
    // After the write the guard checks that the old file is still the file that was read at first.
    let monitor = Monitor::new();
    let options = PublishOptions { in_place: true, ..PublishOptions::of_overwrite(&monitor) };
    let publication = target.publish_file(options)?;
    let mut writer = publication.single_writer(len_bytes, 0)?;
    writer.write_with(len_bytes, fill)?;
    if folder.commits_by_marker() {
        // `finish` completes the upload, which is the commit, so check before `finish`.
        guard.check(name)?;
        writer.finish()?;
    } else {
        writer.finish()?;
        guard.check(name)?;
    }
    publication.commit()?;
    guard.has_written()
}
