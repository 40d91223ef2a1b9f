//! Tests with the test kit's object server: the behaviour of a bucket, and network faults.

use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

use super::*;

/// If `REGROW_TEST_URL` is set, also tests the empty bucket at this URL. `REGROW_TEST_OPTIONS` is
/// then a list of its options: `endpoint_url=http://127.0.0.1:5555,key=test,secret=testtest`.
#[test]
fn the_object_server_does_the_same() {
    if let (Ok(url), Ok(options)) = (std::env::var("REGROW_TEST_URL"), std::env::var("REGROW_TEST_OPTIONS")) {
        let options = options.split(',').map(|option| option.split_once('=').unwrap()).collect();
        exercise(&format!("{url}/t{}", std::process::id()), &options);
    }
    let server = ObjectServer::start().unwrap();
    server.create_bucket("bkt");
    exercise("s3://bkt/folder", &s3_options(&server));
    exercise("gs://bkt/folder", &gcs_options(&server));
    assert_eq!(server.open_uploads(), 0);
}

fn s3_options(server: &ObjectServer) -> StorageOptions {
    StorageOptions::new()
        .with("endpoint_url", server.endpoint())
        .with("key", "AKIDEXAMPLE")
        .with("secret", SECRET)
        .with("region", "us-east-1")
        .with("max_retries", "3")
}

fn gcs_options(server: &ObjectServer) -> StorageOptions {
    StorageOptions::new()
        .with("endpoint_url", server.endpoint())
        .with("token", "anon")
        .with("max_retries", "3")
}

fn both(server: &ObjectServer) -> [Bucket; 2] {
    server.create_bucket("bkt");
    [("s3://bkt", s3_options(server)), ("gs://bkt", gcs_options(server))]
        .map(|(url, options)| Bucket::of_url_in(url, &options, &Surroundings::default()).unwrap().0)
}

#[test]
fn doubts_of_every_kind_are_settled() {
    let server = ObjectServer::start().unwrap();
    for (turn, bucket) in both(&server).iter().enumerate() {
        let faults = [
            Fault::reset_after().on(Op::Put).first(1),
            Fault::reset_before().on(Op::Put).first(2),
            Fault::refuse(Refusal::InternalError).applied().on(Op::Put).first(1),
            Fault::refuse(Refusal::ConditionalRequestConflict).on(Op::Put).first(1),
            Fault::refuse(Refusal::SlowDown).on(Op::Put).first(6),
            Fault::refuse(Refusal::RequestTimeout).on(Op::Put).first(1),
            Fault::error_in_200(Refusal::InternalError).on(Op::Get).first(1),
        ];
        for (number, fault) in faults.into_iter().enumerate() {
            let key = format!("commit-{turn}-{number}");
            let ours = Bytes::from(format!("nonce {number}"));
            server.faults([fault.clone()]);
            let Created::Ours(tag) = bucket.create_settled(&key, &ours).unwrap() else { panic!("{number}") };
            assert_eq!(server.get("bkt", &key).unwrap(), ours);
            server.faults([fault]);
            let newer = Bytes::from(format!("nonce {number} again"));
            let Replaced::Ours(_) = bucket.replace_settled(&key, &tag, &newer).unwrap() else {
                panic!("{number}")
            };
            server.clear_faults();
            let other = bucket.create_settled(&key, &ours).unwrap();
            assert!(matches!(other, Created::Theirs(found, _) if found == newer), "{number}");
        }
    }
}

#[test]
fn a_part_goes_as_soon_as_it_is_full_where_more_are_expected() {
    let server = ObjectServer::start().unwrap();
    for bucket in &both(&server) {
        server.clear_requests();
        let mut upload = bucket.upload("parts", Some(20 << 20)).unwrap();
        upload.part(Bytes::from(vec![1; 8 << 20])).unwrap();
        let began = Instant::now();
        while server.count(Op::UploadPart) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "it is held back");
            std::thread::sleep(Duration::from_millis(1));
        }
        upload.part(Bytes::from(vec![2; 8 << 20])).unwrap();
        upload.finish().unwrap();
        let found = server.get("bkt", "parts").unwrap();
        assert!(found.len() == 16 << 20 && found[0] == 1 && found[(8 << 20) - 1] == 1 && found[8 << 20] == 2);
    }
}

#[test]
fn a_store_without_conditional_writes_takes_a_new_object_after_a_look() {
    let server = ObjectServer::start().unwrap();
    for bucket in &both(&server) {
        let finished = |bytes: &'static [u8], before: Option<&Tag>| {
            server.faults([Fault::status(501, "NotImplemented").on(Op::Put).first(1)]);
            let mut upload = bucket.upload("new", None).unwrap();
            upload.part(bytes.into()).unwrap();
            upload.finish_in_place_of(before).unwrap()
        };
        server.delete("bkt", "new");
        let tag = finished(b"one", None).unwrap();
        assert!(finished(b"two", None).is_none());
        assert_eq!(&*server.get("bkt", "new").unwrap(), b"one");
        assert!(bucket.head("new").unwrap().unwrap().tag.is_same(&tag));
        let newer = finished(b"three", Some(&tag)).unwrap();
        assert!(!newer.is_same(&tag));
        // The object no longer has the tag `tag`, so it is not replaced.
        assert!(finished(b"four", Some(&tag)).is_none());
        assert_eq!(&*server.get("bkt", "new").unwrap(), b"three");
        server.clear_faults();
    }
}

#[test]
fn faults_of_reads_and_uploads_pass() {
    let server = ObjectServer::start().unwrap();
    let data: Bytes = (0..17_000_000_u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    for bucket in &both(&server) {
        server.put("bkt", "big", data.clone());
        let mut out = vec![0; data.len() - 100];
        for fault in [
            Fault::truncate_body(1_000_000).on(Op::Get).first(5),
            Fault::reset_before().on(Op::Get).first(2),
            Fault::refuse(Refusal::SlowDown).on(Op::Get).first(3),
        ] {
            server.faults([fault]);
            server.clear_requests();
            out.fill(0);
            bucket.read_range("big", 100, &mut out, None).unwrap();
            assert!(out == data[100..]);
            assert!((2..=6).contains(&server.count(Op::Get)), "{}", server.count(Op::Get));
        }
        for fault in [
            Fault::refuse(Refusal::SlowDown).on(Op::UploadPart).first(3),
            Fault::reset_before().on(Op::UploadPart).nth(2),
            Fault::reset_after().on(Op::UploadPart).nth(2),
            Fault::reset_after().on(Op::Complete).first(1),
            Fault::refuse(Refusal::InternalError).applied().on(Op::Complete).first(1),
        ] {
            server.delete("bkt", "up");
            server.faults([fault]);
            let mut upload = bucket.upload("up", Some(data.len() as u64)).unwrap();
            upload.part(data.clone()).unwrap();
            let tag = upload.finish().unwrap();
            assert!(server.get("bkt", "up").unwrap() == data);
            assert!(bucket.head("up").unwrap().unwrap().tag.is_same(&tag));
            assert_eq!(server.open_uploads(), 0);
        }
        server.faults([Fault::refuse(Refusal::AccessDenied).on(Op::UploadPart).nth(2)]);
        let mut upload = bucket.upload("denied", Some(data.len() as u64)).unwrap();
        let failed = upload.part(data.clone()).and_then(|()| upload.finish().map(drop));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::PermissionDenied);
        server.clear_faults();
        assert_eq!((server.open_uploads(), server.get("bkt", "denied")), (0, None));

        let mut upload = bucket.upload("small", Some(1 << 20)).unwrap();
        upload.write(&data[..1 << 20]).unwrap();
        upload.finish().unwrap();
        let ops: Vec<Op> =
            server.requests().iter().filter(|asked| asked.key == "small").map(|asked| asked.op).collect();
        assert_eq!(ops, [Op::Put]);
        server.clear_requests();
    }
}

#[test]
fn a_server_of_another_region_or_account_says_so() {
    let server = ObjectServer::builder().region("eu-central-1").start().unwrap();
    server.create_bucket("bkt");
    let (bucket, _) = Bucket::of_url_in("s3://bkt", &s3_options(&server), &Surroundings::default()).unwrap();
    for error in [bucket.head("k").unwrap_err(), bucket.list("k", None).unwrap_err()] {
        assert!(error.to_string().contains("expected eu-central-1, found us-east-1"), "{error}");
    }
    let server = ObjectServer::builder().access_key("another").bearer("token").start().unwrap();
    let [s3, gcs] = both(&server);
    let error = s3.get("k", None).unwrap_err();
    assert!(error.to_string().contains("does not know the access key"), "{error}");
    let error = gcs.get("k", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let server = ObjectServer::builder().deny_list().start().unwrap();
    let [s3, _] = both(&server);
    assert!(s3.list("", None).unwrap_err().to_string().contains("s3:ListBucket"));
}

fn exercise(url: &str, options: &StorageOptions) {
    let options = options.clone().with("part_size", (5 << 20).to_string());
    let (bucket, folder) = Bucket::of_url(url, &options).unwrap();
    let key = |name: &str| format!("{folder}/{name}");
    let odd = ["a/params['w'].0/ü #1", "a/p%2Fq", "a/x y+z&=?", "b"];
    for name in odd {
        let ours = Bytes::from(format!("nonce {name}"));
        let Created::Ours(tag) = bucket.create_settled(&key(name), &ours).unwrap() else { panic!() };
        let Created::Theirs(found, same) =
            bucket.create_settled(&key(name), &Bytes::from_static(b"2")).unwrap()
        else {
            panic!()
        };
        assert!(found == ours && same.is_same(&tag));
        assert!(bucket.head(&key(name)).unwrap().unwrap().tag.is_same(&tag));
        let Replaced::Ours(newer) =
            bucket.replace_settled(&key(name), &tag, &Bytes::from_static(b"0123456789")).unwrap()
        else {
            panic!()
        };
        assert!(matches!(bucket.replace_settled(&key(name), &tag, &ours).unwrap(), Replaced::Theirs(..)));
        let mut out = [0; 4];
        bucket.read_range(&key(name), 3, &mut out, Some(&newer)).unwrap();
        assert_eq!(&out, b"3456");
        for offset in [7, 10, 50] {
            let error = bucket.read_range(&key(name), offset, &mut out, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{offset} {error}");
        }
        assert_eq!(
            bucket.read_range(&key(name), 0, &mut out, Some(&tag)).unwrap_err().kind(),
            ErrorKind::Replaced
        );
    }
    let listing = bucket.list(&folder, None).unwrap();
    let mut wanted: Vec<String> = odd.iter().map(|name| key(name)).collect();
    wanted.sort_unstable();
    assert_eq!(listing.objects.iter().map(|info| info.key.clone()).collect::<Vec<_>>(), wanted);
    assert!(
        listing
            .objects
            .iter()
            .all(|info| { bucket.head(&info.key).unwrap().unwrap().tag.is_same(&info.tag) })
    );
    assert!(bucket.list(&folder, Some(2)).unwrap().is_cut);
    let (objects, folders) = bucket.list_level(&folder).unwrap();
    assert_eq!((objects.len(), folders), (1, vec![key("a")]));

    let data: Bytes = (0..17_000_000_u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    let mut upload = bucket.upload(&key("big"), Some(data.len() as u64)).unwrap();
    for piece in data.chunks(3_000_000) {
        upload.part(data.slice_ref(piece)).unwrap();
    }
    let tag = upload.finish().unwrap();
    bucket.copy(&key("big"), &key("copy")).unwrap();
    let mut out = vec![0; data.len() - 5];
    bucket.read_range(&key("copy"), 5, &mut out, None).unwrap();
    assert!(out == data[5..]);
    assert!(bucket.head(&key("big")).unwrap().unwrap().tag.is_same(&tag));
    for (name, len) in [("new short", 3_000_100), ("new long", data.len())] {
        let finished = |fill: u8, before: Option<&Tag>| {
            let mut upload = bucket.upload(&key(name), Some(len as u64)).unwrap();
            for piece in vec![fill; len].chunks(3_000_000) {
                upload.part(Bytes::copy_from_slice(piece)).unwrap();
            }
            upload.finish_in_place_of(before).unwrap()
        };
        let is_there = |tag: &Tag| bucket.head(&key(name)).unwrap().unwrap().tag.is_same(tag);
        let first = finished(1, None).unwrap();
        assert!(finished(2, None).is_none(), "{name}");
        assert!(is_there(&first), "{name}");
        // The upload replaces the first object. It replaces neither a newer object nor a deleted
        // one.
        let second = finished(3, Some(&first)).unwrap();
        assert!(is_there(&second), "{name}");
        assert!(finished(4, Some(&first)).is_none(), "{name}");
        assert!(is_there(&second), "{name}");
        bucket.delete(&[key(name)]).unwrap();
        assert!(finished(5, Some(&second)).is_none(), "{name}");
        assert!(bucket.head(&key(name)).unwrap().is_none(), "{name}");
    }
    let mut upload = bucket.upload(&key("dropped"), Some(data.len() as u64)).unwrap();
    upload.part(data).unwrap();
    drop(upload);
    assert!(bucket.head(&key("dropped")).unwrap().is_none());

    let race: Vec<_> = (0..8)
        .map(|i| {
            let (bucket, key) = (bucket.clone(), key("race"));
            std::thread::spawn(move || {
                matches!(
                    bucket.create_settled(&key, &Bytes::from(format!("racer {i}"))).unwrap(),
                    Created::Ours(_)
                )
            })
        })
        .collect();
    assert_eq!(race.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum::<usize>(), 1);

    let all: Vec<String> =
        bucket.list(&folder, None).unwrap().objects.into_iter().map(|info| info.key).collect();
    assert_eq!(all.len(), 7);
    bucket.delete(&all).unwrap();
    bucket.delete(&all).unwrap();
    assert!(bucket.list(&folder, None).unwrap().objects.is_empty());

    let nowhere = url.replace("bkt", "no-such-bucket");
    let (nowhere, _) = Bucket::of_url(&nowhere, &options).unwrap();
    assert!(nowhere.list("", None).unwrap_err().to_string().contains("no-such-bucket does not exist"));
    assert!(nowhere.get("k", None).unwrap_err().to_string().contains("no-such-bucket does not exist"));
}
