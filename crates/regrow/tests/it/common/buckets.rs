//! Buckets of the test kit's server. The server runs as long as the process.

use regrow::location::Location;
#[cfg(feature = "cloud")]
use regrow::location::StorageOptions;

/// What such a server asks of those who want its buckets as S3's.
#[cfg(feature = "cloud")]
pub fn s3(endpoint: impl Into<String>) -> StorageOptions {
    StorageOptions::new()
        .with("endpoint_url", endpoint)
        .with("region", "us-east-1")
        .with("key", "test")
        .with("secret", "testtest")
}

/// A folder in a bucket of S3, and one of GCS; none without the feature `cloud`.
#[cfg(feature = "cloud")]
pub fn buckets(test: &str) -> Vec<Location> {
    use std::path::Path;

    SERVER.create_bucket(test);
    let s3 = s3(SERVER.endpoint());
    let gcs = StorageOptions::new().with("endpoint_url", SERVER.endpoint()).with("anon", "true");
    vec![
        Location::with_options(Path::new(&format!("s3://{test}/s3")), &s3).unwrap(),
        Location::with_options(Path::new(&format!("gs://{test}/gcs")), &gcs).unwrap(),
    ]
}

#[cfg(feature = "cloud")]
static SERVER: std::sync::LazyLock<regrow_testkit::object_server::ObjectServer> =
    std::sync::LazyLock::new(|| regrow_testkit::object_server::ObjectServer::start().unwrap());

#[cfg(not(feature = "cloud"))]
pub fn buckets(_test: &str) -> Vec<Location> {
    Vec::new()
}
