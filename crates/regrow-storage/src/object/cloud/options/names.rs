//! Names of options, and their synonyms.

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use crate::object::cloud::settings::Service;

/// Maps all names of an option to the same name.
pub(super) fn canonical(name: &str) -> String {
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

/// The spelling of a name in `object_store`; `None` if `object_store` lacks the option.
pub(super) fn store_key(service: Service, name: &str) -> Option<String> {
    // The transport applies time limits, because it knows the size of a request.
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
