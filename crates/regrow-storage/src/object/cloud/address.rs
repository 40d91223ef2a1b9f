//! Addresses: from `s3://bucket/key` to a bucket and a key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::client::Client;
use super::settings::Service;
use super::surroundings::Surroundings;
use super::{Bucket, options};
use crate::StorageOptions;
use crate::error::{Error, Result};

/// Schemes of [`Bucket::of_url`].
pub(crate) const SCHEMES: [&str; 10] =
    ["s3", "s3a", "s3n", "r2", "gs", "gcs", "az", "azure", "abfs", "abfss"];

impl Bucket {
    /// The bucket and the key of an address. Settings that `options` lack come from the
    /// environment.
    ///
    /// | address | key |
    /// |---|---|
    /// | `s3://bucket/key`, `s3a://`, `s3n://`, `r2://` (with an endpoint) | taken literally: `%20` stays |
    /// | `gs://bucket/key`, `gcs://` | the same |
    /// | `az://container/key`, `azure://`, `abfs://`, `abfss://` | the same |
    /// | `abfss://container@account.dfs.core.windows.net/key` | the same |
    /// | `memory://bucket/key` | the same; the whole process shares the bucket |
    ///
    /// Slashes at the end of the key are left out.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid address or option; errors from reading the files of
    /// credentials.
    pub(crate) fn of_url(url: &str, options: &StorageOptions) -> Result<(Self, String)> {
        Self::of_url_in(url, options, &Surroundings::of_process())
    }

    pub(super) fn of_url_in(
        url: &str,
        options: &StorageOptions,
        around: &Surroundings,
    ) -> Result<(Self, String)> {
        let bad = |what: &str| {
            // The text before an `@` and the text after a `?` may be secrets.
            let shown = url.split(['?', '#']).next().unwrap_or(url);
            let shown = match (shown.split_once("://"), shown.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://[hidden]@{rest}"),
                _ => shown.to_owned(),
            };
            Err(Error::invalid(format!("the address of an object store {what}"))
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
            _ => return bad("has an unknown scheme"),
        };
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (bucket, account) = match host.split_once('@') {
            Some((container, host)) if service == Service::Azure => match host.split_once('.') {
                Some((account, "dfs.core.windows.net" | "blob.core.windows.net")) => {
                    (container, Some(account))
                }
                _ => return bad("names a host outside of Azure Blob Storage"),
            },
            Some(_) => return bad("has a user name; put credentials into storage options"),
            None => (host, None),
        };
        if bucket.is_empty() {
            return bad("does not name a bucket");
        }
        if bucket.contains([':', '?', '#', '%', '\\', ' ']) {
            return bad("has an invalid character in the bucket name");
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
}

fn shared_memory(name: &str) -> Arc<Client> {
    static SHARED: Mutex<BTreeMap<String, Arc<Client>>> = Mutex::new(BTreeMap::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.entry(name.to_owned()).or_insert_with(|| Arc::new(Client::in_memory())).clone()
}
