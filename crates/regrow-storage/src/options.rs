//! The storage options of a caller: names and values.

use std::collections::BTreeMap;
use std::fmt;

/// How to reach a storage: keys, region, endpoint, limits. Names are those of `fsspec` or of the
/// cloud.
///
/// Options that are left out come from the environment, and from the files that the cloud's own
/// tools write. `Debug` shows only the names, because a value may be a secret.
///
/// | name | also | means |
/// |---|---|---|
/// | `anon` | `anonymous`, `skip_signature` | no credentials: a public bucket |
/// | `endpoint_url` | `endpoint`, `client_kwargs.endpoint_url`, `base_url` | the URL of another server; requests use http only if this URL begins with `http://` |
/// | `region` | `client_kwargs.region_name`, `region_name` | where the bucket is (S3) |
/// | `key`, `secret`, `token` | `aws_access_key_id`, `aws_secret_access_key`, `aws_session_token` | credentials of S3 |
/// | `profile` | | a section of `~/.aws/credentials` and `~/.aws/config` |
/// | `requester_pays` | `request_payer` | the reader pays (S3) |
/// | `token` | `bearer_token`, `service_account_key` | credentials of GCS: `anon`, a file, JSON or a token |
/// | `account_name`, `account_key`, `sas_token`, `connection_string` | `azure_storage_*` | credentials of Azure |
/// | `proxy_url` | `proxy` | a proxy; without this option, `HTTPS_PROXY` and similar variables set the proxy |
/// | `ca_bundle` | `verify` | a file of certificates that are trusted, beside those of the system |
/// | `checksum` | `checksum_algorithm` | `crc64nvme` or `sha256`: sent with uploads to S3 |
/// | `connect_timeout`, `read_timeout`, `retry_timeout` | | time-outs in seconds; defaults 10, 30, 180 |
/// | `max_retries` | | how often a failed request is repeated; default 8, for web servers 5 |
/// | `part_size` | | bytes of the parts of an upload, at least 5 MiB; the default is 8 MiB or more |
/// | `max_concurrency` | | parts of one upload that are sent at once: 6, or fewer if a part is longer than 8 MiB |
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StorageOptions(BTreeMap<String, String>);

impl StorageOptions {
    /// No options: all settings come from the environment and the files of the cloud's own tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces an option. The name is checked when a storage is opened.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// The same options with one more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(name, value);
        self
    }

    /// Whether there are no options.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of an option.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for StorageOptions {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value() {
        let options = StorageOptions::new().with("secret", "hush").with("endpoint_url", "https://u:hush@h");
        assert_eq!(format!("{options:?}"), r#"{"endpoint_url", "secret"}"#);
    }
}
