//! The operation of a request, read only from its first line and headers, and its record in the
//! log.

use hyper::Method;
use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use serde::{Deserialize, Serialize};

use super::json;
use super::text::{percent_decoded, query_pairs};

/// The kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is one request of the protocols, named as the protocols name it")]
pub enum Op {
    Get,
    Head,
    Put,
    Copy,
    Delete,
    /// Many deletions in one request.
    DeleteObjects,
    List,
    CreateUpload,
    UploadPart,
    /// Uploads a part that is a range of another object.
    UploadPartCopy,
    Complete,
    Abort,
    ListUploads,
    ListParts,
    CreateBucket,
    HeadBucket,
    DeleteBucket,
    ListBuckets,
    Location,
    /// A request that the server does not know.
    Other,
}

/// One entry of the request log.
#[derive(Debug, Clone, Serialize)]
pub struct Request {
    /// The method, such as `GET` or `PUT`.
    pub method: String,
    /// The kind of the request.
    pub op: Op,
    /// The bucket; empty for a list of buckets.
    pub bucket: String,
    /// The key of the object; for a list, the prefix.
    pub key: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The conditional headers, as `if-none-match: *`.
    pub conditions: Vec<String>,
    /// The status of the answer; 0 if the connection was closed instead.
    pub status: u16,
    /// The length of the request's body.
    pub received_bytes: u64,
    /// The announced length of the answer's body.
    pub sent_bytes: u64,
    /// The faults that struck the request, in order.
    pub faults: Vec<String>,
}

/// The protocol of the client, where answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    S3,
    Gcs,
    /// GCS's JSON API.
    Json,
}

/// The parsed first line and headers of a request.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) method: Method,
    pub(super) dialect: Dialect,
    pub(super) op: Op,
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) resource: String,
}

impl Target {
    pub(super) fn parse(parts: Parts) -> Self {
        let Parts { method, uri, headers, .. } = parts;
        let resource = uri.path().to_owned();
        let path = resource.strip_prefix('/').unwrap_or(&resource);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let (bucket, key) = (percent_decoded(bucket), percent_decoded(key));
        let mut target = Self {
            dialect: dialect(&headers),
            op: Op::Other,
            bucket,
            key,
            query: query_pairs(uri.query().unwrap_or("")),
            method,
            headers,
            resource,
        };
        match json::parse(&target.method, &target.resource, &target.query) {
            Some((op, bucket, key)) => {
                target.dialect = Dialect::Json;
                (target.op, target.bucket, target.key) = (op, bucket, key);
            }
            None => target.op = target.classify(),
        }
        target
    }

    fn classify(&self) -> Op {
        let asks = |name| self.param(name).is_some();
        let copies = self.copy_source().is_some();
        if self.bucket.is_empty() {
            return if self.method == Method::GET { Op::ListBuckets } else { Op::Other };
        }
        match (self.method.as_str(), self.key.is_empty()) {
            ("GET", true) if asks("uploads") => Op::ListUploads,
            ("GET", true) if asks("location") => Op::Location,
            ("GET", true) => Op::List,
            ("HEAD", true) => Op::HeadBucket,
            ("PUT", true) => Op::CreateBucket,
            ("DELETE", true) => Op::DeleteBucket,
            ("POST", true) if asks("delete") => Op::DeleteObjects,
            ("GET", false) if asks("uploadId") => Op::ListParts,
            ("GET", false) => Op::Get,
            ("HEAD", false) => Op::Head,
            ("PUT", false) if asks("uploadId") && copies => Op::UploadPartCopy,
            ("PUT", false) if asks("uploadId") => Op::UploadPart,
            ("PUT", false) if copies => Op::Copy,
            ("PUT", false) => Op::Put,
            ("POST", false) if asks("uploads") => Op::CreateUpload,
            ("POST", false) if asks("uploadId") => Op::Complete,
            ("DELETE", false) if asks("uploadId") => Op::Abort,
            ("DELETE", false) => Op::Delete,
            _ => Op::Other,
        }
    }

    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The bucket and key of `x-amz-copy-source` or `x-goog-copy-source`.
    pub(super) fn copy_source(&self) -> Option<(String, String)> {
        let source = self.header("x-amz-copy-source").or_else(|| self.header("x-goog-copy-source"))?;
        let source = percent_decoded(source);
        let (bucket, key) = source.trim_start_matches('/').split_once('/')?;
        Some((bucket.to_owned(), key.to_owned()))
    }

    pub(super) fn key_or_prefix(&self) -> &str {
        if self.key.is_empty() { self.param("prefix").unwrap_or("") } else { &self.key }
    }

    /// The log entry of the request, without an answer.
    pub(super) fn record(&self) -> Request {
        let conditions = self.headers.iter().filter(|(name, _)| name.as_str().contains("if-"));
        Request {
            method: self.method.to_string(),
            op: self.op,
            bucket: self.bucket.clone(),
            key: self.key_or_prefix().to_owned(),
            range: self.header(header::RANGE.as_str()).map(str::to_owned),
            conditions: conditions
                .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
                .collect(),
            status: 0,
            received_bytes: 0,
            sent_bytes: 0,
            faults: Vec::new(),
        }
    }
}

/// Clients of GCS send a bearer token, which may be empty, or a header of Google.
fn dialect(headers: &HeaderMap) -> Dialect {
    let bearer =
        headers.get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(b"Bearer"));
    if bearer || headers.keys().any(|name| name.as_str().starts_with("x-goog-")) {
        Dialect::Gcs
    } else {
        Dialect::S3
    }
}
