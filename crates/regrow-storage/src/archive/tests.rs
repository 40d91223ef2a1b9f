//! Archives written by tar, zip and Python, and archives that are invalid.

use std::path::PathBuf;

use regrow_testkit::archives::{
    ZipMember, crc32, tar, tar_end, tar_header, tar_member, tar_pax, with_tar_checksum, zip, zip_of,
};

use super::*;
use crate::location::ToLocation;
use crate::store::{ByteRange, MemoryBlob, StoreExt};

fn opened(kind: Kind, bytes: Vec<u8>) -> Result<Opened> {
    let blob = MemoryBlob::new(bytes.into(), PathBuf::from("archive"));
    let index = match kind {
        Kind::Tar => tar::read_index(&blob),
        Kind::Zip => zip::read_index(&blob),
    };
    Ok(Opened { blob: Arc::new(blob), index: index?, name: PathBuf::from("archive") })
}

fn storage(kind: Kind, bytes: Vec<u8>) -> Result<ArchiveStorage> {
    let opened = Some(Arc::new(opened(kind, bytes)?));
    Ok(ArchiveStorage { file: Location::local("archive"), kind, opened })
}

/// Reads every member. The result is the bytes or an error, never a panic.
fn read_all(kind: Kind, bytes: Vec<u8>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let store = storage(kind, bytes)?.store(Path::new(""));
    let keys = store.list(b"")?;
    keys.into_iter()
        .map(|key| Ok((key.clone(), store.get(&key, ByteRange::Full)?.unwrap().to_vec())))
        .collect()
}

fn kind_of_error(kind: Kind, bytes: Vec<u8>) -> (ErrorKind, String) {
    let error = read_all(kind, bytes).unwrap_err();
    (error.kind(), error.to_string())
}

fn members(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect()
}

#[test]
fn what_other_programs_packed_is_read() {
    let folder = regrow_testkit::fixtures().join("archives");
    let expected = regrow_testkit::expected("archives");
    let mut count = 0;
    for (archive, files) in expected.as_object().unwrap() {
        let at = find(&Location::local(folder.join(archive))).unwrap().unwrap();
        let store = at.for_reading().unwrap().location.store();
        let files = files.as_object().unwrap();
        let mut names: Vec<_> = files.keys().map(|name| name.as_bytes().to_vec()).collect();
        names.sort();
        assert_eq!(store.list(b"").unwrap(), names, "{archive}");
        for (name, expected) in files {
            let key = name.as_bytes();
            let value = store.get(key, ByteRange::Full);
            if archive.starts_with("sparse") {
                let error = value.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("holes"), "{error}");
                continue;
            }
            let value = value.unwrap().unwrap();
            assert_eq!(expected[0].as_u64().unwrap(), value.len() as u64);
            assert_eq!(expected[1].as_u64().unwrap(), u64::from(crc32(&value)), "{name} in {archive}");
            assert_eq!(store.len_bytes(key).unwrap(), Some(value.len() as u64));
            let blob = store.open(key).unwrap().unwrap();
            // The store and the blob return slices of one map, without a copy.
            let (map, whole) = (blob.map().unwrap().unwrap(), store.map(key).unwrap().unwrap());
            assert!(map == value && map.as_ptr() == whole.as_ptr());
            let mut streamed = Vec::new();
            let each = &mut |piece: &[u8]| {
                streamed.extend_from_slice(piece);
                Ok(())
            };
            assert!(store.stream(key, ByteRange::Full, each).unwrap());
            assert!(streamed == value);
            assert!(store.get(key, ByteRange::Suffix(value.len() as u64 + 1)).is_err());
            count += 1;
        }
        // A symbolic link is listed, but is not followed.
        if archive.contains("tar") && !archive.starts_with("sparse") {
            let link = at.join("run/soft");
            assert!(matches!(link.look().unwrap(), Some(Found::Other("a symbolic link"))));
            assert!(at.join("run/step_1").is_folder() && !at.join("run/step_1/none").exists());
            let folder = at.join("run/step_1").opened().unwrap();
            assert_eq!(folder.list(b"").unwrap(), [&b"data"[..], b"empty"]);
            assert_eq!(folder.list(b"d").unwrap(), [b"data"]);
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn no_cut_archive_gives_a_part() {
    let names = ["a/one", "a/two", "b"];
    for (kind, whole) in [(Kind::Tar, tar(&members(&names))), (Kind::Zip, zip(&members(&names)))] {
        let all = read_all(kind, whole.clone()).unwrap();
        assert_eq!(all.len(), 3);
        for len in 0..whole.len() {
            match read_all(kind, whole[..len].to_vec()) {
                // The end mark of a tar has two blocks of zeros, and one block is enough.
                Ok(found) => assert!(kind == Kind::Tar && found == all && len + 512 >= whole.len(), "{len}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}: {error}"),
            }
        }
    }
}

#[test]
fn any_changed_byte_is_an_error_or_another_name_or_harmless() {
    for (kind, whole) in
        [(Kind::Tar, tar(&members(&["a/one", "b"]))), (Kind::Zip, zip(&members(&["a/one", "b"])))]
    {
        for at in 0..whole.len() {
            for value in [0, 1, b'/', b'.', b'7', 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = begins_any(&bytes);
                let _ = read_all(kind, bytes);
            }
        }
    }
}

fn begins_any(bytes: &[u8]) -> bool {
    Kind::Tar.begins(bytes) || Kind::Zip.begins(bytes)
}

#[test]
fn a_changed_header_of_a_tar_is_noticed() {
    let whole = tar(&members(&["one"]));
    for at in (0..512).chain(1024..whole.len()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        let error = opened(Kind::Tar, bytes).err();
        // The checksum's own field ends in a zero and a space, which readers ignore.
        let is_noticed = error.is_some_and(|error| error.kind() == ErrorKind::Corrupt);
        assert!(is_noticed || (154..156).contains(&at), "byte {at}");
    }
}

#[test]
fn a_tar_says_what_is_wrong() {
    let end = tar_end();
    let with_len = |field: &[u8]| {
        let mut header = tar_header("x", b'0', 0, "");
        header[124..124 + field.len()].copy_from_slice(field);
        [with_tar_checksum(header), end.clone()].concat()
    };
    let pax = |records: &[(&str, &str)]| {
        [tar_pax(b'x', records), tar_member("x", b'0', b"1"), end.clone()].concat()
    };
    use ErrorKind::{Corrupt, Limit, Unsupported};
    for (bytes, kind, says) in [
        (with_len(b"77777777777\0"), Corrupt, "cut short"),
        (with_len(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Corrupt, "cut short"),
        (with_len(&[0x80, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Corrupt, "number"),
        (with_len(&[0xff; 12]), Corrupt, "number"),
        (with_len(b"12x\0"), Corrupt, "number"),
        (pax(&[("size", "18446744073709551615")]), Corrupt, "cut short"),
        (pax(&[("size", "-1")]), Corrupt, "pax"),
        (pax(&[("path", "../x")]), Corrupt, "points outside"),
        (pax(&[("path", "a\0b")]), Corrupt, "zero byte"),
        (pax(&[("path", "")]), Corrupt, "no name"),
        (pax(&[("GNU.sparse.major", "1")]), Unsupported, "sparse"),
        ([tar_member("x", b'x', b"99 path=x\n"), end.clone()].concat(), Corrupt, "pax"),
        ([tar_member("x", b'x', b"0 path=x\n"), end.clone()].concat(), Corrupt, "pax"),
        ([tar_member("x", b'x', b"no record"), end.clone()].concat(), Corrupt, "pax"),
        ([tar_pax(b'x', &[("path", "a")]), end.clone()].concat(), Corrupt, "between"),
        ([tar_pax(b'g', &[("path", "a")]), end.clone()].concat(), Unsupported, "path"),
        ([tar_header("x", b'L', 1 << 30, ""), end.clone()].concat(), Limit, "too long"),
        ([tar_member(&"n".repeat(70_000), b'0', b""), end.clone()].concat(), Limit, "65535"),
        ([tar_header("x", b'1', 0, "nothing"), end.clone()].concat(), Corrupt, "hard link"),
        ([tar_header("x", b'1', 0, "x"), end.clone()].concat(), Corrupt, "hard link"),
        ([tar_header("x", b'M', 0, ""), end.clone()].concat(), Unsupported, "volumes"),
        ([tar_member("a", b'0', b"1"), tar_member("a/b", b'0', b"1"), end.clone()].concat(), Corrupt, "both"),
        (
            [tar_member("a", b'0', b"1"), end.clone(), tar_member("b", b'0', b"1")].concat(),
            Corrupt,
            "end mark",
        ),
        (tar_member("a", b'0', b"1"), Corrupt, "cut short"),
        (b"x".repeat(1024), Corrupt, "number"),
    ] {
        let (found, text) = kind_of_error(Kind::Tar, bytes);
        assert_eq!(found, kind, "{text}");
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn a_tar_may_hold_all_kinds_of_members() {
    let bytes = [
        tar_pax(b'g', &[("comment", "0123")]),
        tar_member("./", b'5', b""),
        tar_member("pipe", b'6', b""),
        tar_member("old_folder/", b'\0', b""),
        tar_member("twice", b'0', b"the first"),
        tar_member("vendor", b'Z', b"unknown type"),
        tar_member("twice", b'0', b"the second"),
        tar_header("hard", b'1', 0, "./twice"),
        tar_pax(b'x', &[("path", "/named/by/pax"), ("mtime", "1.5"), ("size", "3")]),
        tar_member("other", b'0', b"abc"),
        tar_end(),
        vec![0; 9000],
    ]
    .concat();
    let found = read_all(Kind::Tar, bytes).unwrap();
    let expected: [(&[u8], &[u8]); 3] =
        [(b"hard", b"the second"), (b"named/by/pax", b"abc"), (b"twice", b"the second")];
    assert!(found.iter().map(|(name, bytes)| (&name[..], &bytes[..])).eq(expected), "{found:?}");
}

#[test]
fn a_zip_says_what_is_wrong() {
    let member = ZipMember::stored("x/y", b"0123456789");
    use ErrorKind::{Corrupt, Unsupported};
    for (members, kind, says) in [
        (vec![ZipMember { method: 8, bytes: b"\x03\0", ..member.clone() }], Unsupported, "compressed"),
        (vec![ZipMember { method: 12, ..member.clone() }], Unsupported, "method 12"),
        (vec![ZipMember { flags: 1, ..member.clone() }], Unsupported, "encrypted"),
        (vec![member.clone(), member.clone()], Corrupt, "twice"),
        (vec![member.clone(), ZipMember { name: "./x//y", ..member.clone() }], Corrupt, "twice"),
        (vec![member.clone(), ZipMember { name: "x", ..member.clone() }], Corrupt, "both"),
        (vec![ZipMember { name: "../x", ..member.clone() }], Corrupt, "points outside"),
        (vec![ZipMember { name: "", ..member.clone() }], Corrupt, "no name"),
        (
            vec![member.clone(), ZipMember { name: "z", offset: Some(0), ..member.clone() }],
            Corrupt,
            "overlaps",
        ),
        (vec![ZipMember { offset: Some(9), ..member.clone() }], Corrupt, "overlaps"),
        (vec![ZipMember { offset: Some(u32::MAX - 1), ..member.clone() }], Corrupt, "overlaps"),
    ] {
        let (found, text) = kind_of_error(Kind::Zip, zip_of(&members));
        assert_eq!(found, kind, "{text}");
        assert!(text.contains(says), "{says}: {text}");
        assert!(says == "no name" || text.contains('x'), "{text}");
    }
    // A compressed member does not keep the other members from being read.
    let readme = ZipMember { name: "README", method: 8, bytes: b"\x03\0", ..member.clone() };
    let store = storage(Kind::Zip, zip_of(&[readme, member.clone()])).unwrap().store(Path::new(""));
    assert_eq!(&store.get(b"x/y", ByteRange::Full).unwrap().unwrap()[..], b"0123456789");
    // The header before the data may be longer than its entry in the directory.
    let long = ZipMember { extra_len: 40, ..member.clone() };
    let found = read_all(Kind::Zip, zip_of(&[long, ZipMember { name: "z", ..member }])).unwrap();
    assert!(found.iter().all(|(_, bytes)| bytes == b"0123456789"));
    let (kind, text) = kind_of_error(Kind::Zip, zip(&[])[..10].to_vec());
    assert_eq!(kind, ErrorKind::Corrupt, "{text}");
}

#[test]
fn paths_lead_into_archives() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let at = |name: &str| Location::local(folder.path().join(name));
    let inner = tar(&members(&["run/x", "run/y/z"]));
    write("a.TAR", &inner);
    write("b.zip", &zip(&[("in/a.tar".to_owned(), inner.clone()), ("top".to_owned(), b"1".to_vec())]));
    write("text.tar", b"no archive");
    write("packed.tar", b"\x1f\x8b\x08\0");
    write(".tar", &inner);
    std::fs::create_dir_all(folder.path().join("folder.zip/b.zip")).unwrap();
    write("folder.zip/c.tar", &inner);
    for path in
        ["plain", "plain/x", "text.tar", "none.zip", "none.zip/x", "folder.zip", "folder.zip/b.zip/x", ".tar"]
    {
        assert!(find(&at(path)).unwrap().is_none(), "{path}");
    }
    for (path, inside) in [
        ("a.TAR", ""),
        ("a.TAR/run/x", "run/x"),
        ("b.zip/top", "top"),
        ("b.zip/in/a.tar/run/y", "run/y"),
        ("b.zip/in/a.tar", ""),
        ("folder.zip/c.tar/run", "run"),
    ] {
        let found = find(&at(path)).unwrap().unwrap();
        assert_eq!(found.path(), Path::new(inside), "{path}");
        assert_eq!(found.describe(), at(path).describe());
        assert!(found.exists(), "{path}");
        assert!(found.leads_to(&found) && !found.leads_to(&at(path)) || inside.is_empty());
        assert!(found.identity().is_some());
    }
    // A path may omit the only folder at the top.
    let short = find(&at("a.TAR/y/z")).unwrap().unwrap();
    assert_eq!(short.for_reading().unwrap().location.path(), Path::new("run/y/z"));
    let whole = find(&at("a.TAR/run/y/z")).unwrap().unwrap();
    assert_eq!(whole.for_reading().unwrap().location.path(), Path::new("run/y/z"));
    let error = find(&at("text.tar/x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let error = find(&at("packed.tar")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("gzip"), "{error}");
    let error = whole.join("..").look().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    for path in ["a.TAR/run/new", "b.zip/new"] {
        let error = refuse_inside(&at(path)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    refuse_inside(&at("a.TAR")).unwrap();
    assert_eq!(whole.store().put(b"x", bytes::Bytes::new()).unwrap_err().kind(), ErrorKind::Unsupported);
    // An archive in a bucket is found in the same way.
    let bucket = "memory://archives-find/runs.tar".to_location().unwrap();
    bucket.parent().store().put(b"runs.tar", inner.into()).unwrap();
    let inside = find(&bucket.join("run/y")).unwrap().unwrap();
    assert_eq!(inside.describe(), Path::new("memory://archives-find/runs.tar/run/y"));
    assert_eq!(inside.entries().unwrap().len(), 1);
}
