//! Requests under `/-/`, which is not the name of a bucket. Tests in other languages control the
//! server with these requests.
//!
//! ```text
//! POST   /-/faults     adds a fault or a list of them, see `Fault`     DELETE removes them all
//! GET    /-/faults     the number of strikes of each fault
//! GET    /-/requests   the request log                                 DELETE empties it
//! GET    /-/status     {"open_uploads", "in_flight_max"}
//! POST   /-/settings   {"latency_ms", "page_keys_max"}, both optional
//! POST   /-/damage     {"bucket", "key", "flip": offset} or {"bucket", "key", "truncate": length}
//! POST   /-/reset      faults, log and latency as at the start; with `?objects` the buckets are empty, too
//! ```
//!
//! These requests are not logged, have no faults, and need no credentials.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::blob::{Blob, Payload};
use super::fault::Fault;
use super::request::Target;
use super::service::{Shared, locked};

pub(super) const BUCKET: &str = "-";

pub(super) fn answer(shared: &Shared, target: &Target, body: &Bytes) -> Response<Payload> {
    let (status, value) = match carry_out(shared, target, body) {
        Ok(value) => (StatusCode::OK, value),
        Err(message) => (StatusCode::BAD_REQUEST, json!({ "error": message })),
    };
    let mut response = Response::new(Blob::from(Bytes::from(value.to_string())).into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn carry_out(shared: &Shared, target: &Target, body: &Bytes) -> Result<Value, String> {
    let parsed = || serde_json::from_slice::<Value>(body).map_err(|error| error.to_string());
    match (target.method.as_str(), target.key.as_str()) {
        ("POST", "faults") => {
            let rules = match parsed()? {
                Value::Array(rules) => rules,
                rule => vec![rule],
            };
            let faults: Result<Vec<Fault>, _> = rules.into_iter().map(serde_json::from_value).collect();
            let mut schedule = locked(&shared.schedule);
            faults.map_err(|error| error.to_string())?.into_iter().for_each(|fault| schedule.add(fault));
        }
        ("DELETE", "faults") => locked(&shared.schedule).clear(),
        ("GET", "faults") => return Ok(json!(locked(&shared.schedule).struck())),
        ("GET", "requests") => {
            return serde_json::to_value(&*locked(&shared.log)).map_err(|error| error.to_string());
        }
        ("DELETE", "requests") => locked(&shared.log).clear(),
        ("GET", "status") => {
            return Ok(json!({
                "open_uploads": locked(&shared.store).uploads().count(),
                "in_flight_max": shared.in_flight_max.load(Ordering::SeqCst),
            }));
        }
        ("POST", "settings") => {
            let settings = parsed()?;
            if let Some(latency) = settings.get("latency_ms").and_then(Value::as_u64) {
                shared.latency_us.store(latency.saturating_mul(1000), Ordering::Relaxed);
            }
            if let Some(keys) = settings.get("page_keys_max").and_then(Value::as_u64) {
                let keys = usize::try_from(keys).unwrap_or(usize::MAX);
                shared.page_keys_max.store(keys.max(1), Ordering::Relaxed);
            }
        }
        ("POST", "damage") => {
            let damage = parsed()?;
            let text = |name: &str| damage.get(name).and_then(Value::as_str).ok_or(format!("no {name}"));
            let number = |name: &str| damage.get(name).and_then(Value::as_u64);
            let mut store = locked(&shared.store);
            let done = match (number("flip"), number("truncate")) {
                (Some(offset), None) => {
                    store.damage(text("bucket")?, text("key")?, |blob| blob.with_wrong_byte(offset))
                }
                (None, Some(len)) => store.damage(text("bucket")?, text("key")?, |blob| blob.slice(0..len)),
                _ => return Err("either flip or truncate".to_owned()),
            };
            done.map_err(|refusal| format!("{refusal:?}"))?;
        }
        ("POST", "reset") => {
            locked(&shared.schedule).clear();
            locked(&shared.log).clear();
            shared.latency_us.store(0, Ordering::Relaxed);
            shared.in_flight_max.store(0, Ordering::SeqCst);
            if target.param("objects").is_some() {
                locked(&shared.store).empty();
            }
        }
        _ => return Err(format!("{} {} is unknown", target.method, target.resource)),
    }
    Ok(json!({}))
}
