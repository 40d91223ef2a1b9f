//! Google Cloud Storage: `GOOGLE_*` of the environment, tokens in the form of gcsfs, emulators.

use std::collections::BTreeMap;

use super::given::Given;
use super::names::store_key;
use super::parse_flag;
use crate::error::Result;
use crate::object::cloud::settings::Service;
use crate::object::cloud::surroundings::Surroundings;

/// Adds to `config` the settings that the caller did not give.
pub(super) fn add(
    given: &mut Given,
    around: &Surroundings,
    config: &mut BTreeMap<String, String>,
) -> Result<()> {
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
    // A service account may have an endpoint in its file; emulators are configured this way.
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
        // Writes ask for a token even without credentials. An empty token prevents that.
        config.insert("google_bearer_token".to_owned(), String::new());
    }
    Ok(())
}
