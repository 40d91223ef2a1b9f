//! Answers: empty ones, documents, and the headers that describe an object.

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::blob::{Blob, Payload};
use super::store::Object;

pub(super) fn empty() -> Response<Payload> {
    Response::new(Payload::default())
}

pub(super) fn document(text: String) -> Response<Payload> {
    let mut response = Response::new(Blob::from(Bytes::from(text)).into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

pub(super) fn json_document(value: &serde_json::Value) -> Response<Payload> {
    let mut response = Response::new(Blob::from(Bytes::from(value.to_string())).into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn no_content() -> Response<Payload> {
    let mut response = empty();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(super) fn set(response: &mut Response<Payload>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

/// Sets the headers that describe an object.
pub(super) fn describe(response: &mut Response<Payload>, object: &Object) {
    set(response, "etag", &object.listed.etag);
    set(response, "last-modified", &httpdate::fmt_http_date(object.listed.modified));
    set(response, "x-goog-generation", &object.generation.to_string());
}
