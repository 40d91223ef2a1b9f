//! Reads, writes, copies, deletes and lists objects.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::answers::{describe, document, empty, json_document, no_content, set};
use super::blob::{Blob, Payload, unchunked};
use super::fault::Strike;
use super::json;
use super::list::{Page, Query};
use super::refusal::Refusal;
use super::request::{Dialect, Op, Target};
use super::service::{Shared, locked};
use super::store::{Conditions, Object, etag_of};
use super::text::{base64, iso_date};
use super::xml::{self, Document};

impl Shared {
    pub(super) fn read(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let object =
            locked(&self.store).get(&target.bucket, &target.key).map_err(|refusal| match refusal {
                // A client without permission to list must not learn that the key is missing.
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

    pub(super) fn put(
        &self,
        target: &Target,
        body: &Bytes,
        strike: &Strike,
    ) -> Result<Response<Payload>, Refusal> {
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

    /// The source object of a copy, if the conditions on it are met.
    pub(super) fn copied(&self, target: &Target) -> Result<Arc<Object>, Refusal> {
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

    pub(super) fn copy(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
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

    pub(super) fn delete(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let conditions = conditions(target)?;
        let existed = locked(&self.store).delete(&target.bucket, &target.key, &conditions)?;
        if !existed && target.dialect != Dialect::S3 {
            return Err(Refusal::NoSuchKey);
        }
        Ok(no_content())
    }

    pub(super) fn delete_objects(&self, target: &Target, body: &Bytes) -> Result<Response<Payload>, Refusal> {
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

    pub(super) fn list(&self, target: &Target, strike: &Strike) -> Result<Response<Payload>, Refusal> {
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
}

pub(super) fn conditions(target: &Target) -> Result<Conditions, Refusal> {
    Conditions::of(&target.headers, "")?
        .with_generations(target.param("ifGenerationMatch"), target.param("ifGenerationNotMatch"))
}

/// Parses a range in an object of `len` bytes. `None` if the header must be ignored: another unit,
/// several ranges, or an invalid range.
pub(super) fn range(text: &str, len: u64) -> Result<Option<Range<u64>>, Refusal> {
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

/// The content of a write and its ETag. Decodes signed chunks, and compares the content with the
/// checksums in headers (which the answer repeats). Then a fault may invert a byte.
pub(super) fn received(
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

/// The headers of a write that later reads return.
pub(super) fn kept_headers(target: &Target) -> Vec<(HeaderName, HeaderValue)> {
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
