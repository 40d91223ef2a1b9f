//! Options of a store: names of `object_store`, `fsspec` and the clouds' own variables, made into one set.
//!
//! ```text
//! StorageOptions ──┐
//! environment ─────┼──> Settings of one bucket: object_store's keys, our tuning, the values that are secret
//! ~/.aws files ────┘
//! ```
//!
//! What is given by hand wins over the environment, the environment over files. Keys that belong together (access key,
//! secret key, session token) are taken from one of them, never from two.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use super::credentials;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::StorageOptions;

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
    /// Parts of one upload on their way at once.
    pub(super) parts_in_flight: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(180),
            max_retries: 8,
            part_len_bytes: None,
            parts_in_flight: 8,
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

/// What surrounds the process: its environment and its home folder. Tests make their own.
#[derive(Debug, Clone, Default)]
pub(super) struct Surroundings {
    pub(super) vars: BTreeMap<String, String>,
    pub(super) home: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        Self { vars, home: std::env::home_dir() }
    }

    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }
}

/// The settings of `bucket`, from `options` first, then from the surroundings.
pub(super) fn resolve(
    service: Service,
    bucket: &str,
    account: Option<&str>,
    options: &StorageOptions,
    around: &Surroundings,
) -> Result<Settings> {
    let mut given = Given::read(service, options)?;
    let mut config = BTreeMap::new();
    match service {
        Service::S3 => of_s3(&mut given, around, &mut config)?,
        Service::Gcs => of_gcs(&mut given, around, &mut config)?,
        Service::Azure => of_azure(&mut given, account, around, &mut config)?,
        Service::Memory => {}
    }
    config.extend(given.config);
    // AWS_ENDPOINT_URL_S3 of the environment would win over an endpoint given by hand.
    let secrets = config
        .iter()
        .filter(|(key, value)| is_secret(key) || has_userinfo(value))
        .flat_map(|(_, value)| secrets_of(value))
        .collect();
    let mut settings = Settings {
        service,
        bucket: bucket.to_owned(),
        is_http: false,
        config,
        tuning: given.tuning,
        ca_bundle: given.ca_bundle.or_else(|| around.var("AWS_CA_BUNDLE").map(PathBuf::from)),
        secrets,
    };
    settings.is_http = match settings.endpoint() {
        Some(endpoint) if endpoint.starts_with("http://") => true,
        Some(endpoint) if endpoint.starts_with("https://") => false,
        Some(endpoint) => {
            return Err(Error::invalid("the endpoint is no address")
                .expected(
                    "http://host:port or https://host",
                    quoted(endpoint.rsplit('@').next().unwrap_or(endpoint)),
                )
                .help("http is spoken only to an endpoint that says http://"));
        }
        None => false,
    };
    Ok(settings)
}

/// What was given by hand, sorted.
struct Given {
    /// Under `object_store`'s names.
    config: BTreeMap<String, String>,
    tuning: Tuning,
    ca_bundle: Option<PathBuf>,
    anon: Option<bool>,
    profile: Option<String>,
    endpoint: Option<String>,
    token: Option<String>,
    connection_string: Option<String>,
}

impl Given {
    fn read(service: Service, options: &StorageOptions) -> Result<Self> {
        let mut given = Self {
            config: BTreeMap::new(),
            tuning: Tuning::default(),
            ca_bundle: None,
            anon: None,
            profile: None,
            endpoint: None,
            token: None,
            connection_string: None,
        };
        let mut names: BTreeMap<String, &str> = BTreeMap::new();
        for (name, value) in options.iter() {
            let known = canonical(name);
            if let Some(other) = names.insert(known.clone(), name)
                && options.get(other) != Some(value)
            {
                return Err(Error::invalid(format!(
                    "the storage options {} and {} mean the same and differ",
                    quoted(other),
                    quoted(name)
                )));
            }
            given.take(service, name, &known, value)?;
        }
        Ok(given)
    }

    fn take(&mut self, service: Service, name: &str, known: &str, value: &str) -> Result<()> {
        let seconds = || match value.parse::<f64>() {
            Ok(seconds) if (0.01..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(bad_value(name, "a number of seconds")),
        };
        let count = |least: u64, most: u64| match value.parse::<u64>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count),
            _ => Err(bad_value(name, &format!("a whole number from {least} to {most}"))),
        };
        let flag = || match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(bad_value(name, "true or false")),
        };
        match known {
            "anon" => self.anon = Some(flag()?),
            "connect_timeout" => self.tuning.connect_timeout = seconds()?,
            "read_timeout" => self.tuning.read_timeout = seconds()?,
            "retry_timeout" => self.tuning.retry_timeout = seconds()?,
            "max_retries" => self.tuning.max_retries = count(0, 100)? as usize,
            "part_size" => self.tuning.part_len_bytes = Some(count(5 << 20, 4 << 30)?),
            "max_concurrency" => self.tuning.parts_in_flight = count(1, 256)? as usize,
            "ca_bundle" => self.ca_bundle = Some(PathBuf::from(value)),
            "profile" if service == Service::S3 => self.profile = Some(value.to_owned()),
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "token" if service == Service::Gcs => self.token = Some(value.to_owned()),
            "connection_string" if service == Service::Azure => {
                self.connection_string = Some(value.to_owned())
            }
            // gcsfs wants it to make buckets. http is allowed by the endpoint alone.
            "project" if service == Service::Gcs => {}
            "allow_http" => {
                flag()?;
            }
            "checksum" if service == Service::S3 => {
                let algorithm = match value.to_ascii_lowercase().as_str() {
                    "sha256" => "sha256",
                    "crc64nvme" => "crc64nvme",
                    _ => return Err(bad_value(name, "crc64nvme or sha256")),
                };
                self.config.insert("aws_checksum_algorithm".to_owned(), algorithm.to_owned());
            }
            _ => {
                let key = store_key(service, known).ok_or_else(|| unknown(service, name))?;
                let value = match value {
                    "True" => "true",
                    "False" => "false",
                    value => value,
                };
                self.config.insert(key, value.to_owned());
            }
        }
        Ok(())
    }
}

/// One spelling for the names that mean the same.
fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("client_kwargs.").or(name.strip_prefix("config_kwargs.")).unwrap_or(&name);
    match name {
        "anonymous"
        | "skip_signature"
        | "aws_skip_signature"
        | "google_skip_signature"
        | "azure_skip_signature" => "anon",
        "endpoint_url"
        | "aws_endpoint_url"
        | "aws_endpoint"
        | "aws_endpoint_url_s3"
        | "base_url"
        | "google_base_url"
        | "azure_endpoint"
        | "azure_storage_endpoint" => "endpoint",
        "region_name" | "aws_region" | "aws_default_region" | "default_region" => "region",
        "key" | "access_key_id" | "aws_access_key_id" => "access_key_id",
        "secret" | "secret_access_key" | "aws_secret_access_key" => "secret_access_key",
        "session_token" | "aws_session_token" | "aws_token" => "token",
        "aws_profile" => "profile",
        "requester_pays" | "aws_request_payer" => "request_payer",
        "proxy" => "proxy_url",
        "verify" | "aws_ca_bundle" => "ca_bundle",
        "checksum_algorithm" | "aws_checksum_algorithm" => "checksum",
        "azure_storage_account_name" => "account_name",
        "azure_storage_account_key" | "azure_storage_access_key" | "access_key" => "account_key",
        "azure_storage_sas_token" | "azure_storage_sas_key" | "sas_key" => "sas_token",
        "azure_storage_connection_string" => "connection_string",
        name => name,
    }
    .to_owned()
}

/// `object_store`'s own spelling of a key, if it has it.
fn store_key(service: Service, name: &str) -> Option<String> {
    // Time limits are kept by the transport, which knows the size of a request.
    if name.ends_with("timeout") && name != "pool_idle_timeout"
        || name.ends_with("bucket")
        || name.ends_with("bucket_name")
        || name.ends_with("container_name")
    {
        return None;
    }
    match service {
        Service::S3 => name.parse::<AmazonS3ConfigKey>().ok().map(|key| key.as_ref().to_owned()),
        Service::Gcs => name.parse::<GoogleConfigKey>().ok().map(|key| key.as_ref().to_owned()),
        Service::Azure => name.parse::<AzureConfigKey>().ok().map(|key| key.as_ref().to_owned()),
        Service::Memory => None,
    }
}

fn of_s3(given: &mut Given, around: &Surroundings, config: &mut BTreeMap<String, String>) -> Result<()> {
    const KEYS: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
    let by_hand = KEYS.iter().any(|key| given.config.contains_key(*key));
    for (name, value) in &around.vars {
        // A default region comes first in the alphabet and gives way to AWS_REGION.
        if name.starts_with("AWS_")
            && let Some(key) = store_key(Service::S3, &name.to_ascii_lowercase())
            && name != "AWS_CA_BUNDLE"
        {
            config.insert(key, value.clone());
        }
    }
    if let Some(region) = config.remove("aws_default_region") {
        config.entry("aws_region".to_owned()).or_insert(region);
    }
    let profile = given.profile.take();
    if by_hand || profile.is_some() {
        KEYS.iter().for_each(|key| drop(config.remove(*key)));
    }
    if let Some(endpoint) = given.endpoint.take() {
        config.remove("aws_endpoint_url_s3");
        config.insert("aws_endpoint".to_owned(), endpoint);
    }
    let is_anon =
        given.anon.or_else(|| parse_flag(config.remove("aws_skip_signature")?.as_str())).unwrap_or(false);
    if is_anon {
        KEYS.iter().for_each(|key| drop(config.remove(*key)));
        config.insert("aws_skip_signature".to_owned(), "true".to_owned());
    }
    // The names of a role serve as credentials, too.
    let other_ways = [
        "aws_web_identity_token_file",
        "aws_container_credentials_relative_uri",
        "aws_container_credentials_full_uri",
    ];
    let has_other = other_ways.iter().any(|key| config.contains_key(*key) || given.config.contains_key(*key));
    let has_keys = by_hand || config.contains_key(KEYS[0]) || config.contains_key(KEYS[1]);
    let found = credentials::of_aws_files(profile.as_deref(), around, !has_keys && !is_anon && !has_other)?;
    if !has_keys && !is_anon && (!has_other || profile.is_some()) {
        for (key, value) in
            KEYS.iter().zip([found.access_key_id, found.secret_access_key, found.session_token])
        {
            if let Some(value) = value {
                config.insert((*key).to_owned(), value);
            }
        }
    }
    if let Some(region) = found.region
        && (profile.is_some() || !config.contains_key("aws_region"))
    {
        config.insert("aws_region".to_owned(), region);
    }
    if let Some(endpoint) = found.endpoint_url
        && !["aws_endpoint", "aws_endpoint_url_s3"].iter().any(|key| config.contains_key(*key))
    {
        config.insert("aws_endpoint".to_owned(), endpoint);
    }
    Ok(())
}

fn of_gcs(given: &mut Given, around: &Surroundings, config: &mut BTreeMap<String, String>) -> Result<()> {
    for (name, value) in &around.vars {
        if name.starts_with("GOOGLE_")
            && let Some(key) = store_key(Service::Gcs, &name.to_ascii_lowercase())
        {
            config.insert(key, value.clone());
        }
    }
    if let Some(path) = around.var("SERVICE_ACCOUNT") {
        config.insert("google_service_account".to_owned(), path.to_owned());
    }
    let mut is_anon = given.anon;
    if let Some(token) = given.token.take() {
        let key = match token.as_str() {
            "anon" => {
                is_anon = is_anon.or(Some(true));
                None
            }
            "google_default" | "cloud" | "cache" => None,
            json if json.trim_start().starts_with('{') => Some("google_service_account_key"),
            path if path.ends_with(".json") => Some("google_application_credentials"),
            _ => Some("google_bearer_token"),
        };
        if let Some(key) = key {
            given.config.insert(key.to_owned(), token);
        }
    }
    const KEYS: [&str; 4] = [
        "google_service_account",
        "google_service_account_key",
        "google_application_credentials",
        "google_bearer_token",
    ];
    if KEYS.iter().any(|key| given.config.contains_key(*key)) {
        KEYS.iter().for_each(|key| drop(config.remove(*key)));
    }
    if let Some(host) = around.var("STORAGE_EMULATOR_HOST") {
        let address = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
        config.insert("google_base_url".to_owned(), address.trim_end_matches('/').to_owned());
        let has_keys = KEYS.iter().any(|key| given.config.contains_key(*key));
        is_anon = is_anon.or((!has_keys).then_some(true));
    }
    if let Some(endpoint) = given.endpoint.take() {
        config.insert("google_base_url".to_owned(), endpoint.trim_end_matches('/').to_owned());
    }
    // A service account may name an endpoint: emulators are set up so.
    let account = given.config.get(KEYS[1]).or(config.get(KEYS[1])).cloned().or_else(|| {
        let path = given.config.get(KEYS[0]).or(config.get(KEYS[0]))?;
        std::fs::read_to_string(path).ok()
    });
    if !config.contains_key("google_base_url")
        && let Some(account) = account
        && let Ok(account) = serde_json::from_str::<serde_json::Value>(&account)
        && let Some(url) = account["gcs_base_url"].as_str()
    {
        config.insert("google_base_url".to_owned(), url.to_owned());
    }
    let from_env = config.remove("google_skip_signature");
    if is_anon.or_else(|| parse_flag(from_env?.as_str())).unwrap_or(false) {
        KEYS.iter().for_each(|key| drop(config.remove(*key)));
        config.insert("google_skip_signature".to_owned(), "true".to_owned());
        // Writes ask for a token even so.
        config.insert("google_bearer_token".to_owned(), String::new());
    }
    Ok(())
}

fn of_azure(
    given: &mut Given,
    account: Option<&str>,
    around: &Surroundings,
    config: &mut BTreeMap<String, String>,
) -> Result<()> {
    for (name, value) in &around.vars {
        if name.starts_with("AZURE_")
            && let Some(key) = store_key(Service::Azure, &name.to_ascii_lowercase())
        {
            config.insert(key, value.clone());
        }
    }
    if let Some(endpoint) = around.var("IDENTITY_ENDPOINT") {
        config.insert("azure_msi_endpoint".to_owned(), endpoint.to_owned());
    }
    const KEYS: [&str; 3] = ["azure_storage_account_key", "azure_storage_sas_key", "azure_storage_token"];
    if KEYS.iter().any(|key| given.config.contains_key(*key)) {
        KEYS.iter().for_each(|key| drop(config.remove(*key)));
    }
    let text = given.connection_string.take();
    let by_hand = text.is_some();
    if let Some(text) = text.or_else(|| around.var("AZURE_STORAGE_CONNECTION_STRING").map(str::to_owned)) {
        for (key, value) in connection_string(&text)? {
            if by_hand {
                config.insert(key.to_owned(), value);
            } else {
                config.entry(key.to_owned()).or_insert(value);
            }
        }
    }
    if let Some(account) = account {
        config.insert("azure_storage_account_name".to_owned(), account.to_owned());
    }
    if let Some(endpoint) = given.endpoint.take() {
        config.insert("azure_storage_endpoint".to_owned(), endpoint);
    }
    let from_env = config.remove("azure_skip_signature");
    if given.anon.or_else(|| parse_flag(from_env?.as_str())).unwrap_or(false) {
        config.insert("azure_skip_signature".to_owned(), "true".to_owned());
    }
    Ok(())
}

/// `AccountName=..;AccountKey=..;EndpointSuffix=..` under `object_store`'s names.
fn connection_string(text: &str) -> Result<Vec<(&'static str, String)>> {
    let mut parts: BTreeMap<String, &str> = BTreeMap::new();
    for part in text.split(';').filter(|part| !part.trim().is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err(Error::invalid("the connection string of Azure has a part without =")
                .help("copy it whole: AccountName=...;AccountKey=...;EndpointSuffix=core.windows.net"));
        };
        parts.insert(name.trim().to_ascii_lowercase(), value.trim());
    }
    if parts.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(vec![("azure_storage_use_emulator", "true".to_owned())]);
    }
    let mut found = Vec::new();
    for (name, key) in [
        ("accountname", "azure_storage_account_name"),
        ("accountkey", "azure_storage_account_key"),
        ("sharedaccesssignature", "azure_storage_sas_key"),
        ("blobendpoint", "azure_storage_endpoint"),
    ] {
        if let Some(value) = parts.get(name) {
            found.push((key, value.trim_end_matches('/').to_owned()));
        }
    }
    if !parts.contains_key("blobendpoint")
        && let (Some(account), Some(suffix)) = (parts.get("accountname"), parts.get("endpointsuffix"))
    {
        let protocol = parts.get("defaultendpointsprotocol").copied().unwrap_or("https");
        found.push(("azure_storage_endpoint", format!("{protocol}://{account}.blob.{suffix}")));
    }
    Ok(found)
}

fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Whether the value of a key of `object_store` may be a secret.
fn is_secret(key: &str) -> bool {
    const PARTS: [&str; 9] = [
        "secret",
        "token",
        "access_key",
        "account_key",
        "sas",
        "service_account_key",
        "bearer",
        "customer_key",
        "encryption_key",
    ];
    PARTS.iter().any(|part| key.contains(part)) && !key.ends_with("_file") && !key.ends_with("_url")
}

/// Whether a URL carries a user or a password, as that of a proxy may.
fn has_userinfo(value: &str) -> bool {
    value
        .split_once("://")
        .is_some_and(|(_, rest)| rest.split(['/', '?']).next().is_some_and(|host| host.contains('@')))
}

/// The parts of a value that must not be printed: the whole, and the fields of JSON and of a query.
fn secrets_of(value: &str) -> Vec<String> {
    let mut secrets = vec![value.to_owned()];
    if let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(value) {
        let private =
            fields.iter().filter(|(name, _)| name.contains("private_key") || name.contains("secret"));
        secrets.extend(private.filter_map(|(_, value)| value.as_str().map(str::to_owned)));
    }
    if let Some((_, rest)) = value.split_once("://")
        && let Some((userinfo, _)) = rest.split_once('@')
    {
        secrets.extend(userinfo.split(':').map(str::to_owned));
    }
    secrets.extend(
        value
            .split('&')
            .filter_map(|pair| pair.trim_start_matches('?').strip_prefix("sig="))
            .map(str::to_owned),
    );
    secrets.retain(|secret| secret.len() >= 4);
    secrets
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

/// Leaves out the value: it may be a secret in the wrong place.
fn bad_value(name: &str, wanted: &str) -> Error {
    Error::invalid(format!("the value of the storage option {} makes no sense", quoted(name)))
        .expected(wanted, "something else")
}

/// Refuses a name, and says which it may be meant to be.
fn unknown(service: Service, name: &str) -> Error {
    const ALL: [&str; 16] = [
        "anon",
        "endpoint_url",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "ca_bundle",
        "connect_timeout",
        "read_timeout",
        "retry_timeout",
        "max_retries",
        "part_size",
        "max_concurrency",
        "user_agent",
        "allow_invalid_certificates",
        "pool_idle_timeout",
        "allow_http",
    ];
    const S3: [&str; 20] = [
        "key",
        "secret",
        "token",
        "profile",
        "region",
        "requester_pays",
        "checksum",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "virtual_hosted_style_request",
        "unsigned_payload",
        "disable_bulk_delete",
        "conditional_put",
        "role_arn",
        "web_identity_token_file",
        "server_side_encryption",
        "sse_kms_key_id",
        "s3_express",
        "client_kwargs.region_name",
    ];
    const GCS: [&str; 6] = [
        "token",
        "project",
        "service_account",
        "service_account_key",
        "application_credentials",
        "bearer_token",
    ];
    const AZURE: [&str; 9] = [
        "account_name",
        "account_key",
        "sas_token",
        "connection_string",
        "tenant_id",
        "client_id",
        "client_secret",
        "use_emulator",
        "use_azure_cli",
    ];
    let own: &[&str] = match service {
        Service::S3 => &S3,
        Service::Gcs => &GCS,
        Service::Azure => &AZURE,
        Service::Memory => &[],
    };
    let error = Error::new(
        ErrorKind::InvalidArgument,
        format!("{} is no storage option of {}", quoted(name), service.name()),
    );
    let wanted = name.to_ascii_lowercase();
    let mut near: Vec<(usize, &str)> = own
        .iter()
        .chain(&ALL)
        .map(|known| (distance(&wanted, known), *known))
        .filter(|(far, known)| {
            *far <= 2.max(known.len() / 3) || (wanted.len() > 3 && known.contains(&wanted))
        })
        .collect();
    near.sort_unstable();
    near.truncate(3);
    if near.is_empty() {
        return error
            .help(format!("known are {}", own.iter().chain(&ALL).copied().collect::<Vec<_>>().join(", ")));
    }
    error.help(format!("near it: {}", near.iter().map(|(_, known)| *known).collect::<Vec<_>>().join(", ")))
}

/// How many characters must be changed, added or removed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(60).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (slot, to) in row.iter_mut().skip(1).zip(&b) {
            let above = *slot;
            left = (diagonal + usize::from(from != *to)).min(above + 1).min(left + 1);
            diagonal = above;
            *slot = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(vars: &[(&str, &str)]) -> Surroundings {
        Surroundings {
            vars: vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            home: None,
        }
    }

    fn s3(options: &[(&str, &str)], vars: &[(&str, &str)]) -> Result<Settings> {
        resolve(Service::S3, "b", None, &options.iter().copied().collect(), &around(vars))
    }

    fn get<'a>(settings: &'a Settings, key: &str) -> Option<&'a str> {
        settings.config.get(key).map(String::as_str)
    }

    #[test]
    fn spellings_of_fsspec_and_of_the_cloud_mean_the_same() {
        let fsspec = s3(
            &[
                ("key", "k"),
                ("secret", "s"),
                ("token", "t"),
                ("client_kwargs.endpoint_url", "http://h:1"),
                ("client_kwargs.region_name", "r"),
                ("requester_pays", "True"),
            ],
            &[],
        )
        .unwrap();
        let cloud = s3(
            &[
                ("aws_access_key_id", "k"),
                ("aws_secret_access_key", "s"),
                ("AWS_SESSION_TOKEN", "t"),
                ("endpoint", "http://h:1"),
                ("region", "r"),
                ("aws_request_payer", "true"),
            ],
            &[],
        )
        .unwrap();
        assert_eq!(fsspec.config, cloud.config);
        assert_eq!(fsspec.identity(), cloud.identity());
        assert!(fsspec.is_http);
        assert_eq!(get(&fsspec, "aws_access_key_id"), Some("k"));
        let both = s3(&[("key", "k"), ("access_key_id", "other")], &[]).err().unwrap();
        assert!(both.to_string().contains("mean the same and differ"), "{both}");
    }

    #[test]
    fn keys_come_from_one_place() {
        let vars = [
            ("AWS_ACCESS_KEY_ID", "env"),
            ("AWS_SECRET_ACCESS_KEY", "env-secret"),
            ("AWS_SESSION_TOKEN", "env-token"),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
            ("AWS_ENDPOINT_URL", "https://e"),
            ("AWS_ENDPOINT_URL_S3", "https://e3"),
            ("AWS_READ_TIMEOUT", "nonsense"),
        ];
        let env = s3(&[], &vars).unwrap();
        assert_eq!(get(&env, "aws_session_token"), Some("env-token"));
        assert_eq!(get(&env, "aws_region"), Some("eu-west-1"));
        assert_eq!(env.endpoint(), Some("https://e3"));
        assert!(env.secrets.contains(&"env-secret".to_owned()));
        let given = s3(&[("key", "k"), ("secret", "s"), ("endpoint_url", "https://mine")], &vars).unwrap();
        assert_eq!(get(&given, "aws_session_token"), None);
        assert_eq!(given.endpoint(), Some("https://mine"));
        let anon = s3(&[("anon", "true")], &vars).unwrap();
        assert_eq!(get(&anon, "aws_access_key_id"), None);
        assert_eq!(get(&anon, "aws_skip_signature"), Some("true"));
    }

    #[test]
    fn names_that_are_not_known_are_refused_with_those_near() {
        let error = s3(&[("secrte", "x")], &[]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.help_text().unwrap().contains("secret"), "{error}");
        let error = s3(&[("account_name", "x")], &[]).err().unwrap();
        assert!(error.to_string().contains("no storage option of S3"), "{error}");
        let error = s3(&[("endpoint", "localhost:9000")], &[]).err().unwrap();
        assert!(error.to_string().contains("http://host:port"), "{error}");
    }

    #[test]
    fn tokens_of_gcsfs_are_understood() {
        let gcs = |token: &str, vars: &[(&str, &str)]| {
            let options = StorageOptions::new().with("token", token).with("project", "p");
            resolve(Service::Gcs, "b", None, &options, &around(vars)).unwrap()
        };
        assert_eq!(get(&gcs("anon", &[]), "google_skip_signature"), Some("true"));
        assert_eq!(get(&gcs("ya29.x", &[]), "google_bearer_token"), Some("ya29.x"));
        assert_eq!(get(&gcs("/k.json", &[]), "google_application_credentials"), Some("/k.json"));
        let json = "{\"gcs_base_url\": \"http://127.0.0.1:1\", \"private_key\": \"abcdef\"}";
        let settings = gcs(json, &[]);
        assert!(settings.is_http && settings.secrets.contains(&"abcdef".to_owned()));
        let emulator = resolve(
            Service::Gcs,
            "b",
            None,
            &StorageOptions::new(),
            &around(&[("STORAGE_EMULATOR_HOST", "localhost:4443")]),
        )
        .unwrap();
        assert_eq!(emulator.endpoint(), Some("http://localhost:4443"));
        assert_eq!(get(&emulator, "google_skip_signature"), Some("true"));
    }

    #[test]
    fn a_connection_string_is_taken_apart() {
        let options = StorageOptions::new().with(
            "connection_string",
            "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=a2V5+/==;EndpointSuffix=core.windows.net",
        );
        let settings = resolve(Service::Azure, "c", None, &options, &around(&[])).unwrap();
        assert_eq!(get(&settings, "azure_storage_account_key"), Some("a2V5+/=="));
        assert_eq!(settings.endpoint(), Some("https://acc.blob.core.windows.net"));
    }
}
