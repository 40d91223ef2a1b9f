//! Pages of a listing, in both versions of S3's protocol. GCS uses them, too.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::refusal::Refusal;
use super::store::{Listed, Store};
use super::text::{iso_date, percent_encoded};
use super::xml::Document;

/// Largest number of keys in a page of S3, and the default.
pub(super) const PAGE_KEYS_MAX: usize = 1000;

/// The parameters of a request for a page.
#[derive(Debug, Default)]
pub(super) struct Query {
    pub(super) version_2: bool,
    pub(super) prefix: String,
    pub(super) delimiter: String,
    /// The parameter `start-after` of version 2, or `marker` of version 1.
    pub(super) after: String,
    /// The parameters `startOffset` and `endOffset` of GCS's JSON API: the first key, and the key
    /// before which the list ends.
    pub(super) from: String,
    pub(super) until: Option<String>,
    pub(super) token: Option<String>,
    pub(super) keys_max: usize,
    pub(super) url_encoded: bool,
}

impl Query {
    /// Parses the parameters. `page_keys_max` is the limit of the server.
    pub(super) fn parse(query: &[(String, String)], page_keys_max: usize) -> Result<Self, Refusal> {
        let mut parsed = Self { keys_max: page_keys_max, ..Self::default() };
        for (name, value) in query {
            match name.as_str() {
                "list-type" => parsed.version_2 = value == "2",
                "prefix" => parsed.prefix.clone_from(value),
                "delimiter" => parsed.delimiter.clone_from(value),
                "start-after" | "marker" => parsed.after.clone_from(value),
                "startOffset" => parsed.from.clone_from(value),
                "endOffset" => parsed.until = Some(value.clone()).filter(|until| !until.is_empty()),
                "continuation-token" | "pageToken" => parsed.token = Some(value.clone()),
                "max-keys" | "maxResults" => {
                    let wanted: usize = value.parse().map_err(|_| Refusal::InvalidArgument)?;
                    parsed.keys_max = wanted.min(page_keys_max);
                }
                "encoding-type" => parsed.url_encoded = value == "url",
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// One page. Objects and common prefixes both count as keys.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Listed)>,
    pub(super) prefixes: Vec<String>,
    /// The last entry of the page, if another page follows.
    pub(super) last: Option<String>,
}

impl Page {
    /// Makes a page from the store's content, now or `stale_writes` writes ago.
    pub(super) fn cut(
        store: &Store,
        bucket: &str,
        query: &Query,
        stale_writes: usize,
    ) -> Result<Self, Refusal> {
        let token = query.token.as_deref().map(token_entry).transpose()?;
        let after = token.unwrap_or_else(|| query.after.clone());
        if stale_writes > 0 {
            let listing = store.listing_before(bucket, stale_writes)?;
            return Ok(Self::of(&listing, query, &after, Listed::clone));
        }
        Ok(Self::of(store.bucket(bucket)?, query, &after, |object| object.listed.clone()))
    }

    fn of<T>(
        entries: &BTreeMap<String, T>,
        query: &Query,
        after: &str,
        listed: impl Fn(&T) -> Listed,
    ) -> Self {
        let mut page = Self::default();
        if query.keys_max == 0 {
            return page;
        }
        let first = query.prefix.as_str().max(&query.from);
        let start = if after < first { Bound::Included(first) } else { Bound::Excluded(after) };
        // After a page that ends with a common prefix, the next page begins after all keys with
        // this prefix.
        let done = (query.token.is_some() || !query.version_2)
            && !query.delimiter.is_empty()
            && after.len() > query.prefix.len()
            && after.starts_with(&query.prefix)
            && after.ends_with(&query.delimiter);
        for (key, entry) in entries.range::<str, _>((start, Bound::Unbounded)) {
            let Some(rest) = key.strip_prefix(&query.prefix) else { break };
            if query.until.as_ref().is_some_and(|until| key >= until) {
                break;
            }
            if done && key.starts_with(after) {
                continue;
            }
            let place = if query.delimiter.is_empty() { None } else { rest.find(&query.delimiter) };
            let common = place.map(|at| &key[..query.prefix.len() + at + query.delimiter.len()]);
            if common.is_some() && common == page.prefixes.last().map(String::as_str) {
                continue;
            }
            if page.objects.len() + page.prefixes.len() == query.keys_max {
                let last_object = page.objects.last().map(|(key, _)| key);
                page.last = last_object.max(page.prefixes.last()).cloned();
                break;
            }
            match common {
                Some(prefix) => page.prefixes.push(prefix.to_owned()),
                None => page.objects.push((key.clone(), listed(entry))),
            }
        }
        page
    }

    pub(super) fn document(&self, bucket: &str, query: &Query) -> String {
        let coded = |text: &str| if query.url_encoded { percent_encoded(text) } else { text.to_owned() };
        let mut document = Document::new("ListBucketResult");
        document.element("Name", bucket).element("Prefix", coded(&query.prefix));
        if !query.delimiter.is_empty() {
            document.element("Delimiter", coded(&query.delimiter));
        }
        if query.version_2 {
            document.element("KeyCount", self.objects.len() + self.prefixes.len());
            if let Some(token) = &query.token {
                document.element("ContinuationToken", token);
            }
            if !query.after.is_empty() {
                document.element("StartAfter", coded(&query.after));
            }
            if let Some(last) = &self.last {
                document.element("NextContinuationToken", token_of(last));
            }
        } else {
            document.element("Marker", coded(&query.after));
            if let Some(last) = &self.last {
                document.element("NextMarker", coded(last));
            }
        }
        document.element("MaxKeys", query.keys_max).element("IsTruncated", self.last.is_some());
        if query.url_encoded {
            document.element("EncodingType", "url");
        }
        for (key, listed) in &self.objects {
            document.group("Contents", |entry| {
                entry.element("Key", coded(key)).element("LastModified", iso_date(listed.modified));
                if !listed.etag.is_empty() {
                    entry.element("ETag", &listed.etag);
                }
                entry.element("Size", listed.size_bytes).element("StorageClass", "STANDARD");
            });
        }
        for prefix in &self.prefixes {
            document.group("CommonPrefixes", |entry| _ = entry.element("Prefix", coded(prefix)));
        }
        document.finish()
    }
}

/// Tokens do not look like keys, so a client that uses them as keys finds nothing.
pub(super) fn token_of(last: &str) -> String {
    last.bytes().fold("t".to_owned(), |token, byte| token + &format!("{byte:02x}"))
}

pub(super) fn token_entry(token: &str) -> Result<String, Refusal> {
    let hex = token.strip_prefix('t').filter(|hex| hex.is_ascii()).ok_or(Refusal::InvalidToken)?;
    let bytes: Option<Vec<u8>> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(Refusal::InvalidToken)
}
