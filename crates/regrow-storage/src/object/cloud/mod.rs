//! Buckets of object stores, as blocking calls: S3 and compatible stores, Google Cloud Storage,
//! Azure, and memory.
//!
//! `object_store` signs and sends, and tokio drives the sockets. Only this folder uses these two
//! libraries. The folder adds:
//!
//! - **Time.** Every operation ends. The time limit of a request depends on its size
//!   ([`transport`]).
//! - **Doubt.** After a broken connection, a create may have succeeded. [`Bucket::create_settled`]
//!   and [`Bucket::replace_settled`] check this ([`settle`]).
//! - **Words.** An error explains the answer of the store, and has no secret ([`error`]).
//! - **Forks.** A child of `fork` makes its own connections ([`runtime`]).
//!
//! ```text
//! Bucket ── calls ──> run: time limit, notes ──> object_store ──> transport ──> network
//!    └─ upload ──> Upload: parts of one size, six on their way at once, gone if it is dropped
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `address`, `options`, `credentials`, `settings` | from an address and options to the settings of a client |
//! | `read`, `list`, `write`, `upload` | the operations |
//! | [`settle`] | writes whose outcome is certain |
//! | `client`, [`transport`], [`runtime`] | sending requests |
//! | [`error`] | errors of a store |
//! | `objects` | a bucket as [`Objects`](crate::object::Objects) |
//!
//! As `object_store` requires, keys are text without empty, `.` and `..` segments. Other tools mark
//! folders by objects whose names end in `/`. These objects are not listed.

#[cfg(test)]
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use object_store::ObjectMeta;
use object_store::path::Path as StorePath;

use self::client::Client;
use self::error::{Action, Failure};
use self::settings::Settings;
use self::transport::Notes;
use crate::error::{Error, ErrorKind, Result};

pub(crate) use super::{Object as ObjectInfo, Tag};

mod address;
mod client;
mod credentials;
mod error;
mod list;
mod objects;
mod options;
mod read;
pub(crate) mod runtime;
mod settings;
mod settle;
mod surroundings;
#[cfg(test)]
mod tests;
mod transport;
mod upload;
mod write;

pub(crate) use address::SCHEMES;
pub(crate) use objects::KIND;
pub(crate) use settings::Service;
pub(crate) use settle::{Created, Replaced};
pub(crate) use upload::Upload;
pub(crate) use write::{Put, PutMode};

/// One bucket (or container) of an object store, with the settings to reach it. Cheap to clone.
/// `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Bucket(Arc<Inner>);

struct Inner {
    /// The URL of the bucket, for example `s3://bucket`.
    root: String,
    settings: Settings,
    /// The settings with the region, if regrow had to ask the store for it.
    located: OnceLock<(Settings, Arc<str>)>,
    /// The client of a bucket in memory. Unlike other clients it does not depend on the process.
    memory: Option<Arc<Client>>,
}

impl Bucket {
    fn of_settings(root: String, settings: Settings, memory: Option<Arc<Client>>) -> Self {
        Self(Arc::new(Inner { root, settings, located: OnceLock::new(), memory }))
    }

    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("private-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let settings = Settings {
            service: Service::Memory,
            bucket: name.clone(),
            config: BTreeMap::new(),
            tuning: settings::Tuning::default(),
            ca_bundle: None,
            is_http: false,
            secrets: Vec::new(),
        };
        Self::of_settings(format!("memory://{name}"), settings, Some(Arc::new(Client::in_memory())))
    }

    pub(crate) fn service(&self) -> Service {
        self.0.settings.service
    }

    /// The URL of a key, for errors and reports. For an empty key, the URL of the bucket.
    pub(crate) fn url_of(&self, key: &str) -> String {
        format!("{}/{key}", self.0.root)
    }

    /// Identifies the bucket among buckets of the same name elsewhere; `None` for one in memory.
    pub(crate) fn place_name(&self) -> Option<String> {
        let settings = &self.0.settings;
        let account = settings.config.get("azure_storage_account_name").map_or("", String::as_str);
        let endpoint = settings.endpoint().unwrap_or_default();
        let name = || format!("{:?} {endpoint} {account} {}", settings.service, settings.bucket);
        (settings.service != Service::Memory).then(name)
    }

    /// Number of requests that this process has sent to the bucket, including retries.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> u64 {
        self.client().map_or(0, |client| client.traffic.requests.load(Ordering::Relaxed))
    }

    /// Starts an [`Upload`] of an object of any size.
    ///
    /// No other process may write `key` at the same time: after a broken connection, a new object
    /// of the right length counts as the uploaded one. Without `expected_len_bytes`, an object has
    /// at most 160 GB.
    pub(crate) fn upload(&self, key: &str, expected_len_bytes: Option<u64>) -> Result<Upload> {
        Upload::new(self, key, expected_len_bytes)
    }

    /// Runs an operation with its time limit, and explains a failure.
    fn run<T, F, Fut>(&self, action: Action, key: &str, len_bytes: u64, operation: F) -> Result<T, Failure>
    where
        T: Send,
        F: FnOnce(Arc<Client>) -> Fut,
        Fut: Future<Output = object_store::Result<T>> + Send,
    {
        let client = self.client().map_err(Failure::certain)?;
        let future = self.limited(action, key.to_owned(), len_bytes, operation(client));
        runtime::state().and_then(|state| state.block_on(future)).map_err(Failure::certain)?
    }

    async fn limited<T>(
        &self,
        action: Action,
        key: String,
        len_bytes: u64,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let (settings, _) = self.settings();
        let limit = settings.tuning.operation_limit(len_bytes);
        let (outcome, noted) = Notes::scope(tokio::time::timeout(limit, operation)).await;
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error::explain(action, settings, self.url_of(&key), &noted, &error)),
            Err(_) => Err(error::too_slow(action, limit.as_secs(), self.url_of(&key))),
        }
    }

    fn client(&self) -> Result<Arc<Client>> {
        if let Some(memory) = &self.0.memory {
            return Ok(memory.clone());
        }
        let state = runtime::state()?;
        if self.0.located.get().is_none() {
            let mut settings = self.0.settings.clone();
            if settings.service == Service::S3
                && settings.endpoint().is_none()
                && !settings.config.contains_key("aws_region")
                && let Some(region) = state.region(&settings.bucket)?
            {
                settings.config.insert("aws_region".to_owned(), region);
            }
            let identity = settings.identity().into();
            let _ = self.0.located.set((settings, identity));
        }
        let (settings, identity) = self.settings();
        match identity {
            Some(identity) => state.client(identity, || Client::new(settings)),
            None => Err(Error::new(ErrorKind::Internal, "a bucket without a client")),
        }
    }

    fn settings(&self) -> (&Settings, Option<&Arc<str>>) {
        match self.0.located.get() {
            Some((settings, identity)) => (settings, Some(identity)),
            None => (&self.0.settings, None),
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.0.root)
    }
}

impl ObjectInfo {
    fn of(meta: ObjectMeta) -> Self {
        Self {
            key: meta.location.into(),
            len_bytes: meta.size,
            tag: Tag::new(meta.e_tag, meta.version),
            modified: meta.last_modified.into(),
        }
    }
}

fn path_of(bucket: &Bucket, key: &str) -> Result<StorePath> {
    // `parse` would remove slashes at both ends.
    if key.is_empty() || key.starts_with('/') || key.ends_with('/') {
        return Err(Error::invalid(
            "a name in an object store neither begins nor ends with a slash, and is not empty",
        )
        .in_file(bucket.url_of(key)));
    }
    StorePath::parse(key).map_err(|error| invalid_key(bucket, key, &error))
}

fn invalid_key(bucket: &Bucket, key: &str, error: &object_store::path::Error) -> Error {
    Error::invalid(format!("the name cannot be used in an object store: {error}"))
        .in_file(bucket.url_of(key))
        .help("names without empty, `.` and `..` parts")
}
