//! Google Cloud Storage: `GOOGLE_*` of the environment, tokens in the form of gcsfs, emulators.

use std::collections::BTreeMap;

use super::given::Given;
use super::names::store_key;
use super::parse_flag;
use crate::error::Result;
use crate::object::cloud::settings::Service;
use crate::object::cloud::surroundings::Surroundings;

/// The options of credentials.
const KEYS: [&str; 4] = [
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
    "google_bearer_token",
];

/// Adds to `config` the settings that the caller did not give.
pub(super) fn add(
    given: &mut Given,
    around: &Surroundings,
    config: &mut BTreeMap<String, String>,
) -> Result<()> {
    add_environment(around, config);
    let mut is_anon = given.anon;
    if take_token(given) == Token::Anon {
        is_anon = is_anon.or(Some(true));
    }
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
    if !config.contains_key("google_base_url")
        && let Some(url) = endpoint_of_account(given, config)
    {
        config.insert("google_base_url".to_owned(), url);
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

fn add_environment(around: &Surroundings, config: &mut BTreeMap<String, String>) {
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
}

/// The meaning of the option `token`.
#[derive(PartialEq, Eq)]
enum Token {
    Anon,
    Credentials,
}

/// Sorts the option `token`, which has the forms of gcsfs.
fn take_token(given: &mut Given) -> Token {
    let Some(token) = given.token.take() else { return Token::Credentials };
    let key = match token.as_str() {
        "anon" => return Token::Anon,
        "google_default" | "cloud" | "cache" => return Token::Credentials,
        json if json.trim_start().starts_with('{') => "google_service_account_key",
        path if path.ends_with(".json") => "google_application_credentials",
        _ => "google_bearer_token",
    };
    given.config.insert(key.to_owned(), token);
    Token::Credentials
}

/// The endpoint that a service account names: emulators are configured this way.
fn endpoint_of_account(given: &Given, config: &BTreeMap<String, String>) -> Option<String> {
    let option = |key: &str| given.config.get(key).or(config.get(key));
    let account = option(KEYS[1]).cloned().or_else(|| std::fs::read_to_string(option(KEYS[0])?).ok())?;
    let account: serde_json::Value = serde_json::from_str(&account).ok()?;
    account["gcs_base_url"].as_str().map(str::to_owned)
}
