//! Tests against memory, and against a server that answers what the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

use super::list::Listing;
use super::surroundings::Surroundings;
use super::*;
use crate::storage::StorageOptions;

const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYSECRET";
const TOKEN: &str = "FwoGZXIvYXdzSESSIONTOKEN";

/// What a request is answered with.
enum Reply {
    /// A status, further headers and a body.
    Say(u16, &'static [(&'static str, &'static str)], Vec<u8>),
    /// As many bytes as the number of the body that is said, then the end of the connection.
    CutAt(usize, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The head and some bytes, and then one more at each time.
    Drip(Duration, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The end of the connection.
    HangUp,
}

/// One request.
struct Asked {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A server on a port of its own. Every connection has a thread.
struct Server {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(answer: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let answer = Arc::new(Mutex::new(answer));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let answer = answer.clone();
                std::thread::spawn(move || {
                    let stream = stream.unwrap();
                    while let Some(asked) = receive(&stream) {
                        let reply = (answer.lock().unwrap())(&asked);
                        if !send(&stream, &asked, reply) {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    fn options(&self) -> StorageOptions {
        StorageOptions::new()
            .with("endpoint_url", format!("http://127.0.0.1:{}", self.port))
            .with("key", "AKIDEXAMPLE")
            .with("secret", SECRET)
            .with("token", TOKEN)
            .with("region", "us-east-1")
            .with("max_retries", "3")
            .with("retry_timeout", "20")
    }

    fn bucket(&self) -> Bucket {
        self.bucket_with(self.options())
    }

    fn bucket_with(&self, options: StorageOptions) -> Bucket {
        Bucket::of_url_in("s3://bkt/x", &options, &Surroundings::default()).unwrap().0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn receive(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, target, headers, body })
}

/// False if the connection is over.
fn send(mut stream: &TcpStream, asked: &Asked, reply: Reply) -> bool {
    let head = |status: u16, headers: &[(&str, &str)], len: usize| {
        let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {len}\r\n");
        head += "last-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n";
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head + "\r\n"
    };
    match reply {
        Reply::Say(status, headers, body) => {
            stream.write_all(head(status, headers, body.len()).as_bytes()).is_ok()
                && (asked.method == "HEAD" || stream.write_all(&body).is_ok())
        }
        Reply::CutAt(len, headers, body) => {
            let _ = stream.write_all(head(206, headers, body.len()).as_bytes());
            let _ = stream.write_all(&body[..len]);
            false
        }
        Reply::Drip(pause, headers, body) => {
            let _ = stream.write_all(head(206, headers, body.len()).as_bytes());
            body.iter().all(|byte| {
                std::thread::sleep(pause);
                stream.write_all(&[*byte]).is_ok()
            })
        }
        Reply::HangUp => false,
    }
}

fn xml(code: &str, more: &str) -> Vec<u8> {
    format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Words of the store.</Message>{more}</Error>")
        .into_bytes()
}

const TAG: &[(&str, &str)] = &[("etag", "\"tag-1\"")];

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

#[test]
fn a_create_whose_answer_was_lost_is_ours() {
    let mut stored: Option<Vec<u8>> = None;
    let server = Server::new(move |asked| match (asked.method.as_str(), &stored) {
        ("PUT", None) => {
            assert_eq!(asked.header("if-none-match"), Some("*"));
            stored = Some(asked.body.clone());
            Reply::HangUp
        }
        ("PUT", Some(_)) => Reply::Say(412, &[], xml("PreconditionFailed", "")),
        (_, Some(body)) => Reply::Say(200, TAG, body.clone()),
        _ => Reply::Say(404, &[], xml("NoSuchKey", "")),
    });
    let bucket = server.bucket();
    let ours = Bytes::from_static(b"nonce 1");
    assert!(matches!(bucket.create_settled("k", &ours).unwrap(), Created::Ours(_)));
    let Created::Theirs(found, tag) = bucket.create_settled("k", &Bytes::from_static(b"nonce 2")).unwrap()
    else {
        panic!()
    };
    assert_eq!((found, tag.to_string()), (ours, "\"tag-1\"".to_owned()));
}

#[test]
fn a_conflict_with_nothing_there_is_tried_again() {
    let mut puts = 0;
    let server = Server::new(move |asked| {
        if asked.method != "PUT" {
            return Reply::Say(404, &[], xml("NoSuchKey", ""));
        }
        puts += 1;
        match puts {
            1 => Reply::Say(409, &[], xml("ConditionalRequestConflict", "")),
            _ => Reply::Say(200, TAG, Vec::new()),
        }
    });
    let bucket = server.bucket();
    assert!(matches!(bucket.create_settled("k", &Bytes::from_static(b"n")).unwrap(), Created::Ours(_)));
    assert_eq!(bucket.requests(), 3);
}

#[test]
fn a_replacement_is_settled() {
    // The first try lands and its answer is lost; then the object is removed behind our back.
    let mut stored: Option<(&'static str, Vec<u8>)> = Some(("\"old\"", b"old".to_vec()));
    let server = Server::new(move |asked| match asked.method.as_str() {
        "PUT" if stored.is_some() && asked.header("if-match") == stored.as_ref().map(|(tag, _)| *tag) => {
            stored = Some(("\"new\"", asked.body.clone()));
            Reply::HangUp
        }
        "PUT" => Reply::Say(412, &[], xml("PreconditionFailed", "")),
        "DELETE" | "POST" => {
            stored = None;
            Reply::Say(200, &[], b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>".to_vec())
        }
        _ => match &stored {
            Some((_, body)) => Reply::Say(200, &[("etag", "\"new\"")], body.clone()),
            None => Reply::Say(404, &[], xml("NoSuchKey", "")),
        },
    });
    let bucket = server.bucket();
    let old = Tag::new(Some("old".to_owned()), None);
    let bytes = Bytes::from_static(b"nonce");
    let Replaced::Ours(tag) = bucket.replace_settled("k", &old, &bytes).unwrap() else { panic!() };
    let Replaced::Theirs(found, _) =
        bucket.replace_settled("k", &old, &Bytes::from_static(b"other")).unwrap()
    else {
        panic!()
    };
    assert_eq!(found, bytes);
    bucket.delete(&["k".to_owned()]).unwrap();
    assert!(matches!(bucket.replace_settled("k", &tag, &bytes).unwrap(), Replaced::Gone));
}

#[test]
fn a_body_that_breaks_off_is_continued() {
    let body: Vec<u8> = (0..100).collect();
    let mut asked_for = Vec::new();
    let data = body.clone();
    let (sender, ranges) = std::sync::mpsc::channel();
    let server = Server::new(move |asked| {
        asked_for.push(asked.header("range").unwrap().to_owned());
        sender
            .send((asked.header("range").unwrap().to_owned(), asked.header("if-match").map(str::to_owned)))
            .unwrap();
        match asked_for.len() {
            1 => {
                Reply::CutAt(40, &[("etag", "\"tag-1\""), ("content-range", "bytes 0-99/100")], data.clone())
            }
            _ => Reply::Say(
                206,
                &[("etag", "\"tag-1\""), ("content-range", "bytes 40-99/100")],
                data[40..].to_vec(),
            ),
        }
    });
    let mut out = vec![0; 100];
    server.bucket().read_range("k", 0, &mut out, None).unwrap();
    assert_eq!(out, body);
    assert_eq!(ranges.try_iter().map(|(range, _)| range).collect::<Vec<_>>(), ["bytes=0-99", "bytes=40-99"]);
}

#[test]
fn another_object_in_the_middle_of_a_body_is_seen() {
    let mut requests = 0;
    let server = Server::new(move |asked| {
        requests += 1;
        match requests {
            1 => {
                Reply::CutAt(40, &[("etag", "\"tag-1\""), ("content-range", "bytes 0-99/100")], vec![1; 100])
            }
            _ if asked.header("if-match") == Some("\"tag-1\"") => {
                Reply::Say(412, &[], xml("PreconditionFailed", ""))
            }
            _ => Reply::Say(206, &[("etag", "\"tag-2\""), ("content-range", "bytes 40-99/100")], vec![2; 60]),
        }
    });
    let error = server.bucket().read_range("k", 0, &mut [0; 100], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
}

#[test]
fn a_busy_store_is_asked_again_and_not_for_ever() {
    let mut requests = 0;
    let server = Server::new(move |_| {
        requests += 1;
        match requests {
            1 | 2 => Reply::Say(503, &[], xml("SlowDown", "")),
            _ => Reply::Say(200, TAG, b"fine".to_vec()),
        }
    });
    let bucket = server.bucket();
    assert_eq!(bucket.get("k", None).unwrap().unwrap().0, "fine");
    assert_eq!(bucket.requests(), 3);

    let server = Server::new(|_| Reply::Say(503, &[], xml("SlowDown", "")));
    let bucket = server.bucket();
    let error = bucket.get("k", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("503 SlowDown: Words of the store."), "{error}");
    assert_eq!(bucket.requests(), 4);
}

#[test]
fn a_drip_ends_in_time() {
    const RANGE: &[(&str, &str)] = &[("etag", "\"tag-1\""), ("content-range", "bytes 0-99/100")];
    // A line that stands still.
    let server = Server::new(|_| Reply::Drip(Duration::from_secs(5), RANGE, vec![0; 100]));
    let options =
        server.options().with("max_retries", "1").with("read_timeout", "0.2").with("retry_timeout", "1");
    let began = Instant::now();
    let error = server.bucket_with(options).read_range("k", 0, &mut [0; 100], None).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    // A byte now and then, for ever.
    let server = Server::new(|_| Reply::Drip(Duration::from_millis(100), RANGE, vec![0; 100]));
    let options = server
        .options()
        .with("max_retries", "1")
        .with("read_timeout", "0.5")
        .with("connect_timeout", "0.5")
        .with("retry_timeout", "1");
    let began = Instant::now();
    let error = server.bucket_with(options).read_range("k", 0, &mut [0; 100], None).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(error.to_string().contains("not done within"), "{error}");
}

#[test]
fn what_a_store_says_is_explained() {
    use ErrorKind as Kind;
    type Headers = &'static [(&'static str, &'static str)];
    type Case = (u16, Headers, &'static str, &'static str, Kind, &'static [&'static str]);
    let cases: &[Case] = &[
        (404, &[], "NoSuchBucket", "", Kind::NotFound, &["the bucket bkt does not exist"]),
        (
            301,
            &[("x-amz-bucket-region", "eu-west-1")],
            "PermanentRedirect",
            "",
            Kind::InvalidArgument,
            &["another region", "expected eu-west-1, found us-east-1", "AWS_REGION=eu-west-1"],
        ),
        (
            400,
            &[],
            "AuthorizationHeaderMalformed",
            "<Region>eu-west-3</Region>",
            Kind::InvalidArgument,
            &["eu-west-3"],
        ),
        (
            403,
            &[],
            "InvalidAccessKeyId",
            "<AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>",
            Kind::PermissionDenied,
            &["does not know the access key id"],
        ),
        (
            403,
            &[],
            "SignatureDoesNotMatch",
            "<StringToSign>x</StringToSign>",
            Kind::PermissionDenied,
            &["secret key"],
        ),
        (400, &[], "ExpiredToken", "", Kind::PermissionDenied, &["expired"]),
        (
            403,
            &[],
            "RequestTimeTooSkewed",
            "<RequestTime>20261122T100000Z</RequestTime><ServerTime>2026-11-22T12:00:00Z</ServerTime>",
            Kind::PermissionDenied,
            &["clock", "expected 2026-11-22T12:00:00Z (the store), found 20261122T100000Z"],
        ),
        (403, &[], "AccessDenied", "", Kind::PermissionDenied, &["access denied", "s3:GetObject"]),
        (507, &[], "InsufficientStorage", "", Kind::StorageFull, &["full"]),
        (400, &[], "KeyTooLongError", "", Kind::InvalidArgument, &["longer"]),
        (418, &[], "Teapot", "", Kind::Io, &["418 Teapot: Words of the store."]),
    ];
    for (status, headers, code, more, kind, words) in cases {
        let (status, headers, body) = (*status, *headers, xml(code, more));
        let server = Server::new(move |_| Reply::Say(status, headers, body.clone()));
        let bucket = server.bucket();
        let errors = [
            bucket.get("a/k", None).unwrap_err(),
            // The answer to HEAD has no body, and says it all the same.
            if *code == "NoSuchBucket" {
                continue;
            } else {
                bucket.head("a/k").err().unwrap_or_else(|| panic!("{code}"))
            },
        ];
        for (error, all_words) in errors.iter().zip([true, status == 301 || status == 400 || status == 403]) {
            let text = format!("{error:?}\n{error}");
            assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
            assert!(text.contains("s3://bkt/a/k"), "{text}");
            assert!(error.help_text().is_some(), "{text}");
            if all_words {
                assert_eq!(error.kind(), *kind, "{text}");
                words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
            }
        }
        let list = bucket.list("a", None).unwrap_err();
        if *code == "AccessDenied" {
            assert!(list.to_string().contains("s3:ListBucket"), "{list}");
        }
    }
}

#[test]
fn nothing_secret_is_ever_printed() {
    // A server that sends back whatever it got.
    let server = Server::new(|asked| {
        let headers: String = asked.headers.values().cloned().collect();
        let message = format!("{} {headers} {SECRET} {TOKEN}", asked.target);
        Reply::Say(
            400,
            &[],
            format!("<Error><Code>{SECRET}</Code><Message>{message}</Message></Error>").into_bytes(),
        )
    });
    let options = server.options();
    let bucket = server.bucket();
    let keys = ["k".to_owned()];
    let mut out = [0; 4];
    let bytes = Bytes::from_static(b"x");
    let tag = Tag::new(Some("t".to_owned()), None);
    let mut texts = vec![format!("{bucket:?} {options:?}")];
    let mut upload = bucket.upload("k", Some(1 << 30)).unwrap();
    let errors = [
        bucket.get("k", None).unwrap_err(),
        bucket.head("k").unwrap_err(),
        bucket.read_range("k", 0, &mut out, None).unwrap_err(),
        bucket.list("k", None).unwrap_err(),
        bucket.list_level("k").unwrap_err(),
        bucket.put("k", bytes.clone(), PutMode::Overwrite).unwrap_err(),
        bucket.create_settled("k", &bytes).unwrap_err(),
        bucket.replace_settled("k", &tag, &bytes).unwrap_err(),
        bucket.delete(&keys).unwrap_err(),
        bucket.copy("k", "l").unwrap_err(),
        upload.part(vec![0; 20 << 20].into()).unwrap_err(),
        upload.finish().unwrap_err(),
        Bucket::of_url_in("s3://b/k", &options.clone().with("max_retries", SECRET), &Surroundings::default())
            .unwrap_err(),
        Bucket::of_url_in("s3://b/k", &options.clone().with("anon", SECRET), &Surroundings::default())
            .unwrap_err(),
        Bucket::of_url_in(&format!("s3://AKID:{SECRET}@b/k"), &options, &Surroundings::default())
            .unwrap_err()
            .in_file("x"),
    ];
    texts.extend(errors.iter().map(|error| format!("{error} {error:?}")));
    texts.iter().for_each(|text| {
        assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    });

    for (url, name, value) in [
        ("s3://b/k", "proxy_url", format!("http://user:{SECRET}@127.0.0.1:1")),
        ("gs://b/k", "service_account_key", format!("{{\"private_key\": \"{SECRET}\"}}")),
        ("gs://b/k", "bearer_token", SECRET.to_owned()),
        ("az://b/k", "account_key", SECRET.to_owned()),
        ("az://b/k", "sas_token", format!("sv=1&sig={SECRET}")),
        ("az://b/k", "connection_string", format!("AccountName=a;AccountKey={SECRET}")),
    ] {
        let options =
            StorageOptions::new().with(name, value).with("max_retries", "0").with("connect_timeout", "1");
        let options = match url {
            "az://b/k" => options.with("account_name", "a").with("endpoint_url", "http://127.0.0.1:1"),
            _ => options.with("endpoint_url", "http://127.0.0.1:1"),
        };
        let (bucket, _) = Bucket::of_url_in(url, &options, &Surroundings::default()).unwrap();
        let error = bucket.get("k", None).unwrap_err();
        let text = format!("{error} {error:?} {bucket:?} {options:?}");
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn nobody_there_is_told_soon() {
    let began = Instant::now();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let options = StorageOptions::new()
        .with("endpoint_url", format!("http://127.0.0.1:{port}"))
        .with("key", "k")
        .with("secret", SECRET);
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(error.help_text().unwrap().contains("nothing listens there"), "{error}");

    let options = options.with("endpoint_url", "https://no-such-host.invalid");
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert!(error.help_text().unwrap().contains("host name"), "{error}");

    let options = StorageOptions::new()
        .with("endpoint_url", "http://127.0.0.1:9")
        .with("metadata_endpoint", format!("http://127.0.0.1:{port}"));
    let (bucket, _) = Bucket::of_url_in("s3://b/k", &options, &Surroundings::default()).unwrap();
    let error = bucket.get("k", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("no credentials for S3 were found"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[test]
fn an_upload_in_parts_is_one_object_or_nothing() {
    // Parts, completion with a lost answer, then an upload whose part is refused: it is aborted.
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
fn calls_work_inside_a_runtime_of_somebody_else() {
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
        // SAFETY: ends this process.
        unsafe { libc::_exit(if is_fine { 7 } else { 8 }) };
    }
    let mut status = 0;
    let until = Instant::now() + Duration::from_secs(20);
    // SAFETY: `status` is a place for one int.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > until {
            // SAFETY: our own child, which has not been waited for.
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

/// Against another server as well, one with an empty bucket, where `REGROW_TEST_URL` is its address;
/// `REGROW_TEST_OPTIONS` is then a list like `endpoint_url=http://127.0.0.1:5555,key=test,secret=testtest`.
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
