//! Tests of `LocalStore`: the rules of every store, and those of files in a folder.

use std::os::unix::fs::symlink;

use super::*;
use crate::StoreExt;
use crate::error::ErrorKind;

fn store() -> (tempfile::TempDir, LocalStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path().join("root"));
    (folder, store)
}

fn span(offset_bytes: u64, len_bytes: u64) -> ByteRange {
    ByteRange::Span { offset_bytes, len_bytes }
}

#[test]
fn what_is_put_is_got() {
    let (_folder, store) = store();
    assert_eq!(store.get_whole(b"a/b").unwrap(), None);
    assert_eq!(store.list(b"").unwrap(), Vec::<Vec<u8>>::new());
    store.put(b"a/b", Bytes::from_static(b"0123456789")).unwrap();
    assert_eq!(store.get_whole(b"a/b").unwrap().unwrap(), "0123456789");
    assert_eq!(store.get(b"a/b", span(2, 3)).unwrap().unwrap(), "234");
    assert_eq!(store.get(b"a/b", span(10, 0)).unwrap().unwrap(), "");
    assert_eq!(store.get(b"a/b", ByteRange::Suffix(2)).unwrap().unwrap(), "89");
    assert_eq!(store.len_bytes(b"a/b").unwrap(), Some(10));
    store.put(b"a/b", Bytes::from_static(b"new")).unwrap();
    assert_eq!(store.get_whole(b"a/b").unwrap().unwrap(), "new");
    store.delete(b"a/b").unwrap();
    store.delete(b"a/b").unwrap();
    assert_eq!(store.get_whole(b"a/b").unwrap(), None);
    assert_eq!(store.len_bytes(b"a/b").unwrap(), None);
}

#[test]
fn folders_and_names_that_cannot_be_are_no_values() {
    let (_folder, store) = store();
    store.put(b"a/b", Bytes::from_static(b"x")).unwrap();
    let long = vec![b'n'; 300];
    for key in [&b"a"[..], b"a/b/c", &long] {
        assert_eq!(store.get_whole(key).unwrap(), None);
        assert_eq!(store.len_bytes(key).unwrap(), None);
        assert!(store.locate(key).unwrap().is_none());
        assert!(store.map(key).unwrap().is_none());
        store.delete(key).unwrap();
    }
    assert!(store.put(b"a", Bytes::new()).is_err());
    assert_eq!(store.list(b"").unwrap(), [b"a/b"]);
}

#[test]
fn a_range_beyond_the_end_is_corrupt_and_allocates_nothing() {
    let (_folder, store) = store();
    store.put(b"a", Bytes::from_static(b"0123")).unwrap();
    for range in [span(0, 5), span(u64::MAX, 2), span(0, 1 << 60), ByteRange::Suffix(5)] {
        let error = store.get(b"a", range).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.place().file.as_deref(), Some(store.describe(b"a").as_path()));
    }
}

#[test]
fn a_vast_sparse_file_is_refused_not_allocated() {
    let (_folder, store) = store();
    store.put(b"a", Bytes::new()).unwrap();
    let file = OpenOptions::new().write(true).open(store.describe(b"a")).unwrap();
    if file.set_len(1 << 43).is_ok() {
        assert_eq!(store.get_whole(b"a").unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(store.get(b"a", span((1 << 43) - 2, 2)).unwrap().unwrap(), &[0, 0][..]);
    }
}

#[test]
fn keys_that_leave_the_folder_are_refused_by_every_call() {
    let (_folder, store) = store();
    for key in [&b""[..], b"/etc/passwd", b"../x", b"a/../../x", b"a\0"] {
        let kinds = [
            store.get_whole(key).unwrap_err().kind(),
            store.put(key, Bytes::new()).unwrap_err().kind(),
            store.delete(key).unwrap_err().kind(),
            store.len_bytes(key).unwrap_err().kind(),
            store.locate(key).unwrap_err().kind(),
            store.map(key).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidArgument; 6], "{key:?}");
    }
    assert_eq!(store.list(b"../").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.put(b"x.__lock", Bytes::new()).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn lists_files_sorted_as_bytes_below_any_prefix() {
    let (_folder, store) = store();
    for key in ["b", "a/c", "a.d", "a/b/x", "a0", "ab/c"] {
        store.put(key.as_bytes(), Bytes::new()).unwrap();
    }
    fs::write(store.root().join("a/left.__lock"), b"").unwrap();
    let list = |prefix: &str| -> Vec<String> {
        let keys = store.list(prefix.as_bytes()).unwrap();
        keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    };
    assert_eq!(list(""), ["a.d", "a/b/x", "a/c", "a0", "ab/c", "b"]);
    assert_eq!(list("a"), ["a.d", "a/b/x", "a/c", "a0", "ab/c"]);
    assert_eq!(list("a/"), ["a/b/x", "a/c"]);
    assert_eq!(list("a/b"), ["a/b/x"]);
    assert_eq!(list("a/b/x"), ["a/b/x"]);
    assert!(list("nothing/here").is_empty());
}

#[test]
fn lists_links_to_files_inside_only() {
    let (folder, store) = store();
    store.put(b"d/real", Bytes::from_static(b"x")).unwrap();
    fs::create_dir(folder.path().join("outside")).unwrap();
    fs::write(folder.path().join("outside/secret"), b"y").unwrap();
    symlink("d/real", store.root().join("inside")).unwrap();
    symlink("../outside/secret", store.root().join("out")).unwrap();
    symlink("../outside", store.root().join("out_folder")).unwrap();
    symlink(".", store.root().join("loop")).unwrap();
    symlink("nowhere", store.root().join("dangling")).unwrap();
    assert_eq!(store.list(b"").unwrap(), [&b"d/real"[..], b"inside"]);
    assert_eq!(store.get_whole(b"inside").unwrap().unwrap(), "x");
    assert_eq!(store.get_whole(b"dangling").unwrap(), None);
}

#[test]
fn a_named_pipe_is_no_value_and_does_not_block() {
    let (_folder, store) = store();
    fs::create_dir(store.root()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(store.root().join("pipe")).status();
    assert!(made.unwrap().success());
    assert_eq!(store.get_whole(b"pipe").unwrap(), None);
    assert!(store.list(b"").unwrap().is_empty());
}

#[test]
fn many_files_and_many_reads() {
    let (_folder, store) = store();
    fs::create_dir(store.root()).unwrap();
    for i in 0..200_u8 {
        fs::write(store.root().join(format!("f{i}")), [i; 16]).unwrap();
    }
    for round in 0..3_u64 {
        for i in 0..200_u8 {
            let got = store.get(format!("f{i}").as_bytes(), span(round, 2)).unwrap().unwrap();
            assert_eq!(got, &[i; 2][..]);
        }
    }
    let open = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(store.root()))
        .count();
    assert_eq!(open, super::files::OPEN_FILES_MAX);
}

#[test]
fn a_file_that_shrinks_or_is_replaced_gives_an_error_or_the_old_bytes() {
    let (_folder, store) = store();
    store.put(b"a", Bytes::from(vec![7; 8192])).unwrap();
    assert_eq!(store.get(b"a", span(0, 1)).unwrap().unwrap(), &[7][..]);
    fs::write(store.root().join("b"), b"new").unwrap();
    fs::rename(store.root().join("b"), store.describe(b"a")).unwrap();
    assert_eq!(store.get_whole(b"a").unwrap().unwrap().len(), 8192);
    let fresh = LocalStore::new(store.root());
    assert_eq!(fresh.get_whole(b"a").unwrap().unwrap(), "new");
    OpenOptions::new().write(true).open(store.describe(b"a")).unwrap().set_len(1).unwrap();
    assert_eq!(fresh.get(b"a", span(0, 3)).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn maps_are_shared_and_outlive_the_store() {
    let (_folder, store) = store();
    store.put(b"a", Bytes::from(vec![3; 300_000])).unwrap();
    store.put(b"empty", Bytes::new()).unwrap();
    let map = store.map(b"a").unwrap().unwrap();
    assert_eq!(store.clone().map(b"a").unwrap().unwrap().as_ptr(), map.as_ptr());
    advise(&map, Access::Sequential);
    advise(&map[1..], Access::Soon);
    assert_eq!(store.map(b"empty").unwrap().unwrap(), "");
    assert!(store.map(b"none").unwrap().is_none());
    store.delete(b"a").unwrap();
    drop(store);
    assert!(map.iter().all(|&byte| byte == 3));
}

#[test]
fn located_values_can_be_read_where_they_lie() {
    let (_folder, store) = store();
    store.put(b"a/b", Bytes::from_static(b"0123")).unwrap();
    let Some(Located::At(place)) = store.locate(b"a/b").unwrap() else { panic!("not a span") };
    assert_eq!((place.offset_bytes, place.len_bytes), (0, 4));
    assert_eq!(place.read().unwrap(), "0123");
    assert!(store.locate(b"a").unwrap().is_none());
}

#[test]
fn a_failed_put_leaves_the_old_value_and_no_litter() {
    let (_folder, store) = store();
    store.put(b"a/b", Bytes::from_static(b"x")).unwrap();
    assert!(store.put(b"a", Bytes::from_static(b"y")).is_err());
    assert_eq!(fs::read_dir(store.root()).unwrap().count(), 1);
}

#[test]
fn a_stream_is_what_a_read_gives_from_the_cache_and_from_the_disk() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = LocalStore::new(folder.path());
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    store.put(b"long", bytes.clone().into()).unwrap();
    let streamed = |range| {
        let (mut found, mut longest) = (Vec::new(), 0);
        let each = &mut |piece: &[u8]| {
            longest = longest.max(piece.len());
            found.extend_from_slice(piece);
            Ok(())
        };
        assert!(store.stream(b"long", range, each).unwrap());
        (found, longest)
    };
    for is_cold in [true, false] {
        for (offset, len) in
            [(0, 9_000_001), (1, 9_000_000), (4095, 262_144), (5_000_001, 4_000_000), (7, 100), (9, 0)]
        {
            if is_cold {
                let file = fs::File::open(folder.path().join("long")).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            } else {
                store.get_whole(b"long").unwrap();
            }
            let (found, longest) = streamed(span(offset, len));
            assert!(found == bytes[offset as usize..(offset + len) as usize], "{offset} {len}");
            // Bytes in the page cache arrive in short pieces, bytes on disk in long pieces. The
            // portable engine cannot ask the page cache, and treats all bytes as bytes on disk.
            let is_cold = is_cold || cfg!(feature = "portable");
            assert_eq!(longest > 1 << 20, is_cold && len > 1 << 20, "{offset} {len}");
        }
    }
    assert!(!store.stream(b"none", ByteRange::Full, &mut |_| Ok(())).unwrap());
    let beyond = store.stream(b"long", span(9_000_000, 2), &mut |_| Ok(())).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::Corrupt);
    let stopped = store.stream(b"long", ByteRange::Full, &mut |_| Err(Error::invalid("enough"))).unwrap_err();
    assert_eq!(stopped.what(), "enough");
}

#[test]
fn a_stream_goes_on_with_the_file_that_was_opened() {
    let (_folder, store) = store();
    store.put(b"key", vec![1; 1 << 20].into()).unwrap();
    assert_eq!(store.get(b"key", span(0, 1)).unwrap().unwrap(), vec![1]);
    let other = store.root().join("other");
    fs::write(&other, vec![2; 1 << 20]).unwrap();
    fs::rename(&other, store.root().join("key")).unwrap();
    let each = &mut |piece: &[u8]| {
        assert!(piece.iter().all(|&byte| byte == 1));
        Ok(())
    };
    assert!(store.stream(b"key", ByteRange::Full, each).unwrap());
}

#[test]
fn of_many_who_put_a_value_where_there_is_none_one_does() {
    let (folder, store) = store();
    let value = |at: usize| Bytes::from(vec![at as u8; 100_000]);
    let won: Vec<bool> = std::thread::scope(|scope| {
        let put = |at| {
            let other = LocalStore::new(folder.path().join("root"));
            scope.spawn(move || {
                let won = other.put_if_absent(b"a/b", value(at)).unwrap();
                let found = other.get_whole(b"a/b").unwrap().unwrap();
                assert_eq!(
                    won,
                    found == value(at),
                    "the process that has put it gets its own value, all of it"
                );
                won
            })
        };
        let threads: Vec<_> = (0..8).map(put).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(won.iter().filter(|&&won| won).count(), 1);
    let names: Vec<_> = std::fs::read_dir(folder.path().join("root/a")).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file is left: {names:?}");
    store.delete(b"a/b").unwrap();
    assert!(store.put_if_absent(b"a/b", Bytes::from_static(b"new")).unwrap());
    assert!(store.put_if_absent(b"../x", Bytes::new()).is_err());
}

#[test]
fn what_is_deleted_durably_is_gone_and_need_not_have_been_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    std::fs::create_dir(folder.path().join("d")).unwrap();
    for name in ["a", "d/b", "kept"] {
        std::fs::write(folder.path().join(name), b"...").unwrap();
    }
    store.delete_durably(&[b"a", b"d/b", b"d/not_there", b"no_folder/c"]).unwrap();
    let left: Vec<Vec<u8>> = store.list(b"").unwrap();
    assert_eq!(left, [b"kept".to_vec()]);
}
