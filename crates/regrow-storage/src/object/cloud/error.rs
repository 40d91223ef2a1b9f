//! Turns the answer of a store into an error that says what failed and what to do.
//!
//! An error shows the code and the message of the answer, and texts of the operating system or the
//! TLS library. An error never shows a header, or the query of a URL. In addition, known secret
//! values are blanked.

use std::ops::RangeInclusive;

use object_store::client::{HttpError, HttpErrorKind};

use super::settings::{Service, Settings};
use super::transport::{Noted, innermost};
use crate::error::{Error, ErrorKind};

/// The operation that failed, for the first words of an error and for its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Look,
    Read,
    List,
    Write,
    Delete,
    Copy,
}

impl Action {
    fn cannot(self) -> &'static str {
        match self {
            Self::Look => "cannot look at an object",
            Self::Read => "cannot read an object",
            Self::List => "cannot list objects",
            Self::Write => "cannot write an object",
            Self::Delete => "cannot delete objects",
            Self::Copy => "cannot copy an object",
        }
    }

    fn right(self, service: Service) -> &'static str {
        match (service, self) {
            (Service::S3, Self::Look | Self::Read) => {
                "s3:GetObject on the object; without s3:ListBucket on the bucket S3 gives the same answer \
                 for missing objects"
            }
            (Service::S3, Self::List) => "s3:ListBucket on the bucket",
            (Service::S3, Self::Write) => "s3:PutObject and s3:AbortMultipartUpload on the object",
            (Service::S3, Self::Delete) => "s3:DeleteObject on the object",
            (Service::S3, Self::Copy) => "s3:GetObject and s3:PutObject",
            (Service::Gcs, Self::Look | Self::Read) => "storage.objects.get",
            (Service::Gcs, Self::List) => "storage.objects.list",
            (Service::Gcs, Self::Write) => "storage.objects.create, and storage.objects.delete to replace",
            (Service::Gcs, Self::Delete) => "storage.objects.delete",
            (Service::Gcs, Self::Copy) => "storage.objects.get and storage.objects.create",
            (_, Self::Look | Self::Read | Self::List) => "Storage Blob Data Reader",
            _ => "Storage Blob Data Contributor",
        }
    }
}

/// A failed operation: the error, and whether a retry may succeed.
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) may_pass: bool,
    /// Whether the answer had no body. Another request, whose answer has a body, may then show the
    /// reason.
    pub(super) is_mute: bool,
    /// Whether the store does not know the multipart upload (any more).
    pub(super) is_upload_gone: bool,
}

impl Failure {
    /// A failure that a retry cannot change.
    pub(super) fn certain(error: Error) -> Self {
        Self { error, may_pass: false, is_mute: false, is_upload_gone: false }
    }

    /// A failure that a retry may overcome.
    pub(super) fn passing(error: Error) -> Self {
        Self { error, may_pass: true, is_mute: false, is_upload_gone: false }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

pub(super) fn scrub(secrets: &[String], text: &str) -> String {
    let mut text = text.to_owned();
    for secret in secrets {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), "[hidden]");
        }
    }
    text
}

/// The failure of an operation that exceeded its time limit.
pub(super) fn too_slow(action: Action, seconds: u64, url: String) -> Failure {
    Failure::passing(
        Error::new(
            ErrorKind::Io,
            format!("{}: not done within {seconds} s, including retries", action.cannot()),
        )
        .in_file(url)
        .help("check the network, or raise the storage options read_timeout and retry_timeout"),
    )
}

/// Turns an error of `object_store` into a failure with an explanation.
pub(super) fn explain(
    action: Action,
    settings: &Settings,
    url: String,
    noted: &Noted,
    error: &object_store::Error,
) -> Failure {
    let told = tell(action, settings, noted, error);
    let hide = |text: &str| scrub(&settings.secrets, text);
    let mut report = Error::new(told.kind, hide(&told.what)).in_file(url);
    if let Some((expected, found)) = &told.expected_found {
        report = report.expected(hide(expected), hide(found));
    }
    if let Some(help) = &told.help {
        report = report.help(hide(help));
    }
    let in_body = http_error(error).is_some_and(|error| error.kind() != HttpErrorKind::Unknown);
    let may_pass = noted.may_pass() || in_body && !noted.metadata;
    let is_mute = noted.answer.code.is_empty()
        && matches!(noted.status, Some(301 | 400 | 403))
        && noted.transport.is_none();
    let is_upload_gone =
        matches!(noted.answer.code.as_str(), "NoSuchUpload" | "InvalidPart") || noted.status == Some(404);
    Failure { error: report, may_pass, is_mute, is_upload_gone }
}

struct Told {
    kind: ErrorKind,
    what: String,
    expected_found: Option<(String, String)>,
    help: Option<String>,
}

impl Told {
    fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), expected_found: None, help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn expected(mut self, expected: impl Into<String>, found: impl Into<String>) -> Self {
        self.expected_found = Some((expected.into(), found.into()));
        self
    }
}

fn tell(action: Action, settings: &Settings, noted: &Noted, error: &object_store::Error) -> Told {
    let cannot = action.cannot();
    if let Some((kind, text)) = &noted.transport {
        return unanswered(cannot, settings, noted, *kind, text);
    }
    let service = settings.service;
    let code = noted.answer.code.as_str();
    let status = noted.status.unwrap_or(0);
    if service == Service::S3
        && (REGION_CODES.contains(&code) || code.is_empty() && matches!(status, 301 | 307))
    {
        return wrong_region(settings, noted);
    }
    // A retry does not help after 501 and 507, even if the code says so.
    let code = if matches!(status, 501 | 507) && BUSY_CODES.contains(&code) { "" } else { code };
    match CAUSES.iter().find(|cause| cause.is_of(code, status)) {
        Some(cause) => cause.tell(action, settings, noted),
        None => by_variant(cannot, noted, error),
    }
}

/// The codes of S3 for a bucket in another region.
const REGION_CODES: [&str; 5] = [
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "InvalidRegion",
];

/// The codes of a store that is busy or failing.
const BUSY_CODES: [&str; 6] =
    ["SlowDown", "ServerBusy", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationTimedOut"];

/// The cause of an error answer, and the help text for it.
struct Cause {
    codes: &'static [&'static str],
    statuses: &'static [RangeInclusive<u16>],
    kind: ErrorKind,
    /// With `{cannot}`, `{bucket}`, `{container}`, `{service}`, `{requests}` and `{answer}`.
    what: &'static str,
    shows: Shows,
    help: Help,
}

/// The source of the expected and found values in an error.
enum Shows {
    Nothing,
    Clocks,
    Length,
}

enum Help {
    Text(&'static str),
    Credentials,
    Rights,
}

/// The first cause with the code or the status of an answer applies.
const CAUSES: [Cause; 15] = [
    Cause {
        codes: &["NoSuchBucket", "ContainerNotFound", "InvalidBucketName"],
        statuses: &[],
        kind: ErrorKind::NotFound,
        what: "the {container} {bucket} does not exist",
        shows: Shows::Nothing,
        help: Help::Text(
            "check its name, the account or project, and the endpoint; regrow does not create buckets",
        ),
    },
    Cause {
        codes: &["InvalidAccessKeyId"],
        statuses: &[],
        kind: ErrorKind::PermissionDenied,
        what: "the store does not know the access key id",
        shows: Shows::Nothing,
        help: Help::Text("check AWS_ACCESS_KEY_ID, the profile or the storage option key, and the endpoint"),
    },
    Cause {
        codes: &["SignatureDoesNotMatch"],
        statuses: &[],
        kind: ErrorKind::PermissionDenied,
        what: "the store computes another signature: the secret key does not belong to the access key",
        shows: Shows::Nothing,
        help: Help::Text("check AWS_SECRET_ACCESS_KEY or the storage option secret; it may be cut short"),
    },
    Cause {
        codes: &["ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException", "RequestExpired"],
        statuses: &[],
        kind: ErrorKind::PermissionDenied,
        what: "the credentials have expired",
        shows: Shows::Nothing,
        help: Help::Text("get new ones: log in again, or renew the session token"),
    },
    Cause {
        codes: &["InvalidToken", "InvalidSecurity"],
        statuses: &[],
        kind: ErrorKind::PermissionDenied,
        what: "the store does not accept the session token",
        shows: Shows::Nothing,
        help: Help::Text(
            "check AWS_SESSION_TOKEN or the storage option token: it must come from the same session as \
             the keys",
        ),
    },
    Cause {
        codes: &["RequestTimeTooSkewed"],
        statuses: &[],
        kind: ErrorKind::PermissionDenied,
        what: "the clock of this machine is wrong",
        shows: Shows::Clocks,
        help: Help::Text("set the clock, for example by NTP: stores accept a difference of 15 minutes"),
    },
    Cause {
        codes: &BUSY_CODES,
        statuses: &[408..=408, 429..=429, 500..=500, 502..=506, 508..=599],
        kind: ErrorKind::Io,
        what: "{cannot}: the store is busy or failing{answer}, after {requests} requests",
        shows: Shows::Nothing,
        help: Help::Text("try again later; with SlowDown, use fewer processes at once, or another prefix"),
    },
    Cause {
        codes: &["QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "AccountBeingCreated"],
        statuses: &[507..=507],
        kind: ErrorKind::StorageFull,
        what: "{cannot}: the store is full{answer}",
        shows: Shows::Nothing,
        help: Help::Text("free some space or raise the quota; existing data did not change"),
    },
    Cause {
        codes: &["EntityTooLarge", "RequestBodyTooLarge"],
        statuses: &[413..=413],
        kind: ErrorKind::Limit,
        what: "{cannot}: larger than the store allows{answer}",
        shows: Shows::Nothing,
        help: Help::Text("a smaller part_size may help"),
    },
    Cause {
        codes: &["KeyTooLongError"],
        statuses: &[],
        kind: ErrorKind::InvalidArgument,
        what: "the name is longer than the store allows",
        shows: Shows::Nothing,
        help: Help::Text("S3 takes 1024 bytes of UTF-8: use a shorter path"),
    },
    Cause {
        codes: &["NoSuchUpload"],
        statuses: &[],
        kind: ErrorKind::Io,
        what: "{cannot}: the store no longer has the upload",
        shows: Shows::Nothing,
        help: Help::Text("write it again: the upload was aborted, or a rule of the bucket removed it"),
    },
    Cause {
        codes: &["InvalidRange"],
        statuses: &[416..=416],
        kind: ErrorKind::Corrupt,
        what: "the object is too short",
        shows: Shows::Length,
        help: Help::Text("the object was cut short or replaced: copy it again"),
    },
    Cause {
        codes: &["InvalidAuthenticationInfo", "AuthenticationFailed", "invalid_grant", "invalid_client"],
        statuses: &[401..=401],
        kind: ErrorKind::PermissionDenied,
        what: "{service} does not accept the credentials{answer}",
        shows: Shows::Nothing,
        help: Help::Credentials,
    },
    Cause {
        codes: &[],
        statuses: &[403..=403],
        kind: ErrorKind::PermissionDenied,
        what: "{cannot}: access denied{answer}",
        shows: Shows::Nothing,
        help: Help::Rights,
    },
    Cause {
        codes: &["NotImplemented"],
        statuses: &[501..=501],
        kind: ErrorKind::Unsupported,
        what: "{cannot}: the store cannot do this{answer}",
        shows: Shows::Nothing,
        help: Help::Text("conditional writes and multipart uploads are needed"),
    },
];

impl Cause {
    fn is_of(&self, code: &str, status: u16) -> bool {
        self.codes.contains(&code) || self.statuses.iter().any(|statuses| statuses.contains(&status))
    }

    fn tell(&self, action: Action, settings: &Settings, noted: &Noted) -> Told {
        let service = settings.service;
        let what = self
            .what
            .replace("{cannot}", action.cannot())
            .replace("{bucket}", &settings.bucket)
            .replace("{container}", if service == Service::Azure { "container" } else { "bucket" })
            .replace("{service}", service.name())
            .replace("{requests}", &noted.requests.to_string())
            .replace("{answer}", &in_brackets(noted));
        let told = Told::new(self.kind, what).help(match self.help {
            Help::Text(text) => text.to_owned(),
            Help::Credentials => credentials_help(settings).to_owned(),
            Help::Rights if is_anon(settings) => {
                "the request carried no credentials (anon): the bucket is not public".to_owned()
            }
            Help::Rights => format!("the credentials need {}", action.right(service)),
        });
        match (&self.shows, &noted.answer.clocks, noted.object_len_bytes) {
            (Shows::Clocks, Some((server, ours)), _) => {
                told.expected(format!("{server} (the store)"), format!("{ours} (this machine)"))
            }
            (Shows::Length, _, Some(len_bytes)) => told.expected("more", format!("{len_bytes} bytes")),
            _ => told,
        }
    }
}

fn by_variant(cannot: &str, noted: &Noted, error: &object_store::Error) -> Told {
    use object_store::Error as Os;
    match error {
        Os::NotFound { .. } => Told::new(ErrorKind::NotFound, "the object does not exist"),
        Os::AlreadyExists { .. } => Told::new(ErrorKind::AlreadyExists, "the object already exists"),
        _ if is_precondition(error) => Told::new(ErrorKind::Replaced, "the object was replaced by another")
            .help("open the checkpoint again"),
        Os::NotImplemented { .. } | Os::NotSupported { .. } | Os::UnknownConfigurationKey { .. } => {
            Told::new(ErrorKind::Unsupported, format!("{cannot}: {}", innermost(error)))
        }
        Os::InvalidPath { source } => Told::new(
            ErrorKind::InvalidArgument,
            format!("the name cannot be used in an object store: {source}"),
        )
        .help("names without empty, `.` and `..` parts"),
        _ if noted.status.is_some_and(|status| status >= 300) => {
            let told = Told::new(ErrorKind::Io, format!("{cannot}: the store refuses{}", in_brackets(noted)));
            match noted.answer.code.is_empty() {
                true => told.help(
                    "the answer does not come from an object store: check the endpoint and the \
                        proxy",
                ),
                false => told.help("check the endpoint and the storage options"),
            }
        }
        _ => match http_error(error) {
            Some(http) => {
                Told::new(ErrorKind::Io, format!("{cannot}: the answer broke off: {}", innermost(http)))
                    .help("check the network, then try again")
            }
            None => Told::new(ErrorKind::Io, format!("{cannot}: {}", innermost(error))),
        },
    }
}

fn unanswered(cannot: &str, settings: &Settings, noted: &Noted, kind: HttpErrorKind, text: &str) -> Told {
    let service = settings.service;
    if noted.metadata {
        return Told::new(
            ErrorKind::PermissionDenied,
            format!("no credentials for {} were found", service.name()),
        )
        .help(credentials_help(settings));
    }
    let lower = text.to_ascii_lowercase();
    let place = match settings.endpoint() {
        Some(endpoint) => without_userinfo(endpoint),
        None => service.name().to_owned(),
    };
    let tries = match noted.requests {
        1 => String::new(),
        requests => format!(" ({requests} tries)"),
    };
    let told = Told::new(ErrorKind::Io, format!("{cannot}: {text}{tries}")).expected(place, "no answer");
    if lower.contains("certificate") || lower.contains("tls") || lower.contains("handshake") {
        return told.help(
            "give your own certificate in the storage option ca_bundle; also check the clock of this \
             machine",
        );
    }
    if ["dns", "lookup", "name or service", "name resolution", "no such host", "nodename"]
        .iter()
        .any(|part| lower.contains(part))
    {
        return told.help("the host name is not known: check the endpoint, the region and the network");
    }
    if lower.contains("refused") {
        return told.help(
            "the server does not listen: check the host and port of the endpoint, and that the \
                server runs",
        );
    }
    match kind {
        HttpErrorKind::Timeout => {
            told.help("check the network, proxy and firewall, or raise read_timeout and connect_timeout")
        }
        HttpErrorKind::Connect => told.help("check the endpoint, the proxy and the network"),
        _ => told.help("the connection broke: check the network, then try again"),
    }
}

fn wrong_region(settings: &Settings, noted: &Noted) -> Told {
    let ours = settings.config.get("aws_region").map_or("us-east-1 (the default)", String::as_str);
    let told =
        Told::new(ErrorKind::InvalidArgument, format!("the bucket {} is in another region", settings.bucket));
    match &noted.region {
        Some(region) => told
            .expected(region.as_str(), ours)
            .help(format!("give the storage option region={region}, or set AWS_REGION={region}")),
        None => told
            .expected("the region of the bucket", ours)
            .help("give the storage option region, or set AWS_REGION; check the endpoint, if one is given"),
    }
}

fn credentials_help(settings: &Settings) -> &'static str {
    match settings.service {
        Service::S3 => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or the storage options key and secret; \
             anon=true for a public bucket"
        }
        Service::Gcs => {
            "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS, or the storage option \
             token; token=anon for a public bucket"
        }
        _ => {
            "set AZURE_STORAGE_ACCOUNT_KEY, or the storage options account_key, sas_token or connection_string; \
             anon=true for a public container"
        }
    }
}

fn is_anon(settings: &Settings) -> bool {
    settings.config.keys().any(|key| key.ends_with("_skip_signature"))
}

/// The code and message of an answer in brackets: ` (503 SlowDown: Please reduce your request
/// rate.)`
fn in_brackets(noted: &Noted) -> String {
    let status = noted.status.map(|status| status.to_string()).unwrap_or_default();
    let code = noted.answer.code.as_str();
    let named =
        [status.as_str(), code].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ");
    match (named.is_empty(), noted.answer.message.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!(" ({named})"),
        (true, false) => format!(" ({})", noted.answer.message),
        (false, false) => format!(" ({named}: {})", noted.answer.message),
    }
}

fn without_userinfo(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.split(['?', '#']).next().unwrap_or(rest);
            format!("{scheme}://{}", host.rsplit_once('@').map_or(host, |(_, host)| host))
        }
        None => endpoint.to_owned(),
    }
}

/// Whether a condition of the request was not met, at any depth of the error.
pub(super) fn is_precondition(error: &object_store::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if matches!(error.downcast_ref(), Some(object_store::Error::Precondition { .. })) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The transport's failure inside an error of `object_store`. It comes from reading a body; the
/// notes have the failures before the body.
fn http_error(error: &object_store::Error) -> Option<&HttpError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(http) = error.downcast_ref() {
            return Some(http);
        }
        next = error.source();
    }
    None
}
