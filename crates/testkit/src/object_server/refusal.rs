//! The answers of the server to refused requests.

use serde::{Deserialize, Serialize};

use super::xml::Document;

/// An error of the protocols, with the name that S3 uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are S3's own error codes")]
pub enum Refusal {
    AccessDenied,
    BadDigest,
    BucketNotEmpty,
    ConditionalRequestConflict,
    EntityTooSmall,
    ExpiredToken,
    IncompleteBody,
    InternalError,
    InvalidAccessKeyId,
    InvalidArgument,
    InvalidPart,
    InvalidPartOrder,
    InvalidRange,
    InvalidToken,
    MalformedXML,
    MethodNotAllowed,
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    NotModified,
    PermanentRedirect,
    PreconditionFailed,
    RequestTimeTooSkewed,
    RequestTimeout,
    ServiceUnavailable,
    SignatureDoesNotMatch,
    SlowDown,
    TooManyRequests,
    Unauthorized,
}

impl Refusal {
    /// The status code for the error.
    ///
    /// Source: AWS, "Error responses". For the two errors that S3 does not have: Google, "HTTP
    /// status and error codes for XML".
    pub fn status(self) -> u16 {
        match self {
            Self::PermanentRedirect => 301,
            Self::NotModified => 304,
            Self::BadDigest
            | Self::EntityTooSmall
            | Self::ExpiredToken
            | Self::IncompleteBody
            | Self::InvalidArgument
            | Self::InvalidPart
            | Self::InvalidPartOrder
            | Self::InvalidToken
            | Self::MalformedXML
            | Self::RequestTimeout => 400,
            Self::Unauthorized => 401,
            Self::AccessDenied
            | Self::InvalidAccessKeyId
            | Self::RequestTimeTooSkewed
            | Self::SignatureDoesNotMatch => 403,
            Self::NoSuchBucket | Self::NoSuchKey | Self::NoSuchUpload => 404,
            Self::MethodNotAllowed => 405,
            Self::BucketNotEmpty | Self::ConditionalRequestConflict => 409,
            Self::PreconditionFailed => 412,
            Self::InvalidRange => 416,
            Self::TooManyRequests => 429,
            Self::InternalError => 500,
            Self::ServiceUnavailable | Self::SlowDown => 503,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::AccessDenied => "Access Denied",
            Self::BadDigest => "The checksum you specified did not match what we received.",
            Self::BucketNotEmpty => "The bucket you tried to delete is not empty.",
            Self::ConditionalRequestConflict => "A conflicting conditional operation is in progress.",
            Self::EntityTooSmall => "Your proposed upload is smaller than the minimum allowed size.",
            Self::ExpiredToken => "The provided token has expired.",
            Self::IncompleteBody => "The body ended before its last chunk.",
            Self::InternalError => "We encountered an internal error. Please try again.",
            Self::InvalidAccessKeyId => "The AWS access key ID you provided does not exist in our records.",
            Self::InvalidArgument => "Invalid Argument",
            Self::InvalidPart => "One or more of the specified parts could not be found.",
            Self::InvalidPartOrder => "The list of parts was not in ascending order.",
            Self::InvalidRange => "The requested range is not satisfiable",
            Self::InvalidToken => "The continuation token provided is incorrect.",
            Self::MalformedXML => "The XML you provided was not well-formed.",
            Self::MethodNotAllowed => "The specified method is not allowed against this resource.",
            Self::NoSuchBucket => "The specified bucket does not exist",
            Self::NoSuchKey => "The specified key does not exist.",
            Self::NoSuchUpload => "The specified multipart upload does not exist.",
            Self::NotModified => "Not Modified",
            Self::PermanentRedirect => "The bucket must be addressed at the endpoint of its own region.",
            Self::PreconditionFailed => "At least one of the pre-conditions you specified did not hold",
            Self::RequestTimeTooSkewed => {
                "The difference between the request time and the server's is too large."
            }
            Self::RequestTimeout => {
                "Your socket connection to the server was not read from or written to in time."
            }
            Self::ServiceUnavailable => "Service is unable to handle request.",
            Self::SignatureDoesNotMatch => {
                "The request signature we calculated does not match the one you sent."
            }
            Self::SlowDown => "Please reduce your request rate.",
            Self::TooManyRequests => "Too many requests.",
            Self::Unauthorized => "The bearer token is missing or not the right one.",
        }
    }

    pub(super) fn document(self, resource: &str) -> String {
        error_document(&format!("{self:?}"), self.message(), resource)
    }
}

pub(super) fn error_document(code: &str, message: &str, resource: &str) -> String {
    let mut document = Document::bare("Error");
    document.element("Code", code).element("Message", message).element("Resource", resource);
    document.finish()
}
