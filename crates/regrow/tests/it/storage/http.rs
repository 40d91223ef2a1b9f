//! Checkpoints on web servers: reads by ranges, of one version, from correct and from faulty
//! servers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use crate::common::{bytes_of, layouts, tree};
use regrow::array::Region;
use regrow::engine::{ItemsOptions, ItemsSave, Layout, load};
use regrow::location::{Location, StorageOptions, ToLocation};
use regrow::{
    ConvertOptions, CopyOptions, ErrorKind, LoadOptions, OpenOptions, SaveOptions, convert, copy, open,
    open_with, save_with, verify,
};
use regrow_store::{ByteRange, ReadPath};
use regrow_testkit::archives::{files_below, tar, zip};
use regrow_testkit::object_server::{Fault, ObjectServer};

static SERVER: LazyLock<ObjectServer> = LazyLock::new(|| ObjectServer::start().unwrap());

/// What lies below a folder, served; gives its URL.
fn served(bucket: &str, folder: &Path) -> Location {
    SERVER.create_bucket(bucket);
    for (name, bytes) in files_below(folder).unwrap() {
        SERVER.put(bucket, &name, bytes);
    }
    format!("{}/{bucket}", SERVER.endpoint()).to_location().unwrap()
}

fn options(layout: &Layout) -> SaveOptions {
    SaveOptions { layout: layout.clone(), ..SaveOptions::default() }
}

#[test]
fn layouts_whose_documents_list_files_are_read() {
    for (number, (layout, suffix)) in layouts().into_iter().enumerate() {
        // A folder of npy files is known by a listing alone.
        if layout.name() == "npy" && suffix.is_empty() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let tree = tree(number as u8);
        let name = format!("my run{suffix}");
        save_with(folder.path().join(&name), &tree, &options(&layout)).unwrap();
        let path = served(&format!("layouts{number}"), folder.path()).join(&name);
        let say = |what: &dyn std::fmt::Display| format!("{} at {path}: {what}", layout.name());
        let loaded = load(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
        assert!(bytes_of(&loaded) == bytes_of(&tree), "{}", say(&"other bytes"));
        let report = verify(&path).unwrap_or_else(|error| panic!("{}", say(&error)));
        assert!(report.is_ok(), "{}", say(&format!("{:?}", report.findings)));
        let checkpoint = open(&path).unwrap();
        assert!(checkpoint.path().to_string_lossy().contains("my%20run"));
        let leaf = checkpoint.find("kernel").unwrap();
        let region = Region::new(vec![100, 7], vec![3, 1000]).unwrap();
        let slice = checkpoint.region(leaf, &region).unwrap().to_c_order().unwrap();
        let kernel = &bytes_of(&tree)[2].1;
        let row = |at: usize| &kernel[(at * 1500 + 7) * 4..(at * 1500 + 1007) * 4];
        assert!(slice[..] == [row(100), row(101), row(102)].concat(), "{}", say(&"another slice"));
        let target = folder.path().join("out");
        convert(&path, &target, &ConvertOptions { lossy: true, ..ConvertOptions::default() }).unwrap();
        assert!(bytes_of(&load(&target).unwrap()) == bytes_of(&tree), "{}", say(&"converted"));
        let copied = folder.path().join("copied").join(&name);
        match copy(&path, &copied, &CopyOptions::default()) {
            Ok(_) => assert!(bytes_of(&load(&copied).unwrap()) == bytes_of(&tree), "{}", say(&"copied")),
            // The server does not list a folder's files.
            Err(error) => {
                assert!(suffix.is_empty() && error.kind() == ErrorKind::Unsupported, "{}", say(&error));
            }
        }
        let error = save_with(path.with_name("new"), &tree, &options(&layout)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", say(&error));
    }
}

#[test]
fn items_are_found_by_the_record_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let save = ItemsSave::begin(folder.path().join("7"), ItemsOptions::default()).unwrap();
    save.tree("state", &common_other(), &SaveOptions::default()).unwrap();
    save.json("config", &serde_json::json!({"width": 3})).unwrap();
    save.file("iterator", "x", b"1").unwrap();
    save.commit().unwrap();
    let path = served("items", folder.path()).join("7");
    let found = open(&path).unwrap();
    let names: Vec<&str> = found.description().items.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["config", "iterator", "state"]);
    assert_eq!(found.description().warnings, [""; 0]);
    assert_eq!(found.tree().len(), 5);
    let state = OpenOptions { item: Some("state".to_owned()), ..OpenOptions::default() };
    assert_eq!(open_with(&path, &state).unwrap().description().layout, "regrow");
    assert!(verify(&path).unwrap().is_ok());
}

#[test]
fn archives_are_read_through_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let tree = tree(3);
    save_with(folder.path().join("runs/7"), &tree, &SaveOptions::default()).unwrap();
    save_with(folder.path().join("runs/9"), &common_other(), &SaveOptions::default()).unwrap();
    let files = files_below(folder.path()).unwrap();
    SERVER.create_bucket("archives");
    SERVER.put("archives", "a.tar", tar(&files));
    SERVER.put("archives", "b.zip", zip(&files));
    for name in ["a.tar", "b.zip"] {
        let url = format!("{}/archives/{name}", SERVER.endpoint());
        assert!(bytes_of(&load(format!("{url}/runs/7")).unwrap()) == bytes_of(&tree));
        // In an archive there is a list of what is there.
        assert_eq!(open(format!("{url}/runs")).unwrap().description().steps, [7, 9]);
        assert!(verify(&url).unwrap().is_ok());
    }
}

fn common_other() -> regrow::tree::Tree<regrow::tree::Leaf> {
    tree(200)
}

#[test]
fn a_missing_checkpoint_is_not_found() {
    SERVER.create_bucket("missing");
    let root = format!("{}/missing", SERVER.endpoint());
    let error = open(format!("{root}/nothing")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.help_text().is_some_and(|help| help.contains("address")), "{error}");
    // A folder of steps is found nowhere: its steps are.
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path().join("steps/5"), &tree(1), &SaveOptions::default()).unwrap();
    let steps = served("steps", folder.path()).join("steps");
    assert_eq!(open(&steps).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(bytes_of(&load(steps.join("5")).unwrap()) == bytes_of(&tree(1)));
    let error = steps.entries().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error =
        Location::with_options(Path::new("https://host/x"), &StorageOptions::new().with("region", "x"));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let closed = StorageOptions::new().with("max_retries", "0");
    let closed = Location::with_options(Path::new("http://127.0.0.1:1/x?signature=secret"), &closed).unwrap();
    let error = open(&closed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1/x") && !error.to_string().contains("secret"), "{error}");
}

#[test]
fn network_faults_are_retried_or_errors() {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("b");
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path().join("x"), &tree(5), &SaveOptions::default()).unwrap();
    for (name, bytes) in files_below(folder.path()).unwrap() {
        server.put("b", &name, bytes);
    }
    let url = format!("{}/b/x", server.endpoint());
    for fault in [
        Fault::reset_before().chance(0.2, 1),
        Fault::status(503, "SlowDown").chance(0.2, 2),
        Fault::status(429, "TooMany").chance(0.2, 3),
        Fault::truncate_body(1000).method("GET").first(3),
    ] {
        server.clear_faults();
        server.fault(fault);
        assert!(bytes_of(&load(&url).unwrap()) == bytes_of(&tree(5)));
    }
    server.clear_faults();
    server.fault(Fault::wrong_bytes(70_000).method("GET").key("*.safetensors"));
    assert!(!verify(&url).is_ok_and(|report| report.is_ok()));
    server.clear_faults();
    server.fault(Fault::status(500, "Broken").method("GET"));
    let few = StorageOptions::new().with("max_retries", "1");
    let error = load(Location::with_options(Path::new(&url), &few).unwrap());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("500"), "{error}");
}

#[test]
fn versions_are_never_mixed() {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("b");
    let put = |fill: u8| {
        let folder = tempfile::tempdir().unwrap();
        save_with(folder.path().join("x"), &tree(fill), &SaveOptions::default()).unwrap();
        for (name, bytes) in files_below(folder.path()).unwrap() {
            server.put("b", &name, bytes);
        }
    };
    put(1);
    let url = format!("{}/b/x", server.endpoint());
    let before = open(&url).unwrap();
    assert!(!before.is_replaced());
    put(2);
    assert!(before.is_replaced());
    let error = before.load(&LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
    assert!(bytes_of(&load(&url).unwrap()) == bytes_of(&tree(2)));
    // One file, replaced by other bytes of the same length, of another length, and by no file.
    for other in [Some(vec![2; 1000]), Some(vec![2; 900]), Some(vec![2; 2000]), None] {
        server.put("b", "file", vec![1; 1000]);
        let root = format!("{}/b", server.endpoint()).to_location().unwrap();
        let blob = root.store().open(b"file").unwrap().unwrap();
        let mut out = [0; 10];
        blob.read(500, &mut out, ReadPath::Cached).unwrap();
        assert_eq!(out, [1; 10]);
        match other {
            Some(bytes) => server.put("b", "file", bytes),
            None => assert!(server.delete("b", "file")),
        }
        for offset_bytes in [0, 500, 990] {
            let error = blob.read(offset_bytes, &mut out, ReadPath::Cached).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
        }
    }
    // The data alone is another one.
    let before = open(&url).unwrap();
    server.flip_byte("b", "x/model.safetensors", 100_000);
    let error = before.load(&LoadOptions::default()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Replaced | ErrorKind::Corrupt), "{error}");
}

/// What a server of the tests does, besides giving out files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Knows HEAD and ranges, and names versions.
    Plain,
    /// Sends files whole for every request.
    NoRanges,
    /// Says 403 to every HEAD.
    NoHead,
    /// Says no length in answer to HEAD.
    NoLength,
    /// Says 403 of what is not there.
    Forbidden,
    /// Answers 200 with a page of HTML where nothing is.
    Friendly,
    /// Redirects to another path first.
    Redirects,
    /// Redirects in a circle.
    Circles,
    /// Packs what it sends.
    Packs,
    /// Sends another range than was asked for.
    OtherRange,
    /// Sends more than was asked for.
    TooMuch,
    /// Wants a token.
    Token,
}

/// A server of these files; gives its URL. It lives as long as the process.
fn server(manner: Manner, files: BTreeMap<String, Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let (files, seen) = (Arc::new(files), Arc::clone(&log));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (files, seen) = (Arc::clone(&files), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut input = BufReader::new(stream.try_clone().unwrap());
                while let Some(answer) = answer(manner, &files, &mut input, &seen) {
                    if stream.write_all(&answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url, log)
}

fn answer(
    manner: Manner,
    files: &BTreeMap<String, Vec<u8>>,
    input: &mut impl BufRead,
    seen: &Mutex<Vec<String>>,
) -> Option<Vec<u8>> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let (method, path) = line.trim().strip_suffix(" HTTP/1.1")?.split_once(' ')?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        input.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    seen.lock().unwrap().push(format!("{method} {path} {}", headers.get("range").map_or("", |range| range)));
    let say = |status: &str, headers: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\n{headers}\r\n");
        Some(if method == "HEAD" { head.into_bytes() } else { [head.as_bytes(), body].concat() })
    };
    let nothing = "Content-Length: 0\r\n";
    let name = path.trim_start_matches('/').trim_start_matches("moved/");
    match manner {
        Manner::Redirects if !path.starts_with("/moved/") => {
            return say("302 Found", &format!("Location: /moved{path}\r\n{nothing}"), b"");
        }
        Manner::Circles => return say("302 Found", &format!("Location: {path}\r\n{nothing}"), b""),
        Manner::NoHead if method == "HEAD" => return say("403 Forbidden", nothing, b""),
        Manner::Token if headers.get("authorization").map(String::as_str) != Some("Bearer sesame") => {
            return say("401 Unauthorized", nothing, b"");
        }
        _ => {}
    }
    let Some(file) = files.get(name) else {
        let page = b"<html>nothing</html>";
        let of_page = format!("Content-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n", page.len());
        return match manner {
            Manner::Forbidden => say("403 Forbidden", nothing, b""),
            Manner::Friendly => say("200 OK", &of_page, page),
            _ => say("404 Not Found", nothing, b""),
        };
    };
    let tag = "ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    if manner == Manner::Packs && method == "GET" {
        let headers = format!("{tag}Content-Encoding: gzip\r\nContent-Length: {}\r\n", file.len());
        return say("200 OK", &headers, file);
    }
    let range = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let range = range.map(|(start, last)| (start.parse().unwrap(), last.parse::<usize>().unwrap() + 1));
    match range.filter(|_| manner != Manner::NoRanges && method == "GET") {
        None if manner == Manner::NoLength && method == "HEAD" => say("200 OK", tag, b""),
        None => say("200 OK", &format!("{tag}Content-Length: {}\r\n", file.len()), file),
        Some((start, _)) if start >= file.len() => say(
            "416 Range Not Satisfiable",
            &format!("Content-Range: bytes */{}\r\n{nothing}", file.len()),
            b"",
        ),
        Some((start, end)) => {
            let end = end.min(file.len());
            let said = if manner == Manner::OtherRange { start + 1 } else { start };
            let mut body = file[start..end].to_vec();
            if manner == Manner::TooMuch {
                body.push(0);
            }
            let range = format!("Content-Range: bytes {said}-{}/{}\r\n", end - 1, file.len());
            say("206 Partial Content", &format!("{tag}{range}Content-Length: {}\r\n", body.len()), &body)
        }
    }
}

/// A checkpoint of these manners' server: its files below `x/`.
fn checkpoint_files() -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path().join("x"), &tree(9), &SaveOptions::default()).unwrap();
    let mut files: BTreeMap<_, _> = files_below(folder.path()).unwrap().into_iter().collect();
    files.insert("long.bin".to_owned(), vec![7; 9 << 20]);
    files.insert("empty.bin".to_owned(), Vec::new());
    files
}

#[test]
fn servers_without_ranges_heads_or_lengths_are_read() {
    let files = checkpoint_files();
    for manner in [
        Manner::Plain,
        Manner::NoRanges,
        Manner::NoHead,
        Manner::NoLength,
        Manner::Forbidden,
        Manner::Friendly,
        Manner::Redirects,
    ] {
        let (url, log) = server(manner, files.clone());
        let loaded = load(format!("{url}/x")).unwrap_or_else(|error| panic!("{manner:?}: {error}"));
        assert!(bytes_of(&loaded) == bytes_of(&tree(9)), "{manner:?}");
        let verified = verify(format!("{url}/x")).unwrap();
        assert!(verified.is_ok(), "{manner:?}: {:?}", verified.findings);
        let store = url.to_location().unwrap().store();
        assert_eq!(store.len_bytes(b"empty.bin").unwrap(), Some(0), "{manner:?}");
        assert_eq!(store.get(b"empty.bin", ByteRange::Full).unwrap().unwrap().len(), 0);
        let part = store.get(b"long.bin", ByteRange::Span { offset_bytes: 1 << 20, len_bytes: 10 });
        match manner {
            Manner::NoRanges => {
                let error = part.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("range"), "{error}");
            }
            _ => assert_eq!(&part.unwrap().unwrap()[..], [7; 10]),
        }
        let missing = open(format!("{url}/none")).unwrap_err();
        let expected = match manner {
            // More cannot be known.
            Manner::Forbidden => ErrorKind::PermissionDenied,
            _ => ErrorKind::NotFound,
        };
        assert_eq!(missing.kind(), expected, "{manner:?}: {missing}");
        assert!(!log.lock().unwrap().is_empty());
    }
    for (manner, kind, says) in [
        (Manner::Circles, ErrorKind::Io, "redirects"),
        (Manner::Packs, ErrorKind::Unsupported, "compresses"),
        (Manner::OtherRange, ErrorKind::Unsupported, "the wrong range"),
        (Manner::TooMuch, ErrorKind::Unsupported, "too many bytes"),
        (Manner::Token, ErrorKind::PermissionDenied, "401"),
    ] {
        let (url, _) = server(manner, files.clone());
        let options = StorageOptions::new().with("max_retries", "1");
        let at = Location::with_options(Path::new(&format!("{url}/x")), &options).unwrap();
        let error = load(&at).unwrap_err();
        assert_eq!(error.kind(), kind, "{manner:?}: {error}");
        assert!(error.to_string().contains(says), "{manner:?}: {error}");
    }
    let (url, _) = server(Manner::Token, files);
    let options = StorageOptions::new().with("token", "sesame");
    let at = Location::with_options(Path::new(&format!("{url}/x")), &options).unwrap();
    assert!(bytes_of(&load(&at).unwrap()) == bytes_of(&tree(9)));
}

#[test]
fn opening_takes_few_requests() {
    let (url, log) = server(Manner::Plain, checkpoint_files());
    let checkpoint = open(format!("{url}/x")).unwrap();
    let count = log.lock().unwrap().len();
    assert!(count <= 8, "{:#?}", log.lock().unwrap());
    checkpoint.load(&LoadOptions::default()).unwrap();
    let asked = log.lock().unwrap().len() - count;
    assert!(asked <= 8, "{:#?}", log.lock().unwrap());
}
