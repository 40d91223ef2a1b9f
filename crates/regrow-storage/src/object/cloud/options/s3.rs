//! S3: `AWS_*` of the environment, and the profiles of `~/.aws`.

use std::collections::BTreeMap;

use super::given::Given;
use super::names::store_key;
use super::parse_flag;
use crate::error::Result;
use crate::object::cloud::credentials;
use crate::object::cloud::settings::Service;
use crate::object::cloud::surroundings::Surroundings;

const KEYS: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];

/// The settings of a role, which are credentials, too.
const ROLE: [&str; 3] = [
    "aws_web_identity_token_file",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
];

/// Adds to `config` the settings that the caller did not give.
pub(super) fn add(
    given: &mut Given,
    around: &Surroundings,
    config: &mut BTreeMap<String, String>,
) -> Result<()> {
    let by_hand = KEYS.iter().any(|key| given.config.contains_key(*key));
    add_environment(around, config);
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
    let has_role = ROLE.iter().any(|key| config.contains_key(*key) || given.config.contains_key(*key));
    let has_keys = by_hand || config.contains_key(KEYS[0]) || config.contains_key(KEYS[1]);
    let needs_keys = !has_keys && !is_anon;
    let found = credentials::of_aws_files(profile.as_deref(), around, needs_keys && !has_role)?;
    if needs_keys && (!has_role || profile.is_some()) {
        let values = [found.access_key_id, found.secret_access_key, found.session_token];
        let found = KEYS.iter().zip(values).filter_map(|(key, value)| Some(((*key).to_owned(), value?)));
        config.extend(found);
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

fn add_environment(around: &Surroundings, config: &mut BTreeMap<String, String>) {
    for (name, value) in &around.vars {
        // AWS_DEFAULT_REGION sorts before AWS_REGION, so AWS_REGION overrides it.
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
}
