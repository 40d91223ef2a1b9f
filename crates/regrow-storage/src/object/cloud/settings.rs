//! The settings of a client of one bucket, and the time limits of its requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Which cloud, or which of its dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Service {
    /// S3 and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A bucket in the memory of this process.
    Memory,
}

impl Service {
    /// What people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Gcs => "Google Cloud Storage",
            Self::Azure => "Azure Blob Storage",
            Self::Memory => "memory",
        }
    }
}

/// Limits and sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tuning {
    pub(super) connect_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) retry_timeout: Duration,
    pub(super) max_retries: usize,
    /// Smallest part of an upload.
    pub(super) part_len_bytes: Option<u64>,
    /// Parts of one upload in flight at once, if the options give a number.
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

/// A line that carries less than this is taken for broken.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

impl Tuning {
    /// Longest time for one try of a request with a body of that length.
    pub(super) fn request_limit(&self, body_len_bytes: u64) -> Duration {
        self.connect_timeout + self.read_timeout + Duration::from_secs(body_len_bytes / BYTES_PER_SECOND_MIN)
    }

    /// Longest time for an operation that moves so many bytes, with all its tries.
    pub(super) fn operation_limit(&self, len_bytes: u64) -> Duration {
        self.retry_timeout + self.request_limit(len_bytes)
    }
}

/// Everything that a client of one bucket is made from.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) bucket: String,
    /// `object_store`'s keys and their values.
    pub(super) config: BTreeMap<String, String>,
    pub(super) tuning: Tuning,
    pub(super) ca_bundle: Option<PathBuf>,
    /// Whether the endpoint is plain http.
    pub(super) is_http: bool,
    /// What must never be printed.
    pub(super) secrets: Vec<String>,
}

impl Settings {
    /// A name that two settings share exactly if they lead to the same client.
    pub(super) fn identity(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            self.service, self.bucket, self.config, self.tuning, self.ca_bundle
        )
    }

    /// The endpoint, where it is not the cloud's own.
    pub(super) fn endpoint(&self) -> Option<&str> {
        ["aws_endpoint_url_s3", "aws_endpoint", "google_base_url", "azure_storage_endpoint"]
            .iter()
            .find_map(|key| self.config.get(*key))
            .map(String::as_str)
    }
}
