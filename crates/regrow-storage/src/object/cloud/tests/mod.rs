//! Tests with memory, with a server whose answers the test gives, and with the test kit's object
//! server.

mod calls;
mod doubts;
mod messages;
mod object_server;
mod scripted;

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::list::Listing;
use super::surroundings::Surroundings;
use super::*;
use crate::StorageOptions;

const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYSECRET";
const TOKEN: &str = "FwoGZXIvYXdzSESSIONTOKEN";

#[test]
fn memory_does_what_a_bucket_does() {
    let bucket = Bucket::in_memory();
    assert!(bucket.head("a/x").unwrap().is_none());
    let Put::Done(tag) = bucket.put("a/x", Bytes::from_static(b"0123456789"), PutMode::CreateNew).unwrap()
    else {
        panic!()
    };
    let info = bucket.head("a/x").unwrap().unwrap();
    assert_eq!((info.len_bytes, info.key.as_str()), (10, "a/x"));
    assert!(info.tag.is_same(&tag));
    assert!(matches!(bucket.put("a/x", Bytes::new(), PutMode::CreateNew).unwrap(), Put::Exists));

    let mut out = [0; 4];
    bucket.read_range("a/x", 3, &mut out, Some(&tag)).unwrap();
    assert_eq!(&out, b"3456");
    for offset in [7, 10, 11, u64::MAX] {
        assert_eq!(bucket.read_range("a/x", offset, &mut out, None).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert_eq!(bucket.read_range("a/y", 0, &mut out, None).unwrap_err().kind(), ErrorKind::NotFound);

    let Put::Done(newer) =
        bucket.put("a/x", Bytes::from_static(b"new"), PutMode::Replace(tag.clone())).unwrap()
    else {
        panic!()
    };
    assert!(matches!(bucket.put("a/x", Bytes::new(), PutMode::Replace(tag.clone())).unwrap(), Put::Conflict));
    assert_eq!(
        bucket.read_range("a/x", 0, &mut out[..1], Some(&tag)).unwrap_err().kind(),
        ErrorKind::Replaced
    );
    assert_eq!(bucket.get("a/x", Some(&tag)).unwrap_err().kind(), ErrorKind::Replaced);
    assert_eq!(bucket.get("a/x", Some(&newer)).unwrap().unwrap().0, "new");

    bucket.copy("a/x", "a/b/c").unwrap();
    bucket.copy("a/x", "a/b-c").unwrap();
    bucket.copy("a/x", "ab").unwrap();
    let keys = |listing: Listing| listing.objects.into_iter().map(|info| info.key).collect::<Vec<_>>();
    assert_eq!(keys(bucket.list("a", None).unwrap()), ["a/b-c", "a/b/c", "a/x"]);
    assert_eq!(keys(bucket.list("a/", None).unwrap()).len(), 3);
    assert_eq!(keys(bucket.list("", None).unwrap()).len(), 4);
    let cut = bucket.list("a", Some(2)).unwrap();
    assert!(cut.is_cut && cut.objects.len() == 2);
    assert!(!bucket.list("a", Some(3)).unwrap().is_cut);
    let (objects, folders) = bucket.list_level("a").unwrap();
    assert_eq!(objects.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["a/b-c", "a/x"]);
    assert_eq!(folders, ["a/b"]);

    bucket.delete(&["a/x".to_owned(), "nothing".to_owned(), "a/b/c".to_owned()]).unwrap();
    assert_eq!(keys(bucket.list("a", None).unwrap()), ["a/b-c"]);
    for key in ["", "/a", "a/", "a//b", "a/../b", "./a"] {
        assert_eq!(bucket.head(key).unwrap_err().kind(), ErrorKind::InvalidArgument, "{key}");
    }
}

#[test]
fn memory_is_shared_by_name() {
    let options = StorageOptions::new();
    let (one, key) = Bucket::of_url("memory://shared-name/k", &options).unwrap();
    one.put(&key, Bytes::from_static(b"x"), PutMode::Overwrite).unwrap();
    let (two, _) = Bucket::of_url("memory://shared-name", &options).unwrap();
    assert_eq!(two.get("k", None).unwrap().unwrap().0, "x");
    assert_eq!(two.url_of("k"), "memory://shared-name/k");
}

#[test]
fn uploads_of_every_length_arrive() {
    let options = StorageOptions::new().with("part_size", (5 << 20).to_string()).with("max_concurrency", "2");
    let (bucket, _) = Bucket::of_url("memory://uploads", &options).unwrap();
    let part = 5 << 20;
    for len in [0, 1, part - 1, part, part + 1, 3 * part, 3 * part + 7] {
        let data: Bytes = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut upload = bucket.upload("by/pieces", Some(len as u64)).unwrap();
        assert_eq!(upload.part_len_bytes(), part);
        for from in (0..len).step_by(1_234_567) {
            upload.part(data.slice(from..len.min(from + 1_234_567))).unwrap();
        }
        upload.finish().unwrap();
        assert_eq!(bucket.get("by/pieces", None).unwrap().unwrap().0, data, "{len}");
        let mut upload = bucket.upload("by/slices", Some(len as u64)).unwrap();
        for (i, piece) in data.chunks(777_777).enumerate() {
            match i % 3 {
                0 => upload.part(Bytes::copy_from_slice(piece)).unwrap(),
                _ => upload.write(piece).unwrap(),
            }
        }
        upload.finish().unwrap();
        assert_eq!(bucket.get("by/slices", None).unwrap().unwrap().0, data, "{len}");
    }
    let mut upload = bucket.upload("never", None).unwrap();
    upload.part(Bytes::from(vec![0; 40 << 20])).unwrap();
    drop(upload);
    assert!(bucket.head("never").unwrap().is_none());
}
