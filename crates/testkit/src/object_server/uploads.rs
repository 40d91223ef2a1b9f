//! Multipart uploads: begins, fills, completes and lists them.

use bytes::Bytes;
use hyper::Response;

use super::answers::{document, empty, set};
use super::blob::Payload;
use super::fault::Strike;
use super::objects::{conditions, kept_headers, range, received};
use super::refusal::Refusal;
use super::request::Target;
use super::service::{Shared, locked};
use super::store::{Part, etag_of};
use super::text::iso_date;
use super::xml::{self, Document};

impl Shared {
    pub(super) fn create_upload(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
        let id = locked(&self.store).create_upload(&target.bucket, &target.key, kept_headers(target))?;
        let mut result = Document::new("InitiateMultipartUploadResult");
        result.element("Bucket", &target.bucket).element("Key", &target.key).element("UploadId", id);
        Ok(document(result.finish()))
    }

    pub(super) fn upload_part(
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

    pub(super) fn upload_part_copy(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
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

    pub(super) fn complete(&self, target: &Target, body: &Bytes) -> Result<Response<Payload>, Refusal> {
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

    pub(super) fn list_uploads(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
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

    pub(super) fn list_parts(&self, target: &Target) -> Result<Response<Payload>, Refusal> {
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
