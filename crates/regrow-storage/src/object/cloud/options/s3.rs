//! S3: `AWS_*` of the environment, and the profiles of `~/.aws`.

use std::collections::BTreeMap;

use super::given::Given;
use super::names::store_key;
use super::parse_flag;
use crate::error::Result;
use crate::object::cloud::credentials;
use crate::object::cloud::settings::Service;
use crate::object::cloud::surroundings::Surroundings;

/// Adds to `config` the settings that the caller did not give.
pub(super) fn add(
    given: &mut Given,
    around: &Surroundings,
    config: &mut BTreeMap<String, String>,
) -> Result<()> {
    const KEYS: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
    let by_hand = KEYS.iter().any(|key| given.config.contains_key(*key));
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
    // The settings of a role are credentials, too.
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
