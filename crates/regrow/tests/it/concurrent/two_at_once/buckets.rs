//! Operations on one bucket at the same time, each in a thread that pauses at one of its requests.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use regrow::Result;
use regrow::location::{Location, StorageOptions};
use regrow_testkit::object_server::{BucketState, ObjectServer, Stop};

use serde_json::{Value, json};

use super::{Actor, End, Ends, Stage, Work, World, check, kills, play};

const BUCKET: &str = "two";

/// By these names the server knows them.
const NAMES: [&str; 3] = ["ya29.first", "ya29.second", "ya29.third"];
const JUDGE: &str = "ya29.judge";

/// The ends of the names of state objects.
const STATES: [&str; 2] = ["/regrow-state.json", "-tmp-state.json"];

/// Other processes take the owner of a state object of this age for dead.
const LONG_AGO: Duration = Duration::from_secs(60 * 60);

fn root(server: &ObjectServer, scheme: &str, client: &str) -> Location {
    let options = match scheme {
        "gs" => StorageOptions::new().with("token", client),
        _ => StorageOptions::new().with("region", "us-east-1").with("key", client).with("secret", "testtest"),
    };
    let options = options.with("endpoint_url", server.endpoint()).with("max_retries", "0");
    Location::with_options(Path::new(&format!("{scheme}://{BUCKET}/work")), &options).unwrap()
}

/// A client that sends requests to the bucket.
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
    pasts: Vec<BucketState>,
}

impl Bucket {
    /// A bucket in which a world has begun, in each of its pasts.
    fn of(world: &World, scheme: &'static str) -> Self {
        let server = ObjectServer::start().unwrap();
        server.create_bucket(BUCKET);
        (world.prepare)(&root(&server, scheme, JUDGE));
        let mut bucket = Self { server, scheme, pasts: Vec::new() };
        let before = bucket.now();
        for work in &world.killed {
            bucket.server.put_back(&before);
            bucket.server.record();
            // Files beside each other are not replaced there.
            let _ = (work.act)(&root(&bucket.server, scheme, JUDGE));
            let history = bucket.server.recorded();
            let states: Vec<BucketState> = history.states().collect();
            for (nth, at) in kills(states.len() as u64).enumerate() {
                bucket.server.put_back(&states[at as usize]);
                if nth % 2 == 1 {
                    bucket.age_states();
                }
                let past = bucket.now();
                bucket.pasts.push(past);
            }
        }
        if bucket.pasts.is_empty() {
            bucket.pasts.push(before);
        }
        bucket
    }

    fn now(&self) -> BucketState {
        self.server.record();
        self.server.recorded().states().next().unwrap()
    }

    /// Has the state objects be those of another machine, of long ago.
    fn age_states(&self) {
        let keys = self.server.keys(BUCKET, "work/run");
        for key in keys.iter().filter(|key| STATES.iter().any(|state| key.ends_with(state))) {
            let mut state: Value = serde_json::from_slice(&self.server.get(BUCKET, key).unwrap()).unwrap();
            state["host"] = json!("elsewhere 0");
            self.server.put(BUCKET, key, state.to_string());
        }
        self.server.age(LONG_AGO);
    }
}

impl Stage for Bucket {
    fn past_count(&self) -> usize {
        self.pasts.len()
    }

    fn put_back(&mut self, past: usize) {
        self.server.put_back(&self.pasts[past]);
    }

    fn steps_alone(&mut self, work: &Work) -> (u64, End) {
        self.server.clear_requests();
        let end = begin(&self.server, self.scheme, 0, work, u64::MAX).end();
        (self.server.requests().len() as u64, end)
    }

    fn play(&mut self, works: &[&Work], stops_at: &[u64]) -> Ends {
        play(works.len(), &|nth| begin(&self.server, self.scheme, nth, works[nth], stops_at[nth]))
    }

    fn root(&self) -> Location {
        root(&self.server, self.scheme, JUDGE)
    }

    fn left(&self) -> Vec<String> {
        self.server.keys(BUCKET, "work/run")
    }
}

fn check_all(name: &str, scheme: &'static str) {
    check_groups(name, scheme, 2);
}

fn check_groups(name: &str, scheme: &'static str, len: usize) {
    super::check_all(name, |world| check(world, len, &mut Bucket::of(world, scheme)));
}

#[test]
fn three_at_once() {
    for (name, scheme) in [("regrow", "s3"), ("orbax", "gs"), ("pytree_data", "s3")] {
        check_groups(name, scheme, 3);
    }
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
