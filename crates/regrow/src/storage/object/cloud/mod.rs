//! Buckets of object stores, as blocking calls: S3 and its kin, Google Cloud Storage, Azure, and memory.
//!
//! `object_store` signs and sends, tokio drives the sockets; neither is seen outside this folder. What is added here:
//!
//! - **Time.** Every operation ends, and a request has as long as its size needs ([`transport`]).
//! - **Doubt.** A create that was answered by a broken connection may have happened. [`Bucket::create_settled`] and
//!   [`Bucket::replace_settled`] look ([`settle`]).
//! - **Words.** An error says what the store meant, and holds no secret ([`error`]).
//! - **Forks.** A child of `fork` makes its own connections ([`runtime`]).
//!
//! ```text
//! Bucket ── calls ──> run: time limit, notes ──> object_store ──> transport ──> network
//!    └─ upload ──> Upload: parts of one size, eight on their way at once, gone if it is dropped
//! ```
//!
//! Keys are text without empty, `.` and `..` segments, as `object_store` wants them. What other tools leave behind under
//! names that end in `/` to show a folder is not listed.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path as StorePath;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, PutResult, UpdateVersion,
};

use self::client::Client;
use self::error::{Action, Failure};
use self::options::{Settings, Surroundings};
use self::transport::Notes;
use crate::error::{Error, ErrorKind, Result};

pub(crate) use super::{Object as ObjectInfo, Tag};
use crate::storage::StorageOptions;

mod client;
mod credentials;
mod error;
mod objects;
mod options;
mod runtime;
mod settle;
#[cfg(test)]
mod tests;
mod transport;
mod upload;

pub(in crate::storage) use objects::KIND;
pub(crate) use options::Service;
pub(crate) use settle::Created;
#[cfg(test)]
pub(crate) use settle::Replaced;
pub(crate) use upload::Upload;

/// Schemes of [`Bucket::of_url`].
pub(crate) const SCHEMES: [&str; 10] =
    ["s3", "s3a", "s3n", "r2", "gs", "gcs", "az", "azure", "abfs", "abfss"];

/// Keys that one page of a listing holds at most, on every store.
const PAGE_KEYS: usize = 1000;
/// Tries of a deletion: that of many keys is no request that the layer below tries again.
const DELETE_TRIES: u32 = 3;

/// One bucket (or container) of an object store, with how to reach it. Cheap to clone; `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Bucket(Arc<Inner>);

struct Inner {
    /// For example `s3://bucket`.
    root: String,
    settings: Settings,
    /// The settings with the region, where the store had to be asked for it.
    located: OnceLock<(Settings, Arc<str>)>,
    /// The client of a bucket in memory, which is no matter of a process.
    memory: Option<Arc<Client>>,
}

/// What is below a prefix.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    /// Sorted by the bytes of their keys.
    pub(crate) objects: Vec<ObjectInfo>,
    /// Whether the limit was reached and there are more.
    pub(crate) is_cut: bool,
}

/// On what condition an object is written.
#[derive(Debug, Clone)]
pub(crate) enum PutMode {
    /// None: what was there is replaced.
    Overwrite,
    /// Nothing may be there.
    CreateNew,
    /// What is there must be this.
    Replace(Tag),
}

/// What became of a put.
#[derive(Debug, Clone)]
pub(crate) enum Put {
    /// Written.
    Done(Tag),
    /// Refused: something is there, says the store. That may be a lie: [`Bucket::create_settled`] looks.
    Exists,
    /// Refused: something else is there, or nothing.
    Conflict,
}

impl Bucket {
    /// The bucket and the key of an address. What `options` leave open comes from the environment.
    ///
    /// | address | key |
    /// |---|---|
    /// | `s3://bucket/key`, `s3a://`, `s3n://`, `r2://` (with an endpoint) | taken literally: `%20` stays |
    /// | `gs://bucket/key`, `gcs://` | the same |
    /// | `az://container/key`, `azure://`, `abfs://`, `abfss://` | the same |
    /// | `abfss://container@account.dfs.core.windows.net/key` | the same |
    /// | `memory://bucket/key` | shared by the whole process |
    ///
    /// Slashes at the end of the key are left out.
    ///
    /// # Errors
    /// `InvalidArgument` for an address or an option that makes no sense; what the files of credentials cause.
    pub(crate) fn of_url(url: &str, options: &StorageOptions) -> Result<(Self, String)> {
        Self::of_url_in(url, options, &Surroundings::of_process())
    }

    fn of_url_in(url: &str, options: &StorageOptions, around: &Surroundings) -> Result<(Self, String)> {
        let bad = |what: &str| {
            // What stands before an @ may be a secret, and so may what follows a ?.
            let shown = url.split(['?', '#']).next().unwrap_or(url);
            let shown = match (shown.split_once("://"), shown.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://[hidden]@{rest}"),
                _ => shown.to_owned(),
            };
            Err(Error::invalid(format!("an address of an object store {what}"))
                .in_file(shown)
                .help("s3://bucket/path, gs://bucket/path, az://container/path"))
        };
        let Some((scheme, rest)) = url.split_once("://") else { return bad("needs a scheme") };
        let scheme = scheme.to_ascii_lowercase();
        let service = match scheme.as_str() {
            "s3" | "s3a" | "s3n" | "r2" => Service::S3,
            "gs" | "gcs" => Service::Gcs,
            "az" | "azure" | "abfs" | "abfss" => Service::Azure,
            "memory" => Service::Memory,
            _ => return bad("has a scheme that is not known"),
        };
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, account) = match host.split_once('@') {
            Some((container, host)) if service == Service::Azure => match host.split_once('.') {
                Some((account, "dfs.core.windows.net" | "blob.core.windows.net")) => {
                    (container, Some(account))
                }
                _ => return bad("names a host that is not of Azure Blob Storage"),
            },
            Some(_) => return bad("holds a user name; credentials go into storage options"),
            None => (host, None),
        };
        if bucket.is_empty() {
            return bad("names no bucket");
        }
        if bucket.contains([':', '?', '#', '%', '\\', ' ']) {
            return bad("has a bucket name with a character that no store allows");
        }
        let key = key.trim_end_matches('/');
        let settings = options::resolve(service, bucket, account, options, around)?;
        if scheme == "r2" && settings.endpoint().is_none() {
            return Err(Error::invalid("an r2:// address needs the endpoint of the account")
                .help("give the storage option endpoint_url=https://ACCOUNT.r2.cloudflarestorage.com"));
        }
        let memory = (service == Service::Memory).then(|| shared_memory(bucket));
        let root = format!("{scheme}://{host}");
        Ok((Self::of_settings(root, settings, memory), key.to_owned()))
    }

    fn of_settings(root: String, settings: Settings, memory: Option<Arc<Client>>) -> Self {
        Self(Arc::new(Inner { root, settings, located: OnceLock::new(), memory }))
    }

    /// A bucket in memory that nobody else has.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("private-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let settings = Settings {
            service: Service::Memory,
            bucket: name.clone(),
            config: BTreeMap::new(),
            tuning: options::Tuning::default(),
            ca_bundle: None,
            is_http: false,
            secrets: Vec::new(),
        };
        Self::of_settings(format!("memory://{name}"), settings, Some(Arc::new(Client::in_memory())))
    }

    /// Which cloud it is in.
    pub(crate) fn service(&self) -> Service {
        self.0.settings.service
    }

    /// The address of a key, for errors and reports; of the bucket itself for an empty key.
    pub(crate) fn url_of(&self, key: &str) -> String {
        format!("{}/{key}", self.0.root)
    }

    /// Requests that this process has sent to the bucket, with those that were tried again.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> u64 {
        self.client().map_or(0, |client| client.traffic.requests.load(Ordering::Relaxed))
    }

    /// What the store knows of an object; `None` if it is not there.
    ///
    /// # Errors
    /// Those of the store; every method has them.
    pub(crate) fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let failure = match self.try_head(key) {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        if failure.is_mute {
            // The answer to a HEAD has no body: why it failed is told by a GET.
            let path = path_of(self, key)?;
            let why = self.run(Action::Look, key, 0, |client| async move {
                client.store.get_range(&path, 0..1).await.map(drop)
            });
            if let Err(why) = why
                && why.error.kind() != ErrorKind::NotFound
            {
                return Err(why.error);
            }
        }
        Err(failure.error)
    }

    fn try_head(&self, key: &str) -> Result<Option<ObjectInfo>, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let found = self.run(Action::Look, key, 0, |client| async move {
            unless_missing(client.store.head(&path).await)
        })?;
        Ok(found.map(ObjectInfo::of))
    }

    /// A whole object of modest size; `None` if it is not there.
    ///
    /// # Errors
    /// `Replaced` if it is not the one that `if_match` says.
    pub(crate) fn get(&self, key: &str, if_match: Option<&Tag>) -> Result<Option<(Bytes, ObjectInfo)>> {
        Ok(self.try_get(key, if_match)?)
    }

    fn try_get(&self, key: &str, if_match: Option<&Tag>) -> Result<Option<(Bytes, ObjectInfo)>, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let found = self.run(Action::Read, key, 0, |client| async move {
            let options =
                GetOptions { if_match: if_match.and_then(|tag| tag.e_tag.clone()), ..GetOptions::default() };
            let Some(got) = unless_missing(client.store.get_opts(&path, options).await)? else {
                return Ok(None);
            };
            let meta = got.meta.clone();
            Ok(Some((got.bytes().await?, meta)))
        })?;
        let Some((bytes, meta)) = found else { return Ok(None) };
        let info = ObjectInfo::of(meta);
        if let Some(tag) = if_match
            && !tag.is_same(&info.tag)
        {
            return Err(Failure::certain(self.replaced(key)));
        }
        if bytes.len() as u64 != info.len_bytes {
            let error = Error::new(ErrorKind::Io, "the store sent another number of bytes than it said")
                .in_file(self.url_of(key))
                .expected(info.len_bytes, bytes.len());
            return Err(Failure::passing(error));
        }
        Ok(Some((bytes, info)))
    }

    /// Fills `out` from byte `offset` on, straight from the body. A body that breaks off is continued where it ended,
    /// of the same object.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the object is too short; `Replaced` if it is not, or no longer, the one of `if_match`.
    pub(crate) fn read_range(
        &self,
        key: &str,
        offset: u64,
        out: &mut [u8],
        if_match: Option<&Tag>,
    ) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let path = path_of(self, key)?;
        let wanted = out.len() as u64;
        let too_short = |len: u64| {
            Error::corrupt("the object is too short")
                .in_file(self.url_of(key))
                .at_byte(offset)
                .expected(
                    format_args!("{wanted} bytes from there on"),
                    format_args!("an object of {len} bytes"),
                )
                .help("the object was cut short, or replaced by another: copy it again")
        };
        if offset.checked_add(wanted).is_none() {
            return Err(too_short(u64::MAX));
        }
        let until = Instant::now() + self.0.settings.tuning.operation_limit(wanted);
        let mut reading = Reading { out, filled: 0, tag: if_match.cloned() };
        loop {
            let before = reading.filled;
            let left = (reading.out.len() - before) as u64;
            let (reading_now, path) = (&mut reading, &path);
            let outcome = self.run(Action::Read, key, left, |client| async move {
                fill(&*client.store, path, offset, reading_now).await
            });
            let failure = match outcome {
                Ok(Filled::All) => return Ok(()),
                Ok(Filled::Replaced) => return Err(self.replaced(key)),
                Ok(Filled::TooShort(len)) => return Err(too_short(len)),
                Ok(Filled::BrokeOff) => Failure::passing(
                    Error::new(ErrorKind::Io, "cannot read an object: the answer broke off")
                        .in_file(self.url_of(key))
                        .at_byte(offset + reading.filled as u64)
                        .help("look at the network, and try again"),
                ),
                Err(failure) => failure,
            };
            // Not every server says 416 of a range behind the end.
            if failure.error.kind() == ErrorKind::Io
                && !failure.may_pass
                && let Ok(Some(info)) = self.head(key)
                && info.len_bytes < offset + wanted
            {
                return Err(too_short(info.len_bytes));
            }
            // Without progress, the layers below have tried enough.
            if !failure.may_pass || reading.filled == before || Instant::now() >= until {
                return Err(failure.error);
            }
        }
    }

    fn replaced(&self, key: &str) -> Error {
        Error::new(ErrorKind::Replaced, "the object was replaced by another")
            .in_file(self.url_of(key))
            .help("open the checkpoint again")
    }

    /// The objects below the folder `prefix` (all, if it is empty), sorted by key, however deep; with a `limit`, the
    /// first ones.
    pub(crate) fn list(&self, prefix: &str, limit: Option<usize>) -> Result<Listing> {
        let folder = folder_of(self, prefix)?;
        let limit = limit.unwrap_or(usize::MAX);
        let mut objects: Vec<ObjectInfo> = Vec::new();
        let mut page_token = None;
        let has_more = loop {
            // One more than asked for says whether there are more.
            let missing = limit.saturating_add(1).saturating_sub(objects.len());
            let max_keys = Some(missing.clamp(1, PAGE_KEYS));
            let options = PaginatedListOptions { max_keys, page_token, ..PaginatedListOptions::default() };
            let folder = &folder;
            let page = self.run(Action::List, prefix, 0, |client| async move {
                match &client.pages {
                    Some(pages) => {
                        let prefix = (!folder.is_empty()).then_some(folder.as_str());
                        let page = pages.list_paginated(prefix, options).await?;
                        Ok((page.result.objects, page.page_token))
                    }
                    None => {
                        let path = StorePath::parse(folder)?;
                        let all: Vec<_> = client.store.list(Some(&path)).collect().await;
                        Ok((all.into_iter().collect::<object_store::Result<_>>()?, None))
                    }
                }
            })?;
            let (found, next) = page;
            objects.extend(
                found.into_iter().map(ObjectInfo::of).filter(|info| info.key.starts_with(folder.as_str())),
            );
            match next {
                Some(next) if objects.len() <= limit => page_token = Some(next),
                next => break next.is_some(),
            }
        };
        objects.sort_unstable_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        without_markers(&mut objects);
        let is_cut = has_more || objects.len() > limit;
        objects.truncate(limit);
        Ok(Listing { objects, is_cut })
    }

    /// The objects whose keys begin with this text, which need not end where a name does; with `page`, those of the first
    /// page, and whether these are all.
    pub(crate) fn list_beginning(&self, begins: &str, is_page: bool) -> Result<(Vec<ObjectInfo>, bool)> {
        let mut objects: Vec<ObjectInfo> = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            let page = self.run(Action::List, begins, 0, |client| async move {
                let Some(pages) = &client.pages else { return Ok((Vec::new(), None)) };
                let page = pages.list_paginated(Some(begins), options).await?;
                Ok((page.result.objects, page.page_token))
            })?;
            let (found, next) = page;
            objects.extend(found.into_iter().map(ObjectInfo::of));
            match next {
                Some(next) if !is_page => page_token = Some(next),
                next => {
                    // `object_store` leaves what has just this name out of a list of Azure's.
                    let is_left_out = self.service() == Service::Azure && !begins.ends_with('/');
                    if is_left_out && objects.iter().all(|object| object.key != begins) {
                        objects.extend(self.head(begins)?);
                    }
                    return Ok((objects, next.is_none()));
                }
            }
        }
    }

    /// The objects directly in the folder `prefix`, and the folders in it, as whole keys without a slash at the end;
    /// both sorted.
    pub(crate) fn list_level(&self, prefix: &str) -> Result<(Vec<ObjectInfo>, Vec<String>)> {
        let folder = folder_of(self, prefix)?;
        let path = StorePath::parse(&folder).map_err(|error| invalid_key(self, prefix, &error))?;
        let found = self.run(Action::List, prefix, 0, |client| async move {
            client.store.list_with_delimiter((!path.is_root()).then_some(&path)).await
        })?;
        let mut objects: Vec<ObjectInfo> = found
            .objects
            .into_iter()
            .map(ObjectInfo::of)
            .filter(|info| info.key.starts_with(&folder))
            .collect();
        objects.sort_unstable_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        let mut folders: Vec<String> = found.common_prefixes.into_iter().map(String::from).collect();
        folders.sort_unstable();
        folders.dedup();
        Ok((objects, folders))
    }

    /// Writes a whole object of modest size, on a condition.
    ///
    /// An error may mean that it was written even so, and [`Put::Exists`] that this very call wrote it:
    /// [`create_settled`](Self::create_settled) and [`replace_settled`](Self::replace_settled) find out.
    pub(crate) fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<Put> {
        Ok(self.try_put(key, bytes.into(), mode)?)
    }

    fn try_put(&self, key: &str, payload: PutPayload, mode: PutMode) -> Result<Put, Failure> {
        let path = path_of(self, key).map_err(Failure::certain)?;
        let condition = match mode {
            PutMode::Overwrite => object_store::PutMode::Overwrite,
            PutMode::CreateNew => object_store::PutMode::Create,
            PutMode::Replace(tag) => {
                let mut tag = tag;
                if self.service() == Service::Gcs && tag.version.is_none() {
                    // GCS compares generations, which listings leave out.
                    match self.try_head(key)? {
                        Some(info) if info.tag.is_same(&tag) => tag = info.tag,
                        _ => return Ok(Put::Conflict),
                    }
                }
                object_store::PutMode::Update(UpdateVersion { e_tag: tag.e_tag, version: tag.version })
            }
        };
        let len = payload.content_length() as u64;
        self.run(Action::Write, key, len, |client| async move {
            match client.store.put_opts(&path, payload, condition.into()).await {
                Ok(put) => Ok(Put::Done(Tag::from(put))),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(Put::Exists),
                Err(error) if error::is_precondition(&error) => Ok(Put::Conflict),
                Err(error) => Err(error),
            }
        })
    }

    /// Removes objects; those that are not there are no error.
    pub(crate) fn delete(&self, keys: &[String]) -> Result<()> {
        let mut left: Vec<StorePath> = keys.iter().map(|key| path_of(self, key)).collect::<Result<_>>()?;
        let first = keys.first().map_or("", String::as_str);
        for tried in 1.. {
            if left.is_empty() {
                break;
            }
            let asked = left.clone();
            let mut failed = Vec::new();
            let failed_now = &mut failed;
            let outcome = self.run(Action::Delete, first, left.len() as u64 * 1024, |client| async move {
                let paths = futures_util::stream::iter(asked.clone().into_iter().map(Ok)).boxed();
                let results: Vec<_> = client.store.delete_stream(paths).collect().await;
                let mut worst = Ok(());
                let mut gone = std::collections::HashSet::new();
                for result in results {
                    match result {
                        Ok(path) => drop(gone.insert(path)),
                        Err(object_store::Error::NotFound { path, .. }) => {
                            gone.extend(StorePath::parse(path));
                        }
                        Err(error) => worst = Err(error),
                    }
                }
                *failed_now = asked;
                // A key whose end is not known is asked for again: deleting twice does no harm.
                failed_now.retain(|path| !gone.contains(path));
                worst
            });
            match outcome {
                Ok(()) => break,
                Err(failure) if failure.may_pass && tried < DELETE_TRIES => {
                    if !failed.is_empty() {
                        left = failed;
                    }
                    runtime::state()?.block_on(runtime::pause(tried))?;
                }
                Err(failure) => return Err(failure.error),
            }
        }
        Ok(())
    }

    /// Copies an object within the store, up to 5 GiB on S3. What was at `to` is replaced.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<()> {
        let (from_path, to_path) = (path_of(self, from)?, path_of(self, to)?);
        // The store moves the bytes: a large object takes its time.
        let len = 1 << 24;
        self.run(
            Action::Copy,
            from,
            len,
            |client| async move { client.store.copy(&from_path, &to_path).await },
        )?;
        Ok(())
    }

    /// Starts to write an object of any size: [`Upload`].
    ///
    /// `key` must be one that is written once: after a broken connection, an object of the right length there is taken
    /// for the one that was written. Without `expected_len_bytes` an object has at most 160 GB.
    pub(crate) fn upload(&self, key: &str, expected_len_bytes: Option<u64>) -> Result<Upload> {
        Upload::new(self, key, expected_len_bytes)
    }

    /// Runs an operation with its time limit, and explains its failure.
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

    /// The same as a future.
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

    /// The client of this process.
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

impl From<PutResult> for Tag {
    fn from(put: PutResult) -> Self {
        Self::new(put.e_tag, put.version)
    }
}

/// A range that is being read, perhaps in several answers.
struct Reading<'a> {
    out: &'a mut [u8],
    filled: usize,
    /// All answers must be of this object.
    tag: Option<Tag>,
}

enum Filled {
    All,
    BrokeOff,
    Replaced,
    TooShort(u64),
}

/// Reads on from where `reading` is.
async fn fill(
    store: &dyn ObjectStore,
    path: &StorePath,
    offset: u64,
    reading: &mut Reading<'_>,
) -> object_store::Result<Filled> {
    let end = offset + reading.out.len() as u64;
    let options = GetOptions {
        range: Some(GetRange::Bounded(offset + reading.filled as u64..end)),
        if_match: reading.tag.as_ref().and_then(|tag| tag.e_tag.clone()),
        ..GetOptions::default()
    };
    let got = match store.get_opts(path, options).await {
        Err(error) if error::is_precondition(&error) => return Ok(Filled::Replaced),
        got => got?,
    };
    let tag = Tag::new(got.meta.e_tag.clone(), got.meta.version.clone());
    // Not every server knows conditions.
    match &reading.tag {
        Some(wanted) if !wanted.is_same(&tag) => return Ok(Filled::Replaced),
        Some(_) => {}
        None => reading.tag = Some(tag),
    }
    if got.range.end < end {
        return Ok(Filled::TooShort(got.meta.size));
    }
    let mut body = got.into_stream();
    while let Some(chunk) = body.next().await {
        let chunk = match chunk {
            Err(error) if error::is_precondition(&error) => return Ok(Filled::Replaced),
            chunk => chunk?,
        };
        let room = reading.out.get_mut(reading.filled..).unwrap_or_default();
        let len = chunk.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), chunk.get(..len)) {
            to.copy_from_slice(from);
        }
        reading.filled += len;
    }
    Ok(if reading.filled == reading.out.len() { Filled::All } else { Filled::BrokeOff })
}

/// The bucket in memory that goes by a name in this process.
fn shared_memory(name: &str) -> Arc<Client> {
    static SHARED: Mutex<BTreeMap<String, Arc<Client>>> = Mutex::new(BTreeMap::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.entry(name.to_owned()).or_insert_with(|| Arc::new(Client::in_memory())).clone()
}

/// A missing object is `None`. A missing bucket becomes an error all the same: it is in the notes.
fn unless_missing<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) if !transport::is_bucket_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

fn path_of(bucket: &Bucket, key: &str) -> Result<StorePath> {
    // `parse` would take away slashes at both ends.
    if key.is_empty() || key.starts_with('/') || key.ends_with('/') {
        return Err(Error::invalid(
            "a name in an object store neither begins nor ends with a slash, and is not empty",
        )
        .in_file(bucket.url_of(key)));
    }
    StorePath::parse(key).map_err(|error| invalid_key(bucket, key, &error))
}

fn invalid_key(bucket: &Bucket, key: &str, error: &object_store::path::Error) -> Error {
    Error::invalid(format!("an object store name that cannot be used: {error}"))
        .in_file(bucket.url_of(key))
        .help("names without empty, . and .. segments can")
}

/// `a/b/` for `a/b` and `a/b/`; empty for the whole bucket.
fn folder_of(bucket: &Bucket, prefix: &str) -> Result<String> {
    let name = prefix.strip_suffix('/').unwrap_or(prefix);
    if name.is_empty() {
        return Ok(String::new());
    }
    path_of(bucket, name)?;
    Ok(format!("{name}/"))
}

/// Leaves out empty objects that stand for folders: `a/b/` arrives as `a/b`, beside what is in it.
fn without_markers(objects: &mut Vec<ObjectInfo>) {
    let is_marker = |at: usize, info: &ObjectInfo| {
        info.len_bytes == 0 && {
            let folder = format!("{}/", info.key);
            let rest = objects.get(at..).unwrap_or_default();
            let first = rest.partition_point(|other| other.key.as_bytes() < folder.as_bytes());
            rest.get(first).is_some_and(|other| other.key.starts_with(&folder))
        }
    };
    let markers: Vec<bool> = objects.iter().enumerate().map(|(at, info)| is_marker(at, info)).collect();
    let mut markers = markers.into_iter();
    objects.retain(|_| !markers.next().unwrap_or(false));
}
