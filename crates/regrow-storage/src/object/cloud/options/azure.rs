//! Azure: `AZURE_*` of the environment, and connection strings.

use std::collections::BTreeMap;

use super::given::Given;
use super::names::store_key;
use super::parse_flag;
use crate::error::{Error, Result};
use crate::object::cloud::settings::Service;
use crate::object::cloud::surroundings::Surroundings;

/// Adds to `config` the settings that the caller did not give.
pub(super) fn add(
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

/// Parses `AccountName=..;AccountKey=..;EndpointSuffix=..` into options under `object_store`'s
/// names.
fn connection_string(text: &str) -> Result<Vec<(&'static str, String)>> {
    let mut parts: BTreeMap<String, &str> = BTreeMap::new();
    for part in text.split(';').filter(|part| !part.trim().is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err(Error::invalid("the connection string of Azure has a part without =")
                .help("copy all of it: AccountName=...;AccountKey=...;EndpointSuffix=core.windows.net"));
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
