//! A server whose answers the test gives.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use super::*;

/// The reply to a request.
pub(super) enum Reply {
    /// A status, further headers and a body.
    Say(u16, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The head with the length of the whole body, then this many bytes of the body, then the end
    /// of the connection.
    CutAt(usize, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The head, and then the bytes of the body one by one, with this pause before each byte.
    Drip(Duration, &'static [(&'static str, &'static str)], Vec<u8>),
    /// The end of the connection.
    HangUp,
}

/// One request.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A server on a port of its own. Every connection has a thread.
pub(super) struct Server {
    pub(super) port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn new(answer: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
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

    pub(super) fn options(&self) -> StorageOptions {
        StorageOptions::new()
            .with("endpoint_url", format!("http://127.0.0.1:{}", self.port))
            .with("key", "AKIDEXAMPLE")
            .with("secret", SECRET)
            .with("token", TOKEN)
            .with("region", "us-east-1")
            .with("max_retries", "3")
            .with("retry_timeout", "20")
    }

    pub(super) fn bucket(&self) -> Bucket {
        self.bucket_with(self.options())
    }

    pub(super) fn bucket_with(&self, options: StorageOptions) -> Bucket {
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

/// Sends the reply. Returns false if the connection has ended.
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

pub(super) fn xml(code: &str, more: &str) -> Vec<u8> {
    format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Words of the store.</Message>{more}</Error>")
        .into_bytes()
}

pub(super) const TAG: &[(&str, &str)] = &[("etag", "\"tag-1\"")];
