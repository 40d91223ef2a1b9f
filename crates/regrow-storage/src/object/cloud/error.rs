//! Turns the answer of a store into an error that says what failed and what to do.
//!
//! An error has only the code and the message of the answer, and text of the operating system or
//! the TLS library, but never an address with its query or a header. In addition, known secret
//! values are blanked.

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
    /// Whether the answer had no body, so that a request whose answer has one may tell the reason.
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

/// The text with every secret blanked.
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
    let service = settings.service;
    if let Some((kind, text)) = &noted.transport {
        return unanswered(cannot, settings, noted, *kind, text);
    }
    let code = noted.answer.code.as_str();
    let bucket = &settings.bucket;
    let status = noted.status.unwrap_or(0);
    match (code, status) {
        ("NoSuchBucket" | "ContainerNotFound" | "InvalidBucketName", _) => {
            let what = if service == Service::Azure { "container" } else { "bucket" };
            Told::new(ErrorKind::NotFound, format!("the {what} {bucket} does not exist")).help(
                "check its name, the account or project, and the endpoint; regrow does not create buckets",
            )
        }
        (
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
            | "InvalidRegion",
            _,
        )
        | ("", 301 | 307)
            if service == Service::S3 =>
        {
            wrong_region(settings, noted)
        }
        ("InvalidAccessKeyId", _) => {
            Told::new(ErrorKind::PermissionDenied, "the store does not know the access key id")
                .help("check AWS_ACCESS_KEY_ID, the profile or the storage option key, and the endpoint")
        }
        ("SignatureDoesNotMatch", _) => Told::new(
            ErrorKind::PermissionDenied,
            "the store computes another signature: the secret key does not belong to the access key",
        )
        .help("check AWS_SECRET_ACCESS_KEY or the storage option secret; it may be cut short"),
        ("ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" | "RequestExpired", _) => {
            Told::new(ErrorKind::PermissionDenied, "the credentials have expired")
                .help("get new ones: log in again, or renew the session token")
        }
        ("InvalidToken" | "InvalidSecurity", _) => {
            Told::new(ErrorKind::PermissionDenied, "the store does not accept the session token").help(
                "check AWS_SESSION_TOKEN or the storage option token: it must come from the same session \
                 as the keys",
            )
        }
        ("RequestTimeTooSkewed", _) => {
            let told = Told::new(ErrorKind::PermissionDenied, "the clock of this machine is wrong")
                .help("set the clock, for example by NTP: stores accept a difference of 15 minutes");
            match &noted.answer.clocks {
                Some((server, ours)) => {
                    told.expected(format!("{server} (the store)"), format!("{ours} (this machine)"))
                }
                None => told,
            }
        }
        (
            "SlowDown" | "ServerBusy" | "ServiceUnavailable" | "InternalError" | "RequestTimeout"
            | "OperationTimedOut",
            _,
        )
        | (_, 408 | 429 | 500..=599)
            if status != 507 && status != 501 =>
        {
            Told::new(
                ErrorKind::Io,
                format!(
                    "{cannot}: the store is busy or failing{}, after {} requests",
                    in_brackets(noted),
                    noted.requests
                ),
            )
            .help("try again later; with SlowDown, use fewer processes at once, or another prefix")
        }
        ("QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" | "AccountBeingCreated", _)
        | (_, 507) => {
            Told::new(ErrorKind::StorageFull, format!("{cannot}: the store is full{}", in_brackets(noted)))
                .help("free some space or raise the quota; existing data did not change")
        }
        ("EntityTooLarge" | "RequestBodyTooLarge", _) | (_, 413) => Told::new(
            ErrorKind::Limit,
            format!("{cannot}: larger than the store allows{}", in_brackets(noted)),
        )
        .help("a smaller part_size may help"),
        ("KeyTooLongError", _) => {
            Told::new(ErrorKind::InvalidArgument, "the name is longer than the store allows")
                .help("S3 takes 1024 bytes of UTF-8: use a shorter path")
        }
        ("NoSuchUpload", _) => Told::new(
            ErrorKind::Io,
            format!(
                "{cannot}: the store no longer has the \
            upload"
            ),
        )
        .help("write it again: the upload was aborted, or a rule of the bucket removed it"),
        (_, 416) | ("InvalidRange", _) => {
            let told = Told::new(ErrorKind::Corrupt, "the object is too short")
                .help("the object was cut short or replaced: copy it again");
            match noted.object_len_bytes {
                Some(len) => told.expected("more", format!("{len} bytes")),
                None => told,
            }
        }
        (_, 401)
        | ("InvalidAuthenticationInfo" | "AuthenticationFailed" | "invalid_grant" | "invalid_client", _) => {
            Told::new(
                ErrorKind::PermissionDenied,
                format!("{} does not accept the credentials{}", service.name(), in_brackets(noted)),
            )
            .help(credentials_help(settings))
        }
        (_, 403) => {
            Told::new(ErrorKind::PermissionDenied, format!("{cannot}: access denied{}", in_brackets(noted)))
                .help(match is_anon(settings) {
                    true => "the request carried no credentials (anon): the bucket is not public".to_owned(),
                    false => format!("the credentials need {}", action.right(service)),
                })
        }
        ("NotImplemented", _) | (_, 501) => Told::new(
            ErrorKind::Unsupported,
            format!("{cannot}: the store cannot do this{}", in_brackets(noted)),
        )
        .help("conditional writes and multipart uploads are needed"),
        _ => by_variant(cannot, noted, error),
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
