//! Requests to a web server: the length of a file, and a range of its bytes.
//!
//! | the server | regrow |
//! |---|---|
//! | answers `HEAD` with a length | uses `HEAD` |
//! | does not answer `HEAD` so (a URL signed for `GET` alone, a page made on demand) | requests the first byte; the answer has the whole length |
//! | has no ranges | reads whole files up to [`WHOLE_LEN_MAX_BYTES`], and refuses longer ones |
//! | answers with HTML | treats the file as missing: the page is a list of files or an error page |
//! | is busy, or drops the connection | requests the missing bytes again |
//!
//! A range is requested with the tag of the first version (`If-Range`), and the tag of the answer
//! is compared with it. So bytes of two versions never mix if the server sends tags or dates.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderName, IF_RANGE, LAST_MODIFIED, RANGE,
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};

use super::address::Address;
use super::settings::Settings;
use crate::bytes::limits::work_space;
use crate::error::{Error, ErrorKind, Result};
use crate::object::cloud::runtime::{self, pause};
use crate::object::{Extent, Facts, Keys, Object, ObjectWrites, Objects, Tag};
use crate::store::Suits;

/// Longest file that is read whole if the server does not support ranges.
const WHOLE_LEN_MAX_BYTES: u64 = 8 << 20;

/// Bytes of whole files that are kept in memory for later reads.
const KEPT_LEN_MAX_BYTES: usize = 64 << 20;

/// A connection with a lower rate than this is considered broken.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Concurrent requests: enough to fill a network, and the most that one server should get.
const REQUESTS_MIN: usize = 8;
const REQUESTS_MAX: usize = 16;

/// A web server and the settings to reach it.
#[derive(Debug)]
pub(super) struct Server {
    address: Address,
    settings: Settings,
    /// Files that were read whole, by path and version.
    kept: Mutex<HashMap<String, (Tag, Bytes)>>,
}

/// Why one try failed, and whether the next try may succeed.
struct Failure {
    error: Error,
    may_pass: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, may_pass: false }
    }
}

impl Server {
    pub(super) fn new(address: Address, settings: Settings) -> Self {
        Self { address, settings, kept: Mutex::default() }
    }

    fn client(&self) -> Result<Client> {
        runtime::state()?.web_client(&self.settings.name(), || self.settings.client())
    }

    fn request(&self, client: &Client, method: Method, key: &str) -> RequestBuilder {
        let request = client.request(method, self.address.request(key)).header(ACCEPT_ENCODING, "identity");
        match (&self.settings.token, &self.address.user) {
            (Some(token), _) => request.bearer_auth(token),
            (None, Some((user, password))) => request.basic_auth(user, Some(password)),
            (None, None) => request,
        }
    }

    async fn send(&self, request: RequestBuilder, key: &str) -> Result<Response, Failure> {
        request.send().await.map_err(|error| self.broken(key, &error))
    }

    /// The time limit of one attempt that moves `len_bytes`.
    fn limit(&self, len_bytes: u64) -> Duration {
        let own = self.settings.connect_timeout + self.settings.read_timeout;
        own + Duration::from_secs(len_bytes / BYTES_PER_SECOND_MIN)
    }

    /// Waits before the next attempt, or returns the failure if no attempt remains.
    async fn again(&self, tried: &mut u32, failure: Failure) -> Result<()> {
        if !failure.may_pass || *tried >= self.settings.max_retries {
            return Err(failure.error);
        }
        pause(*tried).await;
        *tried += 1;
        Ok(())
    }

    async fn look_until_answered(&self, client: &Client, key: &str) -> Result<Option<Object>> {
        let (mut tried, limit) = (0, self.limit(0));
        loop {
            let failure = match tokio::time::timeout(limit, self.look(client, key)).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(failure)) => failure,
                Err(_) => self.too_slow(key, limit),
            };
            self.again(&mut tried, failure).await?;
        }
    }

    async fn look(&self, client: &Client, key: &str) -> Result<Option<Object>, Failure> {
        let answer = self.send(self.request(client, Method::HEAD, key), key).await?;
        let headers = answer.headers();
        match answer.status() {
            status if is_nothing(status) || status.is_success() && is_page(&answer) => Ok(None),
            StatusCode::OK => match number(headers, &CONTENT_LENGTH).filter(|_| !is_encoded(headers)) {
                Some(len_bytes) => Ok(Some(object_of(key, len_bytes, headers))),
                None => self.look_by_range(client, key).await,
            },
            status if may_pass(status) => Err(self.refused(key, status)),
            // A server that refuses HEAD may answer GET: signed URLs, for example, allow one
            // method.
            _ => self.look_by_range(client, key).await,
        }
    }

    async fn look_by_range(&self, client: &Client, key: &str) -> Result<Option<Object>, Failure> {
        let request = self.request(client, Method::GET, key).header(RANGE, "bytes=0-0");
        let answer = self.send(request, key).await?;
        let headers = answer.headers();
        let len_bytes = match answer.status() {
            status if is_nothing(status) || status.is_success() && is_page(&answer) => return Ok(None),
            StatusCode::PARTIAL_CONTENT => range_of(headers).and_then(|range| range.whole_len_bytes),
            // An empty file has no first byte, so the server answers 416.
            StatusCode::RANGE_NOT_SATISFIABLE => unsatisfied(headers).filter(|&len_bytes| len_bytes == 0),
            StatusCode::OK if !is_encoded(headers) => number(headers, &CONTENT_LENGTH),
            StatusCode::OK => None,
            status => return Err(self.refused(key, status)),
        };
        let len_bytes = len_bytes.ok_or_else(|| {
            Error::unsupported("the server does not send the length of a file")
                .in_file(self.url(key))
                .help("serve the file without compression, or download it")
        })?;
        Ok(Some(object_of(key, len_bytes, headers)))
    }

    async fn read_until_done(
        &self,
        client: &Client,
        object: &Object,
        offset_bytes: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let (mut tried, limit) = (0, self.limit(out.len() as u64));
        let mut filled = 0;
        loop {
            let before = filled;
            let once = self.read_once(client, object, offset_bytes, out, &mut filled);
            let failure = match tokio::time::timeout(limit, once).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => failure,
                Err(_) => self.too_slow(&object.key, limit),
            };
            if filled > before {
                tried = 0;
            }
            self.again(&mut tried, failure).await?;
        }
    }

    /// Makes one request for the bytes that `out` still lacks.
    async fn read_once(
        &self,
        client: &Client,
        object: &Object,
        offset_bytes: u64,
        out: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), Failure> {
        let key = &object.key;
        let rest = out.get_mut(*filled..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let start = offset_bytes + *filled as u64;
        let end = start + rest.len() as u64;
        let mut request =
            self.request(client, Method::GET, key).header(RANGE, format!("bytes={start}-{}", end - 1));
        if let Some(tag) = object.tag.e_tag().filter(|tag| !tag.starts_with("W/")) {
            request = request.header(IF_RANGE, tag);
        }
        let mut answer = self.send(request, key).await?;
        let headers = answer.headers();
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = range_of(headers);
                let is_same_len =
                    |range: &ContentRange| range.whole_len_bytes.is_none_or(|len| len == object.len_bytes);
                if !is_version(object, headers) || !range.as_ref().is_none_or(is_same_len) {
                    return Err(self.replaced(key).into());
                }
                if range.is_none_or(|range| (range.start, range.end) != (start, end)) || is_encoded(headers) {
                    return Err(self.nonsense(key, "the server sends the wrong range").into());
                }
            }
            StatusCode::OK => {
                let is_same_len = number(headers, &CONTENT_LENGTH).is_none_or(|len| len == object.len_bytes);
                if !is_version(object, headers) || is_page(&answer) || !is_same_len && !is_encoded(headers) {
                    return Err(self.replaced(key).into());
                }
                if is_encoded(headers) {
                    return Err(self.nonsense(key, "the server compresses the file").into());
                }
                if (start, end) != (0, object.len_bytes) {
                    let whole = self.take_whole(object, answer).await?;
                    rest.copy_from_slice(whole.get(start as usize..end as usize).unwrap_or_default());
                    *filled = out.len();
                    return Ok(());
                }
            }
            status if is_nothing(status) => return Err(self.replaced(key).into()),
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED => {
                return Err(self.replaced(key).into());
            }
            status => return Err(self.refused(key, status)),
        }
        while let Some(piece) = answer.chunk().await.map_err(|error| self.broken(key, &error))? {
            let Some(room) = out.get_mut(*filled..*filled + piece.len()) else {
                return Err(self.nonsense(key, "the server sends too many bytes").into());
            };
            room.copy_from_slice(&piece);
            *filled += piece.len();
        }
        match *filled == out.len() {
            true => Ok(()),
            false => {
                let error =
                    Error::new(ErrorKind::Io, "the server sends too few bytes").in_file(self.url(key));
                Err(Failure { error, may_pass: true })
            }
        }
    }

    /// Receives the whole file from a server that does not support ranges.
    async fn take_whole(&self, object: &Object, mut answer: Response) -> Result<Bytes, Failure> {
        let key = &object.key;
        if object.len_bytes > WHOLE_LEN_MAX_BYTES {
            return Err(Error::unsupported("the server does not support ranges")
                .in_file(self.url(key))
                .expected("206 Partial Content", "200 OK")
                .help(
                    "use a server that supports ranges (nginx, Apache, a bucket), or download the \
                    checkpoint",
                )
                .into());
        }
        let mut bytes = work_space(object.len_bytes)?;
        let mut filled = 0;
        while let Some(piece) = answer.chunk().await.map_err(|error| self.broken(key, &error))? {
            let room = bytes.get_mut(filled..filled + piece.len()).ok_or_else(|| self.replaced(key))?;
            room.copy_from_slice(&piece);
            filled += piece.len();
        }
        if filled < bytes.len() {
            return Err(self.replaced(key).into());
        }
        let bytes = Bytes::from(bytes);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept_bytes: usize = kept.values().map(|(_, bytes)| bytes.len()).sum();
        if kept_bytes + bytes.len() > KEPT_LEN_MAX_BYTES {
            kept.clear();
        }
        kept.insert(key.clone(), (object.tag.clone(), bytes.clone()));
        Ok(bytes)
    }

    fn replaced(&self, key: &str) -> Error {
        Error::replaced("a file was replaced or removed while it was read")
            .in_file(self.url(key))
            .help("open the checkpoint again")
    }

    fn nonsense(&self, key: &str, what: &str) -> Error {
        Error::unsupported(what)
            .in_file(self.url(key))
            .help("download the checkpoint: the server or a proxy changes the bytes")
    }

    fn too_slow(&self, key: &str, limit: Duration) -> Failure {
        let error =
            Error::new(ErrorKind::Io, format!("the server has not answered within {} s", limit.as_secs()))
                .in_file(self.url(key))
                .help("check the network, or raise the storage option read_timeout");
        Failure { error, may_pass: true }
    }

    fn broken(&self, key: &str, error: &reqwest::Error) -> Failure {
        // The text of the outer error holds the URL, and with it the query, which may be a secret.
        let mut innermost: &dyn std::error::Error = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        let what = if error.is_connect() { "cannot reach the server" } else { "the server broke off" };
        let text = if error.is_redirect() { "too many redirects".to_owned() } else { innermost.to_string() };
        let error = Error::new(ErrorKind::Io, format!("{what}: {text}"));
        let may_pass = !text.contains("redirect") && !text.contains("certificate");
        Failure { error: error.in_file(self.url(key)), may_pass }
    }

    /// The failure for an answer that refuses the request.
    fn refused(&self, key: &str, status: StatusCode) -> Failure {
        let (kind, help) = match status {
            StatusCode::UNAUTHORIZED => (
                ErrorKind::PermissionDenied,
                "give the storage option token, or a user and password in the URL",
            ),
            StatusCode::FORBIDDEN => {
                (ErrorKind::PermissionDenied, "the server refuses access, or the file does not exist")
            }
            _ => (ErrorKind::Io, "try again later, or ask the server's operator"),
        };
        let error =
            Error::new(kind, format!("the server answers {status}")).in_file(self.url(key)).help(help);
        Failure { error, may_pass: may_pass(status) }
    }

    fn no_such_request(&self, key: &str, what: &str) -> Error {
        Error::unsupported(what)
            .in_file(self.url(key))
            .help("save to a folder or a bucket, and serve that by https://")
    }
}

/// A `Content-Range` header.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    start: u64,
    end: u64,
    whole_len_bytes: Option<u64>,
}

/// Parses `bytes 0-99/1000`, or `bytes 0-99/*` if the length is unknown.
fn range_of(headers: &HeaderMap) -> Option<ContentRange> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes")?.trim_start();
    let (range, whole) = text.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let whole_len_bytes = if whole == "*" { None } else { Some(whole.parse().ok()?) };
    Some(ContentRange {
        start: start.parse().ok()?,
        end: last.parse::<u64>().ok()?.checked_add(1)?,
        whole_len_bytes,
    })
}

/// The length in `bytes */1000`.
fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    text.trim().strip_prefix("bytes")?.trim_start().strip_prefix("*/")?.parse().ok()
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

fn object_of(key: &str, len_bytes: u64, headers: &HeaderMap) -> Object {
    // Without a header that changes with the content, only the length tells versions apart.
    let version = text_of(headers, &LAST_MODIFIED).unwrap_or_default();
    let tag = Tag::new(text_of(headers, &ETAG), Some(format!("{version} {len_bytes}")));
    Object { key: key.to_owned(), len_bytes, tag, modified: SystemTime::UNIX_EPOCH }
}

/// Whether an answer is for this version of the object, as far as its headers show.
fn is_version(object: &Object, headers: &HeaderMap) -> bool {
    let found = object_of(&object.key, object.len_bytes, headers).tag;
    let has_date = headers.contains_key(LAST_MODIFIED);
    match (object.tag.e_tag(), found.e_tag()) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => !has_date || object.tag.is_same(&found),
    }
}

fn is_nothing(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn may_pass(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Whether the answer is a page for people: a list of files, or an error text with status 200.
fn is_page(answer: &Response) -> bool {
    let kind = text_of(answer.headers(), &CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
    answer.url().path().ends_with('/')
        || kind.starts_with("text/html")
        || kind.starts_with("application/xhtml")
}

fn is_encoded(headers: &HeaderMap) -> bool {
    text_of(headers, &CONTENT_ENCODING).is_some_and(|coding| !coding.eq_ignore_ascii_case("identity"))
}

impl Objects for Server {
    fn url(&self, key: &str) -> String {
        self.address.shown(key)
    }

    fn facts(&self) -> Facts {
        Facts {
            suits: Suits { requests_min: REQUESTS_MIN, requests_max: REQUESTS_MAX },
            ahead_len_max_bytes: 0,
            copy_len_max_bytes: 0,
            renewed_every: Duration::MAX,
        }
    }

    fn cache_name(&self) -> Option<String> {
        Some(self.address.root.clone())
    }

    fn head(&self, key: &str) -> Result<Option<Object>> {
        let client = self.client()?;
        runtime::state()?.block_on(self.look_until_answered(&client, key))?
    }

    fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
        let Some(object) = self.head(key)?.filter(|object| object.len_bytes <= len_max_bytes) else {
            return Ok(None);
        };
        let mut bytes = work_space(object.len_bytes)?;
        self.read(&object, 0, &mut bytes)?;
        Ok(Some((bytes.into(), object)))
    }

    fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        if let Some(whole) = self.whole(object)? {
            let part = whole.get(offset_bytes as usize..(offset_bytes as usize).saturating_add(out.len()));
            out.copy_from_slice(part.ok_or_else(|| self.replaced(&object.key))?);
            return Ok(());
        }
        let client = self.client()?;
        runtime::state()?.block_on(self.read_until_done(&client, object, offset_bytes, out))?
    }

    fn whole(&self, object: &Object) -> Result<Option<Bytes>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.get(&object.key).filter(|(tag, _)| *tag == object.tag);
        Ok(found.map(|(_, bytes)| bytes.clone()))
    }

    fn keys(&self, begins: &str, _extent: Extent) -> Result<Keys> {
        Err(no_listings(Path::new(&self.url(begins))))
    }

    fn writes(&self, key: &str) -> Result<&dyn ObjectWrites> {
        Err(self.no_such_request(key, "web servers are read only"))
    }
}

/// The error if a caller lists a folder: web servers have no listings.
pub(super) fn no_listings(folder: &Path) -> Error {
    Error::unsupported("web servers do not list folders")
        .in_file(folder)
        .help("give the checkpoint itself (a step, a file, an archive), not the folder above it")
}

/// Makes a server that several owners can share.
pub(super) fn shared(address: Address, settings: Settings) -> Arc<dyn Objects> {
    Arc::new(Server::new(address, settings))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_said() {
        let said = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_str(text).unwrap());
            (range_of(&headers), unsatisfied(&headers))
        };
        let range = |start, end, whole_len_bytes| Some(ContentRange { start, end, whole_len_bytes });
        assert_eq!(said("bytes 0-99/1000"), (range(0, 100, Some(1000)), None));
        assert_eq!(said("bytes 7-7/*"), (range(7, 8, None), None));
        assert_eq!(said("bytes */0"), (None, Some(0)));
        for text in
            ["", "bytes", "items 0-1/2", "bytes 0-/5", "bytes 0-18446744073709551615/5", "bytes a-b/c"]
        {
            assert_eq!(said(text), (None, None), "{text}");
        }
    }
}
