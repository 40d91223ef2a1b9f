//! Unknown names of options: the error suggests similar names.

use super::quoted;
use crate::error::{Error, ErrorKind};
use crate::object::cloud::settings::Service;

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

const GCS: [&str; 6] =
    ["token", "project", "service_account", "service_account_key", "application_credentials", "bearer_token"];

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

/// The error for an unknown name. It suggests similar names.
pub(super) fn unknown(service: Service, name: &str) -> Error {
    let own: &[&str] = match service {
        Service::S3 => &S3,
        Service::Gcs => &GCS,
        Service::Azure => &AZURE,
        Service::Memory => &[],
    };
    let error = Error::new(
        ErrorKind::InvalidArgument,
        format!("{} is not a storage option of {}", quoted(name), service.name()),
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
        return error.help(format!(
            "the options are {}",
            own.iter().chain(&ALL).copied().collect::<Vec<_>>().join(", ")
        ));
    }
    error.help(format!("similar: {}", near.iter().map(|(_, known)| *known).collect::<Vec<_>>().join(", ")))
}

/// The edit distance: how many characters must be changed, added or removed.
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
