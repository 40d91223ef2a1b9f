//! A client of one bucket, made from its settings. A process has one client for each bucket, and
//! all its requests share it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3CopyIfNotExists};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::memory::InMemory;
use object_store::{BackoffConfig, Certificate, ClientOptions, HeaderValue, ObjectStore, RetryConfig};

use super::settings::{Service, Settings};
use super::transport::{Connector, Traffic, innermost};
use crate::error::{Error, ErrorKind, Result};

/// Longest file of certificates. A usual one has about 200 KB.
const CA_BUNDLE_LEN_BYTES_MAX: u64 = 16 << 20;

/// A client of one bucket.
pub(super) struct Client {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same store, if it can list page by page.
    pub(super) pages: Option<Arc<dyn PaginatedListStore>>,
    /// The clock of the store; counts of requests, for tests.
    pub(super) traffic: Arc<Traffic>,
}

impl Client {
    pub(super) fn in_memory() -> Self {
        Self { store: Arc::new(InMemory::new()), pages: None, traffic: Arc::default() }
    }

    /// Makes a client. Reads the files of credentials, but sends no request.
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        let traffic = Arc::new(Traffic::default());
        let metadata_authority = ["aws_metadata_endpoint", "azure_msi_endpoint"].iter().find_map(|key| {
            let (_, rest) = settings.config.get(*key)?.split_once("://")?;
            Some(rest.split('/').next()?.to_owned())
        });
        let connector = Connector { tuning: settings.tuning, traffic: traffic.clone(), metadata_authority };
        let (store, pages): (Arc<dyn ObjectStore>, Arc<dyn PaginatedListStore>) = match settings.service {
            Service::Memory => return Ok(Self::in_memory()),
            Service::S3 => {
                let store = Arc::new(s3(settings, connector)?);
                (store.clone(), store)
            }
            Service::Gcs => {
                let store = Arc::new(gcs(settings, connector)?);
                (store.clone(), store)
            }
            Service::Azure => {
                let store = Arc::new(azure(settings, connector)?);
                (store.clone(), store)
            }
        };
        Ok(Self { store, pages: Some(pages), traffic })
    }
}

fn s3(settings: &Settings, connector: Connector) -> Result<object_store::aws::AmazonS3> {
    let mut builder = AmazonS3Builder::new()
        .with_client_options(client_options(settings)?)
        .with_retry(retry(settings))
        .with_http_connector(connector)
        .with_bucket_name(&settings.bucket)
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        // TLS already protects the data; SHA-256 over all of it would cost more than TLS.
        .with_unsigned_payload(!settings.is_http);
    if settings.endpoint().is_none()
        && let Some(region) = settings.config.get("aws_region")
        && region.starts_with("cn-")
    {
        builder = builder.with_endpoint(format!("https://s3.{region}.amazonaws.com.cn"));
    }
    for (key, value) in &settings.config {
        let key: AmazonS3ConfigKey = key.parse().map_err(|error| refused(settings, &error))?;
        builder = builder.with_config(key, value);
    }
    builder.with_allow_http(settings.is_http).build().map_err(|error| refused(settings, &error))
}

fn gcs(settings: &Settings, connector: Connector) -> Result<object_store::gcp::GoogleCloudStorage> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(client_options(settings)?)
        .with_retry(retry(settings))
        .with_http_connector(connector)
        .with_bucket_name(&settings.bucket);
    for (key, value) in &settings.config {
        builder = builder.with_config(key.parse().map_err(|error| refused(settings, &error))?, value);
    }
    builder.build().map_err(|error| refused(settings, &error))
}

fn azure(settings: &Settings, connector: Connector) -> Result<object_store::azure::MicrosoftAzure> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_client_options(client_options(settings)?)
        .with_retry(retry(settings))
        .with_http_connector(connector)
        .with_container_name(&settings.bucket);
    for (key, value) in &settings.config {
        builder = builder.with_config(key.parse().map_err(|error| refused(settings, &error))?, value);
    }
    builder.with_allow_http(settings.is_http).build().map_err(|error| refused(settings, &error))
}

fn retry(settings: &Settings) -> RetryConfig {
    RetryConfig {
        // 8 tries take about 20 s. A store that answers SlowDown needs that time.
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(15),
            base: 3.0,
        },
        max_retries: settings.tuning.max_retries,
        retry_timeout: settings.tuning.retry_timeout,
    }
}

fn client_options(settings: &Settings) -> Result<ClientOptions> {
    let mut options = ClientOptions::new()
        .with_allow_http(settings.is_http)
        .with_connect_timeout(settings.tuning.connect_timeout)
        .with_user_agent(HeaderValue::from_static(concat!("regrow/", env!("CARGO_PKG_VERSION"))));
    if let Some(file) = &settings.ca_bundle {
        for certificate in certificates(file)? {
            options = options.with_root_certificate(certificate);
        }
    }
    Ok(options)
}

fn certificates(file: &Path) -> Result<Vec<Certificate>> {
    let about = std::fs::metadata(file).map_err(|error| Error::io("cannot read", file, error))?;
    if about.len() > CA_BUNDLE_LEN_BYTES_MAX {
        return Err(Error::new(ErrorKind::Limit, "a file of certificates is too large")
            .in_file(file)
            .expected(format_args!("at most {CA_BUNDLE_LEN_BYTES_MAX} bytes"), about.len()));
    }
    let text = std::fs::read(file).map_err(|error| Error::io("cannot read", file, error))?;
    Certificate::from_pem_bundle(&text).map_err(|error| {
        Error::invalid(format!("not certificates in PEM: {}", innermost(&error))).in_file(file)
    })
}

fn refused(settings: &Settings, error: &object_store::Error) -> Error {
    let text = super::error::scrub(&settings.secrets, &innermost(error));
    let help = match settings.service {
        Service::Azure if text.to_ascii_lowercase().contains("account") => {
            "give the storage option account_name, or set AZURE_STORAGE_ACCOUNT_NAME"
        }
        Service::S3 if text.contains("AccessKeyId") || text.contains("SecretAccessKey") => {
            "give an access key together with its secret: key and secret, or AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY"
        }
        _ => "check the storage options and the environment variables of the cloud",
    };
    Error::invalid(format!("cannot set up access to {}: {text}", settings.service.name())).help(help)
}
