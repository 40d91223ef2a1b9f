//! The settings of a client of one bucket, and the time limits of its requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Service {
    S3,
    Gcs,
    Azure,
    /// A bucket in the memory of this process.
    Memory,
}

impl Service {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Gcs => "Google Cloud Storage",
            Self::Azure => "Azure Blob Storage",
            Self::Memory => "memory",
        }
    }
}

/// Time limits and sizes of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tuning {
    pub(super) connect_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) retry_timeout: Duration,
    pub(super) max_retries: usize,
    /// Smallest part of an upload, if the options give one.
    pub(super) part_len_bytes: Option<u64>,
    /// The number of concurrent parts of one upload, if the options give one.
    pub(super) parts_in_flight: Option<usize>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(180),
            max_retries: 8,
            part_len_bytes: None,
            parts_in_flight: None,
        }
    }
}

/// A connection with a lower rate than this is considered broken.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

impl Tuning {
    /// Longest time for one attempt of a request with a body of this length.
    pub(super) fn request_limit(&self, body_len_bytes: u64) -> Duration {
        self.connect_timeout + self.read_timeout + Duration::from_secs(body_len_bytes / BYTES_PER_SECOND_MIN)
    }

    /// Longest time for an operation that moves `len_bytes`, with all its retries.
    pub(super) fn operation_limit(&self, len_bytes: u64) -> Duration {
        self.retry_timeout + self.request_limit(len_bytes)
    }
}

/// All settings of a client of one bucket.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) bucket: String,
    /// Options of `object_store` and their values.
    pub(super) config: BTreeMap<String, String>,
    pub(super) tuning: Tuning,
    pub(super) ca_bundle: Option<PathBuf>,
    /// Whether the endpoint is plain http.
    pub(super) is_http: bool,
    /// Values that must never be printed.
    pub(super) secrets: Vec<String>,
}

impl Settings {
    /// A name that is equal for two settings exactly if they can share a client.
    pub(super) fn identity(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            self.service, self.bucket, self.config, self.tuning, self.ca_bundle
        )
    }

    /// The endpoint; `None` if it is the cloud's own.
    pub(super) fn endpoint(&self) -> Option<&str> {
        ["aws_endpoint_url_s3", "aws_endpoint", "google_base_url", "azure_storage_endpoint"]
            .iter()
            .find_map(|key| self.config.get(*key))
            .map(String::as_str)
    }
}
