//! The few requests of GCS's JSON API that TensorStore's `gcs` driver sends.
//!
//! ```text
//! GET    /storage/v1/b/BUCKET/o/KEY?alt=media                  the object; without alt=media, its metadata
//! DELETE /storage/v1/b/BUCKET/o/KEY
//! GET    /storage/v1/b/BUCKET/o?prefix&startOffset&endOffset   a list
//! POST   /upload/storage/v1/b/BUCKET/o?uploadType=media&name=KEY
//! ```
//!
//! Conditions are the parameters `ifGenerationMatch` and `ifGenerationNotMatch`. In the other
//! dialects such a path would name a bucket `storage` or `upload`; the server has none of these.
//!
//! Source: Google, "Cloud Storage JSON API".

use hyper::Method;
use serde_json::{Value, json};

use super::list::{Page, token_of};
use super::request::Op;
use super::store::{Listed, Object};
use super::text::{iso_date, percent_decoded};

const OBJECTS: &str = "/storage/v1/b/";
const UPLOADS: &str = "/upload/storage/v1/b/";

/// The operation, bucket and key of a request in this dialect; `None` for other dialects.
pub(super) fn parse(method: &Method, path: &str, query: &[(String, String)]) -> Option<(Op, String, String)> {
    let param = |name: &str| query.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str());
    let uploads = path.strip_prefix(UPLOADS);
    let rest = uploads.or_else(|| path.strip_prefix(OBJECTS))?;
    let (bucket, object) = rest.split_once('/').unwrap_or((rest, ""));
    let key = percent_decoded(object.strip_prefix("o/").unwrap_or(""));
    let op = match (method.as_str(), uploads.is_some(), object == "o", param("uploadType")) {
        ("POST", true, true, Some("media")) => Op::Put,
        ("GET", false, true, _) => Op::List,
        ("GET", false, false, _) if key.is_empty() => Op::Other,
        ("GET", false, false, _) => {
            if param("alt") == Some("media") {
                Op::Get
            } else {
                Op::Head
            }
        }
        ("DELETE", false, false, _) if !key.is_empty() => Op::Delete,
        _ => Op::Other,
    };
    let key = if op == Op::Put { param("name").unwrap_or("").to_owned() } else { key };
    Some((op, percent_decoded(bucket), key))
}

pub(super) fn object(bucket: &str, key: &str, object: &Object) -> Value {
    let mut value = listed(bucket, key, &object.listed);
    value["generation"] = json!(object.generation.to_string());
    value
}

fn listed(bucket: &str, key: &str, listed: &Listed) -> Value {
    json!({
        "kind": "storage#object",
        "name": key,
        "bucket": bucket,
        "size": listed.size_bytes.to_string(),
        "etag": listed.etag,
        "updated": iso_date(listed.modified),
        "metageneration": "1",
        "storageClass": "STANDARD",
    })
}

pub(super) fn page(bucket: &str, page: &Page) -> Value {
    let items: Vec<_> = page.objects.iter().map(|(key, entry)| listed(bucket, key, entry)).collect();
    let mut value = json!({ "kind": "storage#objects", "items": items });
    if !page.prefixes.is_empty() {
        value["prefixes"] = json!(page.prefixes);
    }
    if let Some(last) = &page.last {
        value["nextPageToken"] = json!(token_of(last));
    }
    value
}
