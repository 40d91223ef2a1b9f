//! Tests of `DirectWriter`: files of many lengths, bytes in any pieces, file systems with and
//! without direct I/O.

use proptest::prelude::*;

use super::super::output::Mode;
use super::*;
use crate::FileWriter;
use crate::buffer::ALIGN_BYTES;
use crate::bytes::checksum::crc32c;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
use crate::monitor::IoPath;
use crate::system::set_direct;

const MIB: usize = 1 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn sums(bytes: &[u8], from: usize) -> Vec<u32> {
    bytes.get(from..).unwrap_or_default().chunks(BLOCK_LEN_BYTES).map(crc32c).collect()
}

/// A folder on disk, and a folder in memory if the system has `/dev/shm`.
fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().unwrap()];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    folders
}

#[test]
fn any_length_arrives_whole() {
    let lengths =
        [0, 1, 4096, 65_535, 65_536, 65_537, 256 << 10, MIB + 3, 4 * MIB, 4 * MIB + 1, 13 * MIB + 17];
    for folder in folders() {
        for len in lengths {
            for (expected, durable) in [(len, true), (0, false), (len * 2 + 70_000, false)] {
                let path = folder.path().join(format!("{len}-{expected}-{durable}"));
                let bytes = pattern(len);
                let options = WriteOptions {
                    expected_len_bytes: expected as u64,
                    checksums_from: 4099,
                    durable,
                    keep_cached: len % 2 == 1,
                };
                let mut writer = DirectWriter::create_with(&path, &options).unwrap();
                writer.write(&bytes).unwrap();
                assert_eq!(writer.offset_bytes(), len as u64);
                let written = writer.finish().unwrap();
                assert_eq!(written.len_bytes, len as u64);
                assert_eq!(written.block_crc32c, sums(&bytes, 4099));
                assert!(fs::read(&path).unwrap() == bytes, "{}", path.display());
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn pieces_do_not_matter(
        cuts in prop::collection::vec((prop_oneof![1..40_usize, 1..3 * MIB], any::<bool>()), 0..12),
        from in 0..2 * MIB,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = pattern(cuts.iter().map(|(len, _)| len).sum());
        let options = WriteOptions { checksums_from: from as u64, durable: false, ..WriteOptions::default() };
        let mut writer = DirectWriter::create_with(&path, &options).unwrap();
        let mut start = 0;
        for (len, filled) in cuts {
            let part = &bytes[start..start + len];
            if filled {
                let mut next = 0;
                writer.write_with(len as u64, &mut |offset, piece| {
                    assert_eq!((offset, offset % 16), (next, 0));
                    assert!(!piece.is_empty() && piece.len() <= PIECE_LEN_BYTES);
                    piece.copy_from_slice(&part[offset as usize..][..piece.len()]);
                    next += piece.len() as u64;
                    Ok(())
                }).unwrap();
                assert_eq!(next, len as u64);
            } else {
                writer.write(part).unwrap();
            }
            start += len;
        }
        let written = writer.finish().unwrap();
        prop_assert_eq!(written.block_crc32c, sums(&bytes, from));
        prop_assert!(fs::read(&path).unwrap() == bytes);
    }
}

#[test]
fn uses_direct_io_where_the_disk_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::create_new(&path).unwrap();
    let offered = set_direct(&file, true).is_ok();
    set_direct(&file, false).unwrap();
    let mut output = Output::new(file, false);
    let mut buffer = Buffer::aligned().unwrap();
    buffer.bytes_mut()[..5].copy_from_slice(b"hello");
    output.write(&mut buffer, 5, 0).unwrap();
    assert_eq!(output.mode == Mode::Direct, offered);
    assert_eq!(output.len_bytes, if offered { ALIGN_BYTES as u64 } else { 5 });
    assert!(fs::read(&path).unwrap().starts_with(b"hello"));
}

/// The part of a file's pages that is in the page cache.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
fn cached_part(path: &Path) -> f64 {
    let file = File::open(path).unwrap();
    let cache = crate::system::PageCache::of(&file);
    let pages: Vec<_> = (0..file.metadata().unwrap().len()).step_by(4096).collect();
    let cached = pages.iter().filter(|&&at| cache.has_page(at).unwrap()).count();
    cached as f64 / pages.len() as f64
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn keep_cached_leaves_the_file_in_the_page_cache() {
    for folder in folders() {
        for (len, durable) in [(70_000, true), (4 * MIB, true), (13 * MIB + 17, true), (13 * MIB, false)] {
            let path = folder.path().join(format!("{len}-{durable}"));
            let options = WriteOptions {
                expected_len_bytes: len as u64,
                durable,
                keep_cached: true,
                ..WriteOptions::default()
            };
            let monitor = Monitor::new();
            let mut writer = DirectWriter::create_with(&path, &options).unwrap().watched(&monitor);
            writer.write(&pattern(len)).unwrap();
            writer.finish().unwrap();
            assert!(cached_part(&path) > 0.95, "{}: {}", path.display(), cached_part(&path));
            assert_eq!(monitor.io_path(), IoPath::PageCache);
            assert!(fs::read(&path).unwrap() == pattern(len), "{}", path.display());
        }
    }
}

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[test]
fn a_large_file_is_not_cached_by_default() {
    for folder in folders() {
        // On some file systems direct writes fail, and in memory they fill the cache.
        let probe = folder.path().join("probe");
        let file = File::create_new(&probe).unwrap();
        let mut buffer = Buffer::aligned().unwrap();
        buffer.bytes_mut().fill(1);
        let is_direct = set_direct(&file, true).and_then(|()| file.write_all_at(buffer.bytes(), 0)).is_ok();
        let bypasses_cache = is_direct && cached_part(&probe) < 0.05;

        let path = folder.path().join("file");
        let mut writer = DirectWriter::create(&path, 13 * MIB as u64, 0).unwrap();
        writer.write(&pattern(13 * MIB)).unwrap();
        writer.finish().unwrap();
        assert_eq!(cached_part(&path) < 0.05, bypasses_cache, "{}", path.display());
    }
}

#[test]
fn a_refused_direct_write_is_repeated_buffered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut output = Output::new(File::create_new(&path).unwrap(), false);
    let mut buffer = Buffer::aligned().unwrap();
    buffer.bytes_mut()[..5].copy_from_slice(b"hello");
    // A write at an odd offset fails with EINVAL, as on a device with larger blocks.
    output.write(&mut buffer, 5, 3).unwrap();
    // Memory file systems take any offset.
    let len = if output.mode == Mode::Direct { 3 + ALIGN_BYTES } else { 8 };
    let written = fs::read(&path).unwrap();
    assert_eq!(written.len(), len);
    assert_eq!(written[..8], *b"\0\0\0hello");
}

#[test]
fn a_full_device_shows_on_a_later_call_and_stays() {
    let device = Path::new("/dev/full");
    let file = fs::OpenOptions::new().write(true).open(device).unwrap();
    let mut writer = DirectWriter::over(file, device, &WriteOptions::default()).unwrap();
    let block = vec![1; MIB];
    let error = (0..64).find_map(|_| writer.write(&block).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(error.place().file.as_deref(), Some(device));
    assert_eq!(writer.write(b"more").unwrap_err().kind(), ErrorKind::Io);
    assert!(writer.finish().is_err());
}

#[test]
fn a_full_device_shows_at_finish_for_a_short_file() {
    for len in [10, MIB, 5 * MIB] {
        let device = Path::new("/dev/full");
        let file = fs::OpenOptions::new().write(true).open(device).unwrap();
        let mut writer = DirectWriter::over(file, device, &WriteOptions::default()).unwrap();
        let result = writer.write(&vec![1; len]).and_then(|()| writer.finish());
        assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    }
}

#[test]
fn the_file_must_not_exist_and_its_folder_must() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"precious").unwrap();
    assert_eq!(DirectWriter::create(&path, 1, 0).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let nowhere = folder.path().join("no/file");
    assert_eq!(DirectWriter::create(&nowhere, 1, 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn more_than_the_disk_holds_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let disk = rustix::fs::statvfs(folder.path()).unwrap();
    let too_much = disk.f_blocks.saturating_mul(disk.f_frsize).saturating_add(1 << 30);
    let error = DirectWriter::create(&path, too_much, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(!path.exists());
}

#[test]
fn an_error_of_the_filler_is_passed_on_and_takes_no_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = DirectWriter::create(&folder.path().join("file"), 0, 0).unwrap();
    let error = writer.write_with(10, &mut |_, _| Err(Error::corrupt("bad chunk"))).unwrap_err();
    assert_eq!(error.what(), "bad chunk");
    writer.write(b"ok").unwrap();
    assert_eq!(writer.finish().unwrap().block_crc32c, [crc32c(b"ok")]);
}

#[test]
fn dropped_unfinished_it_ends_its_thread_and_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let open = || {
        let entries = fs::read_dir("/proc/self/fd").unwrap();
        entries
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .filter(|file| *file == path)
            .count()
    };
    let mut writer = DirectWriter::create(&path, 0, 0).unwrap();
    writer.write(&vec![1; 20 * MIB]).unwrap();
    assert!(matches!(writer.disk, Some(Disk::Worker { .. })));
    // Only the thread has a handle of the file. So the thread has ended when no handle is open.
    assert_eq!(open(), 1);
    drop(writer);
    assert_eq!(open(), 0);
    assert!(path.exists());
}

#[test]
fn bytes_that_take_no_room_count_as_done_too() {
    let folder = tempfile::tempdir().unwrap();
    let monitor = Monitor::new();
    let _running = monitor.begin().unwrap();
    monitor.expect(10);
    let writer = DirectWriter::create(&folder.path().join("file"), 0, 0).unwrap().watched(&monitor);
    let mut writer = FileWriter::new(writer);
    assert!(writer.patches().is_some());
    writer.saved(7).unwrap();
    assert_eq!(monitor.progress().done_bytes, 7);
    writer.write(b"abc").unwrap();
    assert_eq!(writer.offset_bytes(), 3);
    assert_eq!(writer.finish().unwrap().len_bytes, 3);
    assert_eq!(monitor.progress().done_bytes, 10);
}

#[test]
fn a_writer_stops_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let monitor = Monitor::new();
    let mut writer = DirectWriter::create(&folder.path().join("file"), 0, 0).unwrap().watched(&monitor);
    monitor.cancel();
    // The writer returns the error at the latest when its buffers are full.
    let stopped = (0..64).find_map(|_| writer.write(&[0; MIB]).err());
    assert_eq!(stopped.unwrap().kind(), ErrorKind::Cancelled);
}
