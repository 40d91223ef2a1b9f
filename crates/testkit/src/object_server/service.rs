//! From a request to its answer: faults, then permission, then the store.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};

use super::blob::{Blob, Dropped, Payload, collected, unchunked};
use super::control;
use super::fault::{Action, Schedule, Strike};
use super::json;
use super::list::{Page, Query};
use super::refusal::{Refusal, error_document};
use super::request::{Dialect, Op, Request, Target};
use super::store::{Conditions, Object, Part, Store, etag_of};
use super::text::{base64, iso_date};
use super::xml::{self, Document};

/// How the server was set up.
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

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) store: Mutex<Store>,
    pub(super) schedule: Mutex<Schedule>,
    pub(super) log: Mutex<Vec<Request>>,
    pub(super) latency_us: AtomicU64,
    pub(super) page_keys_max: AtomicUsize,
    pub(super) in_flight: AtomicUsize,
    pub(super) in_flight_max: AtomicUsize,
}

/// Takes a lock. A panic elsewhere has left nothing half done here.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request from its headers to its answer's.
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

/// Answers one request, or has its connection closed; `reset` says that a TCP reset is to close it.
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
    // A client that goes away in the middle of its body has written nothing.
    let body = collected(body).await.map_err(|_| Dropped)?;
    record.received_bytes = body.len() as u64;
    let wait = strike.delay + Duration::from_micros(shared.latency_us.load(Ordering::Relaxed));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    let mut response = match &strike.end {
        Some((end, false)) => struck_down(&shared, end, &target),
        _ => shared
            .authorized(&target)
            .and_then(|()| shared.carry_out(&target, &body, &strike))
            .unwrap_or_else(|refusal| shared.refused(refusal, &target)),
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
    Ok(response)
}

/// Sets the length, and takes the body from answers that have none.
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

/// The answer of a fault that ends a request. A reset has none.
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

pub(super) fn empty() -> Response<Payload> {
    Response::new(Payload::default())
}

fn document(text: String) -> Response<Payload> {
    let mut response = Response::new(Blob::from(Bytes::from(text)).into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

fn json_document(value: &serde_json::Value) -> Response<Payload> {
    let mut response = Response::new(Blob::from(Bytes::from(value.to_string())).into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The conditions on the object that a request names.
fn conditions(target: &Target) -> Result<Conditions, Refusal> {
    Conditions::of(&target.headers, "")?
        .with_generations(target.param("ifGenerationMatch"), target.param("ifGenerationNotMatch"))
}

fn set(response: &mut Response<Payload>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

impl Shared {
    /// The region that the server says it is in.
    pub(super) fn region(&self) -> &str {
        self.settings.region.as_deref().unwrap_or("us-east-1")
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

    /// Checks who asks: the access key of a SigV4 header or presigned query and its region, or the bearer token.
    /// Signatures themselves are not checked.
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

    fn read(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let object =
            locked(&self.store).get(&target.bucket, &target.key).map_err(|refusal| match refusal {
                // Who may not list may not learn that there is nothing.
                Refusal::NoSuchKey if self.settings.list_denied => Refusal::AccessDenied,
                other => other,
            })?;
        if let Some(generation) = target.param("generation")
            && generation != object.generation.to_string()
        {
            return Err(Refusal::NoSuchKey);
        }
        conditions(target)?.check_read(&object)?;
        let len = object.blob.len_bytes();
        if target.dialect == Dialect::Json && target.op == Op::Head {
            return Ok(json_document(&json::object(&target.bucket, &target.key, &object)));
        }
        let range = target.header(header::RANGE.as_str()).map(|text| range(text, len)).transpose()?.flatten();
        let mut response = match range {
            Some(range) => {
                let mut response = Response::new(object.blob.slice(range.clone()).into());
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let last = range.end - 1;
                set(&mut response, "content-range", &format!("bytes {}-{last}/{len}", range.start));
                response
            }
            None => Response::new(object.blob.clone().into()),
        };
        set(&mut response, "accept-ranges", "bytes");
        set(&mut response, "content-type", "binary/octet-stream");
        describe(&mut response, &object);
        for (name, value) in &object.headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(response)
    }

    fn put(&self, target: &Target, body: &Bytes, strike: &Strike) -> Result<Response<Payload>, Refusal> {
        let mut response = empty();
        let (blob, etag) = received(target, body, strike, &mut response)?;
        let conditions = conditions(target)?;
        let headers = kept_headers(target);
        let object =
            locked(&self.store).put(&target.bucket, &target.key, (blob, etag), headers, &conditions)?;
        if target.dialect == Dialect::Json {
            return Ok(json_document(&json::object(&target.bucket, &target.key, &object)));
        }
        describe(&mut response, &object);
        response.headers_mut().remove(header::LAST_MODIFIED);
        Ok(response)
    }

    /// The object that a copy takes, if the conditions on it hold.
    fn copied(&self, target: &Target) -> Result<Arc<Object>, Refusal> {
        let (bucket, key) = target.copy_source().ok_or(Refusal::InvalidArgument)?;
        let object = locked(&self.store).get(&bucket, &key)?;
        let prefix = match target.dialect {
            Dialect::S3 => "x-amz-copy-source-",
            Dialect::Gcs | Dialect::Json => "x-goog-copy-source-",
        };
        let conditions = Conditions::of(&target.headers, prefix)?;
        conditions.check_read(&object).map_err(|_| Refusal::PreconditionFailed)?;
        Ok(object)
    }

    fn copy(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let source = self.copied(target)?;
        let absent = target.header("cf-copy-destination-if-none-match") == Some("*");
        let conditions = conditions(target)?.or_absent(absent);
        let replaces = |name| target.header(name).is_some_and(|value| value.eq_ignore_ascii_case("replace"));
        let headers = if replaces("x-amz-metadata-directive") || replaces("x-goog-metadata-directive") {
            kept_headers(target)
        } else {
            source.headers.clone()
        };
        let content = (source.blob.clone(), etag_of(&source.blob));
        let object = locked(&self.store).put(&target.bucket, &target.key, content, headers, &conditions)?;
        let mut result = Document::new("CopyObjectResult");
        result.element("LastModified", iso_date(object.listed.modified)).element("ETag", &object.listed.etag);
        let mut response = document(result.finish());
        set(&mut response, "x-goog-generation", &object.generation.to_string());
        Ok(response)
    }

    fn delete(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let conditions = conditions(target)?;
        let existed = locked(&self.store).delete(&target.bucket, &target.key, &conditions)?;
        if !existed && target.dialect != Dialect::S3 {
            return Err(Refusal::NoSuchKey);
        }
        Ok(no_content())
    }

    fn delete_objects(&self, target: &Target, body: &Bytes) -> Result<Response<Payload>, Refusal> {
        let text = std::str::from_utf8(body).map_err(|_| Refusal::MalformedXML)?;
        let quiet = xml::text(text, "Quiet").is_some_and(|text| text.trim() == "true");
        let keys: Vec<_> =
            xml::elements(text, "Object").into_iter().filter_map(|object| xml::text(object, "Key")).collect();
        if keys.is_empty() || keys.len() > 1000 {
            return Err(Refusal::MalformedXML);
        }
        let mut store = locked(&self.store);
        store.bucket(&target.bucket)?;
        let mut result = Document::new("DeleteResult");
        for key in &keys {
            match store.delete(&target.bucket, key, &Conditions::default()) {
                Ok(_) if quiet => {}
                Ok(_) => _ = result.group("Deleted", |entry| _ = entry.element("Key", key)),
                Err(refusal) => {
                    result.group("Error", |entry| {
                        entry.element("Key", key).element("Code", format!("{refusal:?}"));
                    });
                }
            }
        }
        Ok(document(result.finish()))
    }

    fn list(&self, target: &Target, strike: &Strike) -> Result<Response<Payload>, Refusal> {
        if self.settings.list_denied {
            return Err(Refusal::AccessDenied);
        }
        let query = Query::parse(&target.query, self.page_keys_max.load(Ordering::Relaxed))?;
        let mut page = Page::cut(&locked(&self.store), &target.bucket, &query, strike.stale_writes)?;
        if target.dialect == Dialect::Json {
            return Ok(json_document(&json::page(&target.bucket, &page)));
        }
        if self.settings.lists_without_etags {
            page.objects.iter_mut().for_each(|(_, listed)| listed.etag.clear());
        }
        Ok(document(page.document(&target.bucket, &query)))
    }

    fn create_upload(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let id = locked(&self.store).create_upload(&target.bucket, &target.key, kept_headers(target))?;
        let mut result = Document::new("InitiateMultipartUploadResult");
        result.element("Bucket", &target.bucket).element("Key", &target.key).element("UploadId", id);
        Ok(document(result.finish()))
    }

    fn upload_part(
        &self,
        target: &Target,
        body: &Bytes,
        strike: &Strike,
    ) -> Result<Response<Payload>, Refusal> {
        let mut response = empty();
        let (blob, etag) = received(target, body, strike, &mut response)?;
        set(&mut response, "etag", &etag);
        self.keep_part(target, Part { blob, etag })?;
        Ok(response)
    }

    fn upload_part_copy(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let source = self.copied(target)?;
        let len = source.blob.len_bytes();
        let range =
            target.header("x-amz-copy-source-range").map(|text| range(text, len)).transpose()?.flatten();
        let blob = range.map_or_else(|| source.blob.clone(), |range| source.blob.slice(range));
        let etag = etag_of(&blob);
        let mut result = Document::new("CopyPartResult");
        result.element("LastModified", iso_date(source.listed.modified)).element("ETag", &etag);
        self.keep_part(target, Part { blob, etag })?;
        Ok(document(result.finish()))
    }

    fn keep_part(&self, target: &Target, part: Part) -> Result<(), Refusal> {
        let number = target.param("partNumber").and_then(|number| number.parse().ok());
        let number = number.filter(|number| (1..=10_000).contains(number)).ok_or(Refusal::InvalidArgument)?;
        let id = target.param("uploadId").unwrap_or("");
        locked(&self.store).upload(&target.bucket, &target.key, id)?.parts.insert(number, part);
        Ok(())
    }

    fn complete(&self, target: &Target, body: &Bytes) -> Result<Response<Payload>, Refusal> {
        let text = std::str::from_utf8(body).map_err(|_| Refusal::MalformedXML)?;
        let parts = xml::elements(text, "Part").into_iter().map(|part| {
            let number = xml::text(part, "PartNumber")?.trim().parse::<u32>().ok()?;
            Some((number, xml::text(part, "ETag")?))
        });
        let parts: Vec<_> = parts.collect::<Option<_>>().ok_or(Refusal::MalformedXML)?;
        let conditions = conditions(target)?;
        let id = target.param("uploadId").unwrap_or("");
        let mut store = locked(&self.store);
        let place = (target.bucket.as_str(), target.key.as_str(), id);
        let outcome = store.complete_upload(place, &parts, self.settings.part_bytes_min, &conditions);
        let object = match (outcome, store.completed(id)) {
            (Err(Refusal::NoSuchUpload), Some(object)) if self.settings.completes_again => object,
            (outcome, _) => outcome?,
        };
        let mut result = Document::new("CompleteMultipartUploadResult");
        result
            .element("Location", &target.resource)
            .element("Bucket", &target.bucket)
            .element("Key", &target.key)
            .element("ETag", &object.listed.etag);
        let mut response = document(result.finish());
        set(&mut response, "x-goog-generation", &object.generation.to_string());
        Ok(response)
    }

    fn list_uploads(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let store = locked(&self.store);
        store.bucket(&target.bucket)?;
        let prefix = target.param("prefix").unwrap_or("");
        let mut result = Document::new("ListMultipartUploadsResult");
        result.element("Bucket", &target.bucket).element("IsTruncated", false);
        for (id, upload) in store.uploads() {
            if upload.bucket == target.bucket && upload.key.starts_with(prefix) {
                result.group("Upload", |entry| {
                    let initiated = iso_date(upload.initiated);
                    entry.element("Key", &upload.key).element("UploadId", id).element("Initiated", initiated);
                });
            }
        }
        Ok(document(result.finish()))
    }

    fn list_parts(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let id = target.param("uploadId").unwrap_or("");
        let mut store = locked(&self.store);
        let upload = store.upload(&target.bucket, &target.key, id)?;
        let mut result = Document::new("ListPartsResult");
        result.element("Bucket", &target.bucket).element("Key", &target.key).element("UploadId", id);
        result.element("IsTruncated", false);
        for (number, part) in &upload.parts {
            result.group("Part", |entry| {
                let size_bytes = part.blob.len_bytes();
                entry.element("PartNumber", number).element("ETag", &part.etag).element("Size", size_bytes);
            });
        }
        Ok(document(result.finish()))
    }
}

fn no_content() -> Response<Payload> {
    let mut response = empty();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The headers that say which object this is.
fn describe(response: &mut Response<Payload>, object: &Object) {
    set(response, "etag", &object.listed.etag);
    set(response, "last-modified", &httpdate::fmt_http_date(object.listed.modified));
    set(response, "x-goog-generation", &object.generation.to_string());
}

/// The range that `text` asks for in `len` bytes. `None` where the header is to be ignored: another unit, several
/// ranges, or no sense.
fn range(text: &str, len: u64) -> Result<Option<Range<u64>>, Refusal> {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Ok(None);
    };
    let range = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..len.min(last.saturating_add(1)),
        (Ok(first), Err(_)) if last.trim().is_empty() => first..len,
        (Err(_), Ok(suffix)) if first.trim().is_empty() => len.saturating_sub(suffix)..len,
        _ => return Ok(None),
    };
    if range.is_empty() { Err(Refusal::InvalidRange) } else { Ok(Some(range)) }
}

/// The content of a write and its ETag: unwrapped if it came in signed chunks, compared with the checksums that came
/// in headers (which the answer repeats), and only then made wrong, should a fault ask for that.
fn received(
    target: &Target,
    body: &Bytes,
    strike: &Strike,
    response: &mut Response<Payload>,
) -> Result<(Blob, String), Refusal> {
    let chunked = target.header("x-amz-content-sha256").is_some_and(|sum| sum.starts_with("STREAMING-"))
        || target.header("content-encoding").is_some_and(|coding| coding.contains("aws-chunked"));
    let mut blob =
        if chunked { unchunked(body).ok_or(Refusal::IncompleteBody)? } else { Blob::from(body.clone()) };
    if let Some(len) = target.header("x-amz-decoded-content-length")
        && len.parse() != Ok(blob.len_bytes())
    {
        return Err(Refusal::IncompleteBody);
    }
    let checksums = [
        ("x-amz-checksum-crc32", CrcAlgorithm::Crc32IsoHdlc, 4),
        ("x-amz-checksum-crc32c", CrcAlgorithm::Crc32Iscsi, 4),
        ("x-amz-checksum-crc64nvme", CrcAlgorithm::Crc64Nvme, 8),
    ];
    for (name, algorithm, width) in checksums {
        if let Some(announced) = target.header(name) {
            let sum = blob.checksum(algorithm).to_be_bytes();
            if base64(&sum[sum.len() - width..]) != announced {
                return Err(Refusal::BadDigest);
            }
            set(response, name, announced);
        }
    }
    if let Some(offset) = strike.wrong_byte {
        blob = blob.with_wrong_byte(offset);
    }
    let etag = etag_of(&blob);
    Ok((blob, etag))
}

/// The headers of a write that reads repeat.
fn kept_headers(target: &Target) -> Vec<(HeaderName, HeaderValue)> {
    let kept = |name: &HeaderName| {
        [header::CONTENT_TYPE, header::CACHE_CONTROL, header::CONTENT_DISPOSITION, header::CONTENT_LANGUAGE]
            .contains(name)
            || name.as_str().starts_with("x-amz-meta-")
            || name.as_str().starts_with("x-goog-meta-")
    };
    let mut headers: Vec<_> = target
        .headers
        .iter()
        .filter(|(name, _)| kept(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(coding) = target.header("content-encoding") {
        let codings: Vec<_> =
            coding.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked").collect();
        if let Ok(value) = HeaderValue::from_str(&codings.join(", "))
            && !value.is_empty()
        {
            headers.push((header::CONTENT_ENCODING, value));
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(range("bytes=0-0", 10), Ok(Some(0..1)));
        assert_eq!(range("bytes=3-", 10), Ok(Some(3..10)));
        assert_eq!(range("bytes=3-99", 10), Ok(Some(3..10)));
        assert_eq!(range("bytes=-4", 10), Ok(Some(6..10)));
        assert_eq!(range("bytes=-40", 10), Ok(Some(0..10)));
        assert_eq!(range("bytes=10-", 10), Err(Refusal::InvalidRange));
        assert_eq!(range("bytes=10-12", 10), Err(Refusal::InvalidRange));
        assert_eq!(range("bytes=-0", 10), Err(Refusal::InvalidRange));
        assert_eq!(range("bytes=0-", 0), Err(Refusal::InvalidRange));
        for ignored in ["bytes=5-3", "bytes=0-1,3-4", "items=0-1", "bytes=-", "bytes=a-b"] {
            assert_eq!(range(ignored, 10), Ok(None), "{ignored}");
        }
    }
}
