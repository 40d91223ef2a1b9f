//! The HTTP client below `object_store`: time limits that depend on the size of a request, and
//! notes on failures.
//!
//! `object_store` does not expose the details of a failed request. So each operation has [`Notes`],
//! and the transport records status, error code and message of the last failure. [`super::error`]
//! uses them to explain the failure. The notes never hold a header or an address that could carry a
//! secret.
//!
//! | request | limit, with the default options |
//! |---|---|
//! | to a metadata service (`169.254.169.254`, ...) | 2 s, two tries: outside a cloud there is no such service |
//! | with a body of 64 KiB or more | 40 s plus the time at 64 KiB/s |
//! | any other | 40 s until the answer begins, and 30 s without a byte |

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, ReqwestConnector,
};

use super::settings::Tuning;

/// A request with a body of at least this length uses the client without a read timeout.
const BULK_LEN_BYTES: usize = 64 << 10;
/// Time limit of a metadata service: inside a cloud it answers at once, elsewhere it does not
/// exist.
const METADATA_LIMIT: Duration = Duration::from_secs(2);
/// Tries of a request to a metadata service.
const METADATA_TRIES: u32 = 2;
/// Tries to reach a host that has never answered, so that a wrong endpoint is reported soon.
const FIRST_CONTACT_TRIES: u32 = 3;
/// Bytes of the body of an error answer that are parsed.
const ERROR_BODY_BYTES_MAX: usize = 64 << 10;

tokio::task_local! {
    /// The notes of the operation that runs in this task.
    static NOTES: Arc<Notes>;
}

/// The failures of one operation, as the transport sees them.
#[derive(Default)]
pub(super) struct Notes(Mutex<Noted>);

/// The content of [`Notes`].
#[derive(Debug, Clone, Default)]
pub(super) struct Noted {
    /// Status code of the last answer.
    pub(super) status: Option<u16>,
    /// Content of the last answer that was an error.
    pub(super) answer: Answer,
    /// The last failure without an answer. A later answer clears it.
    pub(super) transport: Option<(HttpErrorKind, String)>,
    /// Whether `transport` is a failure of a metadata service, which gives credentials.
    pub(super) metadata: bool,
    /// The region of the bucket according to the store.
    pub(super) region: Option<String>,
    /// Length of the object, from the last answer with a range.
    pub(super) object_len_bytes: Option<u64>,
    /// Requests sent.
    pub(super) requests: u32,
    /// Number of failed requests that a retry may fix.
    passing: u32,
    /// Number of failed connections.
    unreached: u32,
}

/// The content of a store's error answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    /// The error code, for example `NoSuchBucket`.
    pub(super) code: String,
    /// The first line of the message.
    pub(super) message: String,
    /// The clock of the store and the clock of the request, if the store has compared them.
    pub(super) clocks: Option<(String, String)>,
}

impl Notes {
    /// Runs `future` with new notes, and returns them with its result.
    pub(super) async fn scope<F: Future>(future: F) -> (F::Output, Noted) {
        let notes = Arc::new(Self::default());
        let output = NOTES.scope(notes.clone(), future).await;
        let noted = notes.with(|noted| noted.clone());
        (output, noted)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Noted) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Noted {
    /// Whether the same request may succeed later, or may have succeeded although its answer got
    /// lost.
    pub(super) fn may_pass(&self) -> bool {
        if self.transport.is_some() {
            return !self.metadata;
        }
        matches!(self.status, Some(408 | 409 | 429 | 500..=599))
            || matches!(
                self.answer.code.as_str(),
                "SlowDown" | "InternalError" | "RequestTimeout" | "OperationAborted"
            )
    }
}

/// Counts of the requests of one client.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Number of requests sent, including retries and requests for credentials.
    pub(super) requests: AtomicU64,
    /// Whether the store has ever answered.
    reached: AtomicBool,
    /// The time of the last answer by the store's clock, and when it arrived.
    answered: Mutex<Option<(SystemTime, Instant)>>,
}

impl Traffic {
    /// The time by the store's clock; `None` before the first answer.
    pub(super) fn now(&self) -> Option<SystemTime> {
        let (then, arrived) = (*self.answered.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(then + arrived.elapsed())
    }

    fn note_date(&self, response: &HttpResponse) {
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        if let Some(then) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some((then, Instant::now()));
        }
    }
}

/// Makes HTTP clients with time limits and notes.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) tuning: Tuning,
    pub(super) traffic: Arc<Traffic>,
    /// Host and port of a metadata service, if the environment sets one.
    pub(super) metadata_authority: Option<String>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Guarded {
            connector: self.clone(),
            options: options.clone().with_timeout_disabled(),
            prompt: OnceLock::new(),
            bulk: OnceLock::new(),
        }))
    }
}

/// An HTTP client with time limits and notes. The inner clients are made when they are needed,
/// because making one reads certificates.
struct Guarded {
    connector: Connector,
    options: ClientOptions,
    prompt: OnceLock<HttpClient>,
    bulk: OnceLock<HttpClient>,
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarded")
    }
}

impl Guarded {
    fn client(&self, is_bulk: bool) -> Result<&HttpClient, HttpError> {
        let (slot, options) = match is_bulk {
            // The read timeout would also count the time in which the body is sent.
            true => (&self.bulk, self.options.clone().with_read_timeout_disabled()),
            false => {
                (&self.prompt, self.options.clone().with_read_timeout(self.connector.tuning.read_timeout))
            }
        };
        if slot.get().is_none() {
            let made = ReqwestConnector::default()
                .connect(&options)
                .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            let _ = slot.set(made);
        }
        slot.get()
            .ok_or_else(|| HttpError::new(HttpErrorKind::Unknown, std::io::Error::other("no HTTP client")))
    }

    fn is_metadata(&self, request: &HttpRequest) -> bool {
        matches!(
            request.uri().host().unwrap_or_default(),
            "169.254.169.254"
                | "169.254.170.2"
                | "169.254.170.23"
                | "[fd00:ec2::254]"
                | "metadata.google.internal"
                | "metadata"
        ) || self.connector.metadata_authority.is_some()
            && self.connector.metadata_authority.as_deref()
                == request.uri().authority().map(|host| host.as_str())
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let tuning = &self.connector.tuning;
        let traffic = &self.connector.traffic;
        let is_metadata = self.is_metadata(&request);
        let body_len = request.body().content_length();
        let is_bulk = body_len >= BULK_LEN_BYTES;
        let limit = if is_metadata { METADATA_LIMIT } else { tuning.request_limit(body_len as u64) };
        let notes = NOTES.try_with(Arc::clone).unwrap_or_default();
        traffic.requests.fetch_add(1, Ordering::Relaxed);
        notes.with(|noted| noted.requests += 1);

        let client = self.client(is_bulk)?;
        let answered = match tokio::time::timeout(limit, client.execute(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(HttpError::new(
                HttpErrorKind::Timeout,
                std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("no answer within {} s", limit.as_secs()),
                ),
            )),
        };
        match answered {
            Ok(response) => {
                if !is_metadata {
                    traffic.reached.store(true, Ordering::Relaxed);
                    traffic.note_date(&response);
                }
                self.note_answer(&notes, response).await
            }
            Err(error) => {
                let text = innermost(&error);
                let is_unreached = error.kind() == HttpErrorKind::Connect;
                let (tries, unreached) = notes.with(|noted| {
                    noted.transport = Some((error.kind(), text.clone()));
                    noted.metadata = is_metadata;
                    noted.passing += 1;
                    noted.unreached += u32::from(is_unreached);
                    (noted.passing, noted.unreached)
                });
                let never = is_unreached && !traffic.reached.load(Ordering::Relaxed);
                let enough = if is_metadata {
                    tries >= METADATA_TRIES
                } else {
                    never && unreached >= FIRST_CONTACT_TRIES
                };
                // `object_store` does not retry an error of this kind.
                let kind = if enough { HttpErrorKind::Unknown } else { error.kind() };
                Err(HttpError::new(kind, std::io::Error::other(text)))
            }
        }
    }

    async fn note_answer(&self, notes: &Notes, response: HttpResponse) -> Result<HttpResponse, HttpError> {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let region = header("x-amz-bucket-region").map(str::to_owned);
        let object_len_bytes =
            header("content-range").and_then(|range| range.rsplit_once('/')?.1.trim().parse::<u64>().ok());
        let azure_code = header("x-ms-error-code").map(str::to_owned);
        notes.with(|noted| {
            noted.status = Some(status);
            noted.transport = None;
            noted.metadata = false;
            noted.answer = Answer::default();
            noted.region = region.or(noted.region.take());
            noted.object_len_bytes = object_len_bytes;
            noted.passing += u32::from(matches!(status, 408 | 409 | 429 | 500..=599));
        });
        if status < 400 && status != 301 {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = match tokio::time::timeout(self.connector.tuning.read_timeout, body.bytes()).await {
            Ok(Ok(body)) => body,
            _ => bytes::Bytes::new(),
        };
        let text = String::from_utf8_lossy(body.get(..ERROR_BODY_BYTES_MAX).unwrap_or(&body)).into_owned();
        let mut answer = Answer::parse(&text);
        if answer.code.is_empty() {
            answer.code = azure_code.unwrap_or_default();
        }
        let region = element(&text, "Region").map(str::to_owned).or_else(|| {
            // S3 answers: AuthorizationHeaderMalformed: the region 'us-east-1' is wrong; expecting
            // 'eu-west-1'
            let (_, rest) = answer.message.split_once("expecting '")?;
            Some(rest.split_once('\'')?.0.to_owned())
        });
        notes.with(|noted| {
            noted.answer = answer;
            noted.region = noted.region.take().or(region);
        });
        if notes.with(|noted| noted.answer.code == "RequestTimeout")
            && let Ok(status) = 408_u16.try_into()
        {
            // S3 answers 400, which is not retried, when the body arrives too slowly.
            parts.status = status;
        }
        // Text that is not UTF-8 would become another error in the layers above.
        Ok(HttpResponse::from_parts(parts, bytes::Bytes::from(text).into()))
    }
}

impl object_store::client::HttpService for Guarded {
    // This is the signature that `async_trait` makes of `async fn call(&self, request)`.
    fn call<'this, 'call>(
        &'this self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'this: 'call,
        Self: 'call,
    {
        Box::pin(self.send(request))
    }
}

impl Answer {
    /// Parses an error answer: XML of S3, GCS and Azure, or JSON of token services.
    fn parse(text: &str) -> Self {
        let mut answer = Self::default();
        if let Ok(json) = serde_json::from_str::<serde_json::Value>(text) {
            let error = &json["error"];
            let text_of = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            answer.code = text_of(error)
                .or_else(|| text_of(&error["status"]))
                .or_else(|| text_of(&json["Code"]))
                .unwrap_or_default();
            answer.message = text_of(&json["error_description"])
                .or_else(|| text_of(&error["message"]))
                .or_else(|| text_of(&json["Message"]))
                .unwrap_or_default();
        } else {
            answer.code = element(text, "Code").unwrap_or_default().to_owned();
            answer.message = element(text, "Message").unwrap_or_default().to_owned();
            if let (Some(server), Some(request)) = (element(text, "ServerTime"), element(text, "RequestTime"))
            {
                answer.clocks = Some((server.to_owned(), request.to_owned()));
            }
        }
        answer.code.truncate(answer.code.floor_char_boundary(80));
        let line_len = answer.message.find(['\n', '\r']).unwrap_or(answer.message.len());
        answer.message.truncate(answer.message.floor_char_boundary(line_len.min(300)));
        answer
    }
}

/// The text of the first `<name>` element.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

/// The innermost text of an error: from the operating system, the resolver or the TLS library.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// Whether the last answer in this operation said that the bucket does not exist.
pub(super) fn is_bucket_missing() -> bool {
    NOTES
        .try_with(|notes| {
            notes.with(|noted| matches!(noted.answer.code.as_str(), "NoSuchBucket" | "ContainerNotFound"))
        })
        .unwrap_or(false)
}
