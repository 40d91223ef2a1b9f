//! An object store in memory with a socket, for tests and benchmarks of buckets.
//!
//! It speaks HTTP/1.1 on 127.0.0.1, and answers each client in the dialect of the client: S3 with
//! path-style addresses, the XML API of GCS, the requests of GCS's JSON API that TensorStore sends,
//! and plain `GET` and `HEAD` with ranges for `http://host/bucket/key`. It answers like the real
//! services in everything that clients depend on, with two differences. ETags are not MD5 (but
//! equal bytes have equal ETags), and of a signature it checks only the access key and the region.
//!
//! Unlike a mock, it can fail: a schedule of [`Fault`]s drops connections before or after a write,
//! truncates bodies, inverts bytes, delays, and answers with any error. The request log has all
//! requests of a client.
//!
//! Cost: a `PUT` copies its body once; a `GET` copies nothing, for any range. The server has
//! threads of its own, which end when it is dropped.
//!
//! ```text
//! connection    socket  ->  HTTP
//! request       first line and headers  ->  Target: op, bucket, key
//! fault         Target  ->  Strike, the faults of this request
//! service       permissions; Target, body  ->  answer
//! objects       reads, writes, copies, deletions, lists        uploads: in parts
//! answers       empty ones, documents               list, json, xml, text: their formats
//! store         objects, uploads, conditions        blob: their bytes
//! history       the changes of each request, and the states that a killed writer can leave
//! turns         stops a client at a request until the test lets it continue
//! control       /-/ for clients in other languages
//! ```
//!
//! ```
//! use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};
//!
//! let server = ObjectServer::start()?;
//! server.create_bucket("bucket");
//! server.fault(Fault::refuse(Refusal::SlowDown).on(Op::Put).first(2));
//! println!("{}", server.endpoint());
//! # Ok::<(), std::io::Error>(())
//! ```

mod answers;
mod blob;
mod connection;
mod control;
mod fault;
mod history;
mod json;
mod list;
mod objects;
mod refusal;
mod request;
mod service;
mod store;
mod text;
mod turns;
mod uploads;
mod xml;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use service::{Settings, Shared, locked};
use store::{Conditions, etag_of};

pub use fault::{Action, Fault, When};
pub use history::{BucketState, History};
pub use refusal::Refusal;
pub use request::{Op, Request};
pub use turns::Stop;

/// The settings of a server before its start.
#[derive(Debug)]
#[must_use]
pub struct Builder {
    port: u16,
    threads: usize,
    page_keys_max: usize,
    settings: Settings,
}

impl Builder {
    /// Sets the port; 0, the default, means any free port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the number of threads that answer; the default is 2.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Accepts S3 requests only if they are signed with this access key. Other requests get
    /// `InvalidAccessKeyId`, or `AccessDenied` if they are not signed. The signature itself is not
    /// checked, so there is no secret.
    pub fn access_key(mut self, access_key: &str) -> Self {
        self.settings.access_key = Some(access_key.to_owned());
        self
    }

    /// Accepts GCS requests only with this token.
    pub fn bearer(mut self, token: &str) -> Self {
        self.settings.bearer = Some(token.to_owned());
        self
    }

    /// Answers a request that is signed for another region with `PermanentRedirect` and the name of
    /// this region.
    pub fn region(mut self, region: &str) -> Self {
        self.settings.region = Some(region.to_owned());
        self
    }

    /// Refuses lists, like a bucket whose policy only allows reads. A missing key then also gives
    /// `AccessDenied`.
    pub fn deny_list(mut self) -> Self {
        self.settings.list_denied = true;
        self
    }

    /// Answers a second completion of a multipart upload like the first, instead of with
    /// `NoSuchUpload`.
    pub fn completes_again(mut self) -> Self {
        self.settings.completes_again = true;
        self
    }

    /// Omits the ETags in XML lists, as s3s-fs does.
    pub fn lists_without_etags(mut self) -> Self {
        self.settings.lists_without_etags = true;
        self
    }

    /// Sets the smallest length of a part that is not the last; the default is 5 MiB.
    pub fn part_bytes_min(mut self, bytes: u64) -> Self {
        self.settings.part_bytes_min = bytes;
        self
    }

    /// Sets the largest number of keys in a page of a list; the default is 1000.
    pub fn page_keys_max(mut self, keys: usize) -> Self {
        self.page_keys_max = keys.max(1);
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// Errors of the system for the socket or the threads.
    pub fn start(self) -> io::Result<ObjectServer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            settings: self.settings,
            store: Mutex::default(),
            schedule: Mutex::default(),
            log: Mutex::default(),
            history: Mutex::default(),
            turns: Mutex::default(),
            moment: AtomicU64::new(0),
            latency_us: AtomicU64::new(0),
            page_keys_max: AtomicUsize::new(self.page_keys_max),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("object-server")
            .enable_all()
            .build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let accepting = Arc::clone(&shared);
        // The runtime ends on its own thread, because a thread in a tokio test must not wait for
        // it.
        let thread = std::thread::Builder::new().name("object-server-main".to_owned()).spawn(move || {
            runtime.block_on(connection::accept(listener, accepting, stopped));
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(ObjectServer { address, shared, stop: Some(stop), thread: Some(thread) })
    }
}

/// A running server. When it is dropped, it closes its connections and ends its threads.
#[derive(Debug)]
pub struct ObjectServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectServer {
    /// Starts a server without buckets, for all clients, on a free port.
    ///
    /// # Errors
    /// Errors of the system for the socket or the threads.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// Settings for a server that is not started yet.
    pub fn builder() -> Builder {
        Builder {
            port: 0,
            threads: 2,
            page_keys_max: list::PAGE_KEYS_MAX,
            settings: Settings {
                access_key: None,
                bearer: None,
                region: None,
                list_denied: false,
                completes_again: false,
                lists_without_etags: false,
                part_bytes_min: store::PART_BYTES_MIN,
            },
        }
    }

    /// The URL of the server: `http://127.0.0.1:` and the port.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a fault to the schedule.
    pub fn fault(&self, fault: Fault) {
        locked(&self.shared.schedule).add(fault);
    }

    /// Replaces all faults of the schedule.
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut schedule = locked(&self.shared.schedule);
        schedule.clear();
        faults.into_iter().for_each(|fault| schedule.add(fault));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        locked(&self.shared.schedule).clear();
    }

    /// The number of strikes of each fault, in the order of the schedule.
    pub fn struck(&self) -> Vec<u64> {
        locked(&self.shared.schedule).struck()
    }

    /// Starts to record the changes of each request.
    pub fn record(&self) {
        let history = History::of(&locked(&self.shared.store));
        *locked(&self.shared.history) = Some(history);
    }

    /// Returns the recorded changes, and ends the recording.
    pub fn recorded(&self) -> History {
        locked(&self.shared.history).take().unwrap_or_default()
    }

    /// Replaces the content of all buckets by a state in which a killed writer can leave them.
    pub fn put_back(&self, state: &BucketState) {
        locked(&self.shared.store).put_back(&state.content);
    }

    /// Stops a client at its request number `at`, counted from 0 from now on, and at all later
    /// ones, until [`Stop::go_on`] is called or the result is dropped. The client is identified by
    /// its access key of S3 or its token of GCS.
    #[must_use]
    pub fn stop(&self, client: &str, at: u64) -> Stop {
        let (turn, stop) = turns::begin(at);
        locked(&self.shared.turns).insert(client.to_owned(), turn);
        stop
    }

    /// Lets every request wait for this time before it is processed.
    pub fn latency(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.shared.latency_us.store(micros, Ordering::Relaxed);
    }

    /// Sets the largest number of keys in a page of a list.
    pub fn page_keys_max(&self, keys: usize) {
        self.shared.page_keys_max.store(keys.max(1), Ordering::Relaxed);
    }

    /// The requests since the start or the last [`clear_requests`](Self::clear_requests), in the
    /// order of their answers.
    pub fn requests(&self) -> Vec<Request> {
        locked(&self.shared.log).clone()
    }

    /// The number of requests of this kind.
    pub fn count(&self, op: Op) -> usize {
        locked(&self.shared.log).iter().filter(|request| request.op == op).count()
    }

    /// Empties the request log.
    pub fn clear_requests(&self) {
        locked(&self.shared.log).clear();
    }

    /// The largest number of requests in flight at the same time. A request counts from its headers
    /// to the headers of its answer.
    pub fn in_flight_max(&self) -> usize {
        self.shared.in_flight_max.load(Ordering::SeqCst)
    }

    /// Makes a bucket, unless it already exists.
    pub fn create_bucket(&self, bucket: &str) {
        locked(&self.shared.store).create_bucket(bucket);
    }

    /// Writes an object without a request: no fault, no log entry. Makes the bucket if necessary.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        let blob = blob::Blob::from(bytes.into());
        let etag = etag_of(&blob);
        let mut store = locked(&self.shared.store);
        store.create_bucket(bucket);
        // The bucket exists and there is no condition, so the write cannot be refused.
        _ = store.put(bucket, key, (blob, etag), Vec::new(), &Conditions::default());
    }

    /// Moves the time of the last change of every object into the past.
    pub fn age(&self, by: Duration) {
        locked(&self.shared.store).age(by);
    }

    /// The bytes of an object; `None` if it does not exist.
    pub fn get(&self, bucket: &str, key: &str) -> Option<Bytes> {
        let object = locked(&self.shared.store).get(bucket, key).ok()?;
        Some(object.blob.to_bytes())
    }

    /// The keys of a bucket that begin with `prefix`, in order.
    pub fn keys(&self, bucket: &str, prefix: &str) -> Vec<String> {
        let store = locked(&self.shared.store);
        let keys = store.bucket(bucket).into_iter().flat_map(|objects| objects.keys());
        keys.filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    /// Removes an object. Returns whether it existed.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        locked(&self.shared.store).delete(bucket, key, &Conditions::default()).unwrap_or(false)
    }

    /// Inverts a byte of an object, and keeps its ETag. Returns whether the object exists. An
    /// offset after the end wraps around.
    pub fn flip_byte(&self, bucket: &str, key: &str, offset: u64) -> bool {
        locked(&self.shared.store).damage(bucket, key, |blob| blob.with_wrong_byte(offset)).is_ok()
    }

    /// Truncates an object to `len` bytes, and keeps its ETag. Returns whether the object exists.
    pub fn truncate(&self, bucket: &str, key: &str, len: u64) -> bool {
        locked(&self.shared.store).damage(bucket, key, |blob| blob.slice(0..len)).is_ok()
    }

    /// The number of multipart uploads that are neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        locked(&self.shared.store).uploads().count()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            _ = thread.join();
        }
    }
}
