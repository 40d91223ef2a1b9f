//! Tests of uploads in parts, of calls in foreign runtimes, of calls after a fork, and of listings.

use std::sync::Mutex;

use super::scripted::{Reply, Server, TAG, xml};
use super::*;

#[test]
fn an_upload_in_parts_is_one_object_or_nothing() {
    // The first upload has several parts, and the answer to its completion is lost. A part of the
    // second upload is refused, so this upload is aborted.
    let state = Arc::new(Mutex::new((BTreeMap::<u32, usize>::new(), None::<usize>, 0, 0)));
    let seen = state.clone();
    let server = Server::new(move |asked| {
        let (parts, whole, completes, aborts) = &mut *state.lock().unwrap();
        let number = asked
            .target
            .split("partNumber=")
            .nth(1)
            .map(|rest| rest.split('&').next().unwrap().parse::<u32>().unwrap());
        match (asked.method.as_str(), number) {
            ("POST", _) if asked.target.contains("uploads") => Reply::Say(
                200,
                &[],
                b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
                    .to_vec(),
            ),
            ("PUT", Some(number)) if asked.target.contains("/bad") && number == 2 => {
                Reply::Say(403, &[], xml("AccessDenied", ""))
            }
            ("PUT", Some(number)) => {
                parts.insert(number, asked.body.len());
                Reply::Say(200, TAG, Vec::new())
            }
            ("POST", _) => {
                *completes += 1;
                if whole.is_some() {
                    return Reply::Say(404, &[], xml("NoSuchUpload", ""));
                }
                *whole = Some(parts.values().sum());
                Reply::HangUp
            }
            ("DELETE", _) => {
                *aborts += 1;
                Reply::Say(204, &[], Vec::new())
            }
            ("HEAD", _) => match whole {
                Some(len) => Reply::Say(200, TAG, vec![0; *len]),
                None => Reply::Say(404, &[], Vec::new()),
            },
            _ => Reply::Say(500, &[], Vec::new()),
        }
    });
    let part = 5 << 20;
    let options = server.options().with("part_size", part.to_string()).with("max_retries", "1");
    let bucket = server.bucket_with(options);
    let data = Bytes::from(vec![7; 3 * part + 10]);
    let mut upload = bucket.upload("good", Some(data.len() as u64)).unwrap();
    upload.part(data.clone()).unwrap();
    upload.finish().unwrap();
    {
        let seen = seen.lock().unwrap();
        assert_eq!(seen.0.values().copied().collect::<Vec<_>>(), [part, part, part, 10]);
        assert_eq!((seen.2 >= 1, seen.3), (true, 0));
    }
    let mut upload = bucket.upload("bad", Some(data.len() as u64)).unwrap();
    let failed = upload.part(data).and_then(|()| upload.finish().map(drop));
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(seen.lock().unwrap().3, 1);
}

#[test]
fn calls_work_inside_a_runtime_of_another_library() {
    let server = Server::new(|_| Reply::Say(200, TAG, b"fine".to_vec()));
    let bucket = server.bucket();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(async { bucket.get("k", None).unwrap().unwrap().0 });
    assert_eq!(found, "fine");
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let bucket = bucket.clone();
            std::thread::spawn(move || bucket.get("k", None).unwrap().unwrap().0)
        })
        .collect();
    threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), "fine"));
}

#[test]
fn a_forked_child_makes_its_own_connections() {
    let server = Server::new(|_| Reply::Say(200, TAG, b"fine".to_vec()));
    let bucket = server.bucket();
    bucket.get("k", None).unwrap();
    // SAFETY: the child only asks the bucket and ends without running any destructor or hook.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_fine = matches!(bucket.get("k", None), Ok(Some((bytes, _))) if bytes == "fine");
        // SAFETY: `_exit` only ends this process.
        unsafe { libc::_exit(if is_fine { 7 } else { 8 }) };
    }
    let mut status = 0;
    let until = Instant::now() + Duration::from_secs(20);
    // SAFETY: `status` is a place for one int.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            // SAFETY: `child` is a child of this process that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(libc::WEXITSTATUS(status), 7);
    bucket.get("k", None).unwrap();
}

#[test]
fn listings_are_read_page_by_page_without_markers() {
    let mut pages = 0;
    let server = Server::new(move |asked| {
        assert!(asked.target.contains("prefix=a%2F"), "{}", asked.target);
        pages += 1;
        let entry = |key: &str, size: u32| {
            format!(
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;t&quot;</ETag>\
                 <LastModified>2026-11-22T12:00:00.000Z</LastModified></Contents>"
            )
        };
        let body = match pages {
            1 => {
                assert!(asked.target.contains("max-keys=1000"), "{}", asked.target);
                let entries = entry("a/", 0) + &entry("a/b-c", 1) + &entry("a/b/", 0) + &entry("a/b/c", 5);
                format!(
                    "<IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken>{entries}"
                )
            }
            2 => {
                assert!(asked.target.contains("continuation-token=n"), "{}", asked.target);
                entry("a/empty", 0)
            }
            _ => {
                assert!(asked.target.contains("max-keys=2"), "{}", asked.target);
                entry("a/b-c", 1) + "<NextContinuationToken>n</NextContinuationToken>" + &entry("a/x", 1)
            }
        };
        Reply::Say(200, &[], format!("<ListBucketResult>{body}</ListBucketResult>").into_bytes())
    });
    let bucket = server.bucket();
    let listing = bucket.list("a", None).unwrap();
    let keys: Vec<_> = listing.objects.iter().map(|info| (info.key.as_str(), info.len_bytes)).collect();
    assert_eq!(keys, [("a/b-c", 1), ("a/b/c", 5), ("a/empty", 0)]);
    assert!(bucket.list("a", Some(1)).unwrap().is_cut);
}

#[test]
fn a_list_of_azure_holds_what_has_just_the_name_that_was_asked_for() {
    const HEADERS: &[(&str, &str)] = &[("etag", "\"tag\""), ("content-type", "application/xml")];
    let server = Server::new(|asked| match asked.method.as_str() {
        "HEAD" => Reply::Say(200, HEADERS, vec![0; 5]),
        _ => {
            let blob = |name: &str| {
                format!(
                    "<Blob><Name>{name}</Name><Properties><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT\
                     </Last-Modified><Etag>\"tag\"</Etag><Content-Length>5</Content-Length><Content-Type>a/b\
                     </Content-Type></Properties></Blob>"
                )
            };
            let blobs = blob("x.npz") + &blob("x.npz.1");
            let list = format!(
                "<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker></NextMarker></EnumerationResults>"
            );
            Reply::Say(200, HEADERS, list.into_bytes())
        }
    });
    let options = StorageOptions::new()
        .with("endpoint_url", format!("http://127.0.0.1:{}/account", server.port))
        .with("account_name", "account")
        .with("account_key", "c2VjcmV0LW9mLXRoZS1hY2NvdW50");
    let bucket = Bucket::of_url_in("az://container/x.npz", &options, &Surroundings::default()).unwrap().0;
    let (objects, is_whole) = bucket.list_beginning("x.npz", true).unwrap();
    let mut keys: Vec<_> = objects.iter().map(|object| object.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!((keys, is_whole), (vec!["x.npz", "x.npz.1"], true));
}
