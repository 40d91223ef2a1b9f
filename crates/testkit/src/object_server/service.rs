//! Processes a request: first faults, then permissions, then the operation.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header;
use hyper::{Method, Response, StatusCode};

use super::answers::{describe, document, empty, no_content, set};
use super::blob::{Dropped, Payload, collected};
use super::control;
use super::fault::{Action, Schedule, Strike};
use super::history::History;
use super::refusal::{Refusal, error_document};
use super::request::{Dialect, Op, Request, Target};
use super::store::Store;
use super::turns::Turns;
use super::xml::{self, Document};

/// The settings of the server.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) access_key: Option<String>,
    pub(super) bearer: Option<String>,
    pub(super) region: Option<String>,
    pub(super) list_denied: bool,
    pub(super) completes_again: bool,
    pub(super) lists_without_etags: bool,
    pub(super) part_bytes_min: u64,
}

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) store: Mutex<Store>,
    pub(super) schedule: Mutex<Schedule>,
    pub(super) log: Mutex<Vec<Request>>,
    /// The recorded changes, during a recording.
    pub(super) history: Mutex<Option<History>>,
    pub(super) turns: Mutex<Turns>,
    /// A counter that gives events an order.
    pub(super) moment: AtomicU64,
    pub(super) latency_us: AtomicU64,
    pub(super) page_keys_max: AtomicUsize,
    pub(super) in_flight: AtomicUsize,
    pub(super) in_flight_max: AtomicUsize,
}

/// Takes a lock. After a panic in another thread, the data is still consistent.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request as in flight, from its headers to the headers of its answer.
struct InFlight<'a>(&'a Shared);

impl<'a> InFlight<'a> {
    fn enter(shared: &'a Shared) -> Self {
        let now = shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        shared.in_flight_max.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers one request, or closes its connection. `reset` requests a TCP reset.
pub(super) async fn answer(
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
    reset: Arc<AtomicBool>,
) -> Result<Response<Payload>, Dropped> {
    let (parts, body) = request.into_parts();
    let target = Target::parse(parts);
    if target.bucket == control::BUCKET {
        let body = collected(body).await.map_err(|_| Dropped)?;
        return Ok(control::answer(&shared, &target, &body));
    }
    let _in_flight = InFlight::enter(&shared);
    let began = shared.moment.fetch_add(1, Ordering::SeqCst);
    let strike = locked(&shared.schedule).strike(&target);
    let mut record = target.record();
    record.faults.clone_from(&strike.names);
    let drop_connection = |record: Request| {
        locked(&shared.log).push(record);
        reset.store(true, Ordering::SeqCst);
        Err(Dropped)
    };
    if strike.end == Some((Action::Reset, false)) {
        tokio::time::sleep(strike.delay).await;
        return drop_connection(record);
    }
    // A client that closes the connection during its body has written nothing.
    let body = collected(body).await.map_err(|_| Dropped)?;
    record.received_bytes = body.len() as u64;
    let turn = client_of(&target).and_then(|client| locked(&shared.turns).get_mut(client)?.take());
    if let Some(mut goes_on) = turn {
        // An error means that the test has ended.
        _ = goes_on.wait_for(|goes_on| *goes_on).await;
    }
    let wait = strike.delay + Duration::from_micros(shared.latency_us.load(Ordering::Relaxed));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    let mut write = None;
    let mut response = match &strike.end {
        Some((end, false)) => struck_down(&shared, end, &target),
        _ => {
            let answered;
            (answered, write) = shared.recorded(&target, began, || {
                shared.authorized(&target).and_then(|()| shared.carry_out(&target, &body, &strike))
            });
            answered.unwrap_or_else(|refusal| shared.refused(refusal, &target))
        }
    };
    match &strike.end {
        Some((Action::Reset, true)) => return drop_connection(record),
        Some((end, true)) => response = struck_down(&shared, end, &target),
        _ => {}
    }
    finish(&mut response, &target, &strike);
    record.status = response.status().as_u16();
    record.sent_bytes = response.body().left_bytes();
    if let Some((chunk_bytes, pause)) = strike.drip {
        response.body_mut().drip(chunk_bytes, pause);
    }
    if let Some(bytes) = strike.cut_bytes {
        response.body_mut().cut_after(bytes);
    }
    locked(&shared.log).push(record);
    if let (Some(write), Some(history)) = (write, &mut *locked(&shared.history)) {
        history.end(write, shared.moment.fetch_add(1, Ordering::SeqCst));
    }
    Ok(response)
}

/// The client: the bearer token, or the access key of the signature.
fn client_of(target: &Target) -> Option<&str> {
    let header = target.header(header::AUTHORIZATION.as_str())?;
    match header.strip_prefix("Bearer ") {
        Some(token) => Some(token.trim()),
        None => header.split("Credential=").nth(1)?.split('/').next(),
    }
}

/// Sets the length, and removes the body from answers without one.
fn finish(response: &mut Response<Payload>, target: &Target, strike: &Strike) {
    let reads = matches!(target.op, Op::Get | Op::List);
    if reads
        && response.status().is_success()
        && let Some(offset) = strike.wrong_byte
    {
        let body = std::mem::take(response.body_mut()).into_blob();
        *response.body_mut() = body.with_wrong_byte(offset).into();
    }
    let status = response.status();
    if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Payload::default();
        return;
    }
    let len = response.body().left_bytes();
    response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(len.into());
    if target.method == Method::HEAD {
        *response.body_mut() = Payload::default();
    }
}

/// The answer for a fault that ends the request. A reset has no answer.
fn struck_down(shared: &Shared, end: &Action, target: &Target) -> Response<Payload> {
    match end {
        Action::Refuse(refusal) => shared.refused(*refusal, target),
        Action::ErrorIn200(refusal) => {
            let mut response = shared.refused(*refusal, target);
            *response.status_mut() = StatusCode::OK;
            response
        }
        Action::Status { status, code } => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response = document(error_document(code, "A fault of the schedule.", &target.resource));
            *response.status_mut() = status;
            response
        }
        _ => empty(),
    }
}

impl Shared {
    pub(super) fn region(&self) -> &str {
        self.settings.region.as_deref().unwrap_or("us-east-1")
    }

    /// Processes the request, and records its changes during a recording. A recording processes
    /// only one request at a time.
    fn recorded<T>(&self, target: &Target, began: u64, work: impl FnOnce() -> T) -> (T, Option<usize>) {
        let mut history = locked(&self.history);
        let Some(history) = &mut *history else {
            drop(history);
            return (work(), None);
        };
        let before = locked(&self.store).content();
        let done = work();
        let after = locked(&self.store).content();
        (done, history.add(target, began, &before, &after))
    }

    fn refused(&self, refusal: Refusal, target: &Target) -> Response<Payload> {
        let mut response = document(refusal.document(&target.resource));
        *response.status_mut() = StatusCode::from_u16(refusal.status()).unwrap_or_default();
        if refusal == Refusal::PermanentRedirect {
            set(&mut response, "x-amz-bucket-region", self.region());
        }
        if refusal == Refusal::NotModified
            && let Ok(object) = locked(&self.store).get(&target.bucket, &target.key)
        {
            describe(&mut response, &object);
        }
        response
    }

    /// Checks the client: the access key and region in a SigV4 header or presigned query, or the
    /// bearer token. Signatures themselves are not checked.
    fn authorized(&self, target: &Target) -> Result<(), Refusal> {
        let header = target.header(header::AUTHORIZATION.as_str());
        if target.dialect != Dialect::S3 {
            let token = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
            return match &self.settings.bearer {
                Some(wanted) if token != Some(wanted) => Err(Refusal::Unauthorized),
                _ => Ok(()),
            };
        }
        // Credential=AKIDEXAMPLE/20260131/us-east-1/s3/aws4_request, ...
        let signed = header
            .and_then(|value| value.split("Credential=").nth(1))
            .and_then(|rest| rest.split(',').next())
            .or_else(|| target.param("X-Amz-Credential"));
        let mut scope = signed.unwrap_or("").split('/');
        let (key, region) = (scope.next(), scope.nth(1));
        if let Some(wanted) = &self.settings.access_key {
            if signed.is_none() {
                return Err(Refusal::AccessDenied);
            }
            if key != Some(wanted) {
                return Err(Refusal::InvalidAccessKeyId);
            }
        }
        match &self.settings.region {
            Some(wanted) if signed.is_some() && region != Some(wanted) => Err(Refusal::PermanentRedirect),
            _ => Ok(()),
        }
    }

    fn carry_out(
        &self,
        target: &Target,
        body: &Bytes,
        strike: &Strike,
    ) -> Result<Response<Payload>, Refusal> {
        match target.op {
            Op::Get | Op::Head => self.read(target),
            Op::Put => self.put(target, body, strike),
            Op::Copy => self.copy(target),
            Op::Delete => self.delete(target),
            Op::DeleteObjects => self.delete_objects(target, body),
            Op::List => self.list(target, strike),
            Op::CreateUpload => self.create_upload(target),
            Op::UploadPart => self.upload_part(target, body, strike),
            Op::UploadPartCopy => self.upload_part_copy(target),
            Op::Complete => self.complete(target, body),
            Op::Abort => {
                let id = target.param("uploadId").unwrap_or("");
                locked(&self.store).abort_upload(&target.bucket, &target.key, id)?;
                Ok(no_content())
            }
            Op::ListUploads => self.list_uploads(target),
            Op::ListParts => self.list_parts(target),
            Op::CreateBucket => {
                locked(&self.store).create_bucket(&target.bucket);
                Ok(empty())
            }
            Op::HeadBucket => {
                locked(&self.store).bucket(&target.bucket)?;
                let mut response = empty();
                set(&mut response, "x-amz-bucket-region", self.region());
                Ok(response)
            }
            Op::DeleteBucket => {
                locked(&self.store).delete_bucket(&target.bucket)?;
                Ok(no_content())
            }
            Op::ListBuckets => {
                let mut listing = Document::new("ListAllMyBucketsResult");
                listing.group("Buckets", |buckets| {
                    for name in locked(&self.store).bucket_names() {
                        buckets.group("Bucket", |bucket| _ = bucket.element("Name", name));
                    }
                });
                Ok(document(listing.finish()))
            }
            Op::Location => {
                locked(&self.store).bucket(&target.bucket)?;
                let root = format!("<LocationConstraint xmlns=\"{}\">", xml::NAMESPACE);
                Ok(document(format!("{}{root}{}</LocationConstraint>", xml::HEAD, self.region())))
            }
            Op::Other => Err(Refusal::MethodNotAllowed),
        }
    }
}
