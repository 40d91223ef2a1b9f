//! Tests of lost, truncated and slow answers, and of answers with another object: which requests
//! are repeated.

use super::scripted::{Reply, Server, TAG, xml};
use super::*;

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
    // The first try writes the object, but its answer is lost. Later, the object is deleted.
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
    // The server sends no byte for 5 s.
    let server = Server::new(|_| Reply::Drip(Duration::from_secs(5), RANGE, vec![0; 100]));
    let options =
        server.options().with("max_retries", "1").with("read_timeout", "0.2").with("retry_timeout", "1");
    let began = Instant::now();
    let error = server.bucket_with(options).read_range("k", 0, &mut [0; 100], None).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    // The server sends one byte each 100 ms, which would take 10 s in all.
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
