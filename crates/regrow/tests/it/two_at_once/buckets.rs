//! Two threads that change a bucket: each stands still at one of its requests.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use regrow::Result;
use regrow::location::{Location, StorageOptions};
use regrow_testkit::object_server::{BucketState, ObjectServer, Stop};

use super::{Actor, End, Ends, Stage, Work, check, play};

const BUCKET: &str = "two";

/// By these names the server knows the two.
const NAMES: [&str; 2] = ["ya29.first", "ya29.second"];
const JUDGE: &str = "ya29.judge";

fn root(server: &ObjectServer, scheme: &str, client: &str) -> Location {
    let options = match scheme {
        "gs" => StorageOptions::new().with("token", client),
        _ => StorageOptions::new().with("region", "us-east-1").with("key", client).with("secret", "testtest"),
    };
    let options = options.with("endpoint_url", server.endpoint()).with("max_retries", "0");
    Location::with_options(Path::new(&format!("{scheme}://{BUCKET}/work")), &options).unwrap()
}

/// Somebody who asks the bucket for something.
struct Client {
    stop: Stop,
    is_done: Receiver<()>,
    thread: JoinHandle<Result<()>>,
    has_ended: bool,
}

impl Actor for Client {
    fn wait(&mut self, timeout: Duration) -> Option<bool> {
        let began = Instant::now();
        while began.elapsed() < timeout {
            if self.has_ended || self.is_done.try_recv() != Err(TryRecvError::Empty) {
                self.has_ended = true;
                return Some(true);
            }
            if self.stop.wait(Duration::from_micros(100)) {
                return Some(false);
            }
        }
        None
    }

    fn go_on(&mut self) {
        self.stop.go_on();
    }

    fn end(self: Box<Self>) -> End {
        let ended = self.thread.join().expect("a panic");
        ended.map_err(|error| (error.kind(), error.to_string()))
    }
}

fn begin(server: &ObjectServer, scheme: &str, nth: usize, work: &Work, stops_at: u64) -> Box<dyn Actor> {
    let root = root(server, scheme, NAMES[nth]);
    let act = Arc::clone(&work.act);
    let stop = server.stop(NAMES[nth], stops_at);
    let (done, is_done) = channel();
    let thread = spawn(move || {
        let ended = act(&root);
        // Dropped if it panics, which is an end, too.
        let _ = done.send(());
        ended
    });
    Box::new(Client { stop, is_done, thread, has_ended: false })
}

struct Bucket {
    server: ObjectServer,
    scheme: &'static str,
    before: BucketState,
}

impl Stage for Bucket {
    fn steps_alone(&mut self, work: &Work) -> u64 {
        self.server.put_back(&self.before);
        self.server.clear_requests();
        // It may find nothing to do.
        let _ = begin(&self.server, self.scheme, 0, work, u64::MAX).end();
        self.server.requests().len() as u64
    }

    fn play(&mut self, works: [&Work; 2], stops_at: [u64; 2]) -> Ends {
        self.server.put_back(&self.before);
        let start = |nth: usize| begin(&self.server, self.scheme, nth, works[nth], stops_at[nth]);
        play([&|| start(0), &|| start(1)])
    }

    fn root(&self) -> Location {
        root(&self.server, self.scheme, JUDGE)
    }

    fn left(&self) -> Vec<String> {
        self.server.keys(BUCKET, "work/run")
    }
}

fn check_all(name: &str, scheme: &'static str) {
    super::check_all(name, |world| {
        let server = ObjectServer::start().unwrap();
        server.create_bucket(BUCKET);
        (world.prepare)(&root(&server, scheme, JUDGE));
        server.record();
        let before = server.recorded().states().next().unwrap();
        check(world, &mut Bucket { server, scheme, before })
    });
}

#[test]
fn a_folder_of_regrow() {
    check_all("regrow", "s3");
}

#[test]
fn a_folder_of_orbax() {
    check_all("orbax", "gs");
}

#[test]
fn a_folder_of_safetensors() {
    check_all("safetensors", "s3");
}

#[test]
fn a_file() {
    check_all("flax", "s3");
}

#[test]
fn two_files_beside_each_other() {
    check_all("pytree_data", "s3");
}

#[test]
fn a_run_of_steps() {
    check_all("steps", "s3");
}
