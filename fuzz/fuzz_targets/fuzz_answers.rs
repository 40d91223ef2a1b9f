//! Answers of a web server and of a bucket: the input is cut into answers, which are sent one after
//! another, for any question.

#![no_main]

mod door;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use regrow::location::{Location, StorageOptions};

/// What separates answers.
const END: &[u8] = b"\n===\n";

/// What is still to be sent.
static ANSWERS: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

/// A server that answers each connection once.
static PORT: LazyLock<u16> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(len) if len > 0 => request.extend_from_slice(&piece[..len]),
                    _ => break,
                }
            }
            let answer = ANSWERS.lock().unwrap().pop_front();
            let _ = stream.write_all(
                &answer.unwrap_or_else(|| b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()),
            );
        }
    });
    port
});

/// The length of the body is that of the body, if nothing else is said: so that mutations of bodies
/// reach what reads them.
fn whole(answer: &[u8]) -> Vec<u8> {
    let head_len = answer.windows(4).position(|end| end == b"\r\n\r\n");
    let Some((head, body)) = head_len.map(|len| answer.split_at(len + 4)) else { return answer.to_vec() };
    let text = String::from_utf8_lossy(head);
    let head = text
        .replace("LENGTH", &body.len().to_string())
        .replace("LAST", &body.len().saturating_sub(1).to_string());
    [head.as_bytes(), body].concat()
}

fuzz_target!(|input: &[u8]| {
    let Some((which, input)) = input.split_first() else { return };
    let mut answers = VecDeque::new();
    let mut rest = input;
    while let Some(at) = rest.windows(END.len()).position(|part| part == END) {
        answers.push_back(whole(&rest[..at]));
        rest = &rest[at + END.len()..];
    }
    answers.push_back(whole(rest));
    *ANSWERS.lock().unwrap() = answers;
    let endpoint = format!("http://127.0.0.1:{}", *PORT);
    let options = StorageOptions::new()
        .with("max_retries", "0")
        .with("read_timeout", "0.5")
        .with("connect_timeout", "1");
    let (url, options) = match which % 4 {
        0 => (format!("{endpoint}/x.safetensors"), options),
        1 => (format!("{endpoint}/runs"), options),
        2 => ("gs://bucket/x".to_owned(), options.with("endpoint_url", &endpoint).with("anon", "true")),
        _ => {
            let keys = options.with("region", "us-east-1").with("key", "test").with("secret", "testtest");
            ("s3://bucket/x".to_owned(), keys.with("endpoint_url", &endpoint))
        }
    };
    let Ok(at) = Location::with_options(Path::new(&url), &options) else { return };
    let _ = regrow::list(&at);
    let Ok(checkpoint) = regrow::open(&at) else { return };
    for leaf in 0..checkpoint.tree().len() {
        if checkpoint.info(leaf).is_ok_and(|info| info.len_bytes() < 1 << 20) {
            let _ = checkpoint.read(leaf);
        }
    }
});
