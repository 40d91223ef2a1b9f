//! Options of a store: names of `object_store`, `fsspec` and the clouds' own variables, made into
//! one set.
//!
//! ```text
//! StorageOptions ──given──┐
//! environment ────────────┼──s3, gcs, azure──> Settings of one bucket
//! ~/.aws files ───────────┘
//! ```
//!
//! Options of the caller have priority over the environment, and the environment over files. Keys
//! that belong together (access key, secret key, session token) come from one of these sources,
//! never from two.
//!
//! | module | holds |
//! |---|---|
//! | `given` | the options of the caller |
//! | `names` | one name for synonyms, and the names of `object_store` |
//! | `unknown` | an unknown name, with similar names |
//! | `s3`, `gcs`, `azure` | options from each cloud's environment and files |
//! | `secrets` | values that must not be printed |

use std::collections::BTreeMap;
use std::path::PathBuf;

use self::given::Given;
use self::secrets::{has_userinfo, is_secret, secrets_of};
use super::settings::{Service, Settings};
use super::surroundings::Surroundings;
use crate::StorageOptions;
use crate::error::{Error, Result};

mod azure;
mod gcs;
mod given;
mod names;
mod s3;
mod secrets;
mod unknown;

/// The settings of `bucket`. `options` come first, then the environment and the files.
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
        Service::S3 => s3::add(&mut given, around, &mut config)?,
        Service::Gcs => gcs::add(&mut given, around, &mut config)?,
        Service::Azure => azure::add(&mut given, account, around, &mut config)?,
        Service::Memory => {}
    }
    config.extend(given.config);
    // Messages must not show these values.
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
            return Err(Error::invalid("the endpoint is not an address")
                .expected(
                    "http://host:port or https://host",
                    quoted(endpoint.rsplit('@').next().unwrap_or(endpoint)),
                )
                .help("for plain http give an endpoint with http://"));
        }
        None => false,
    };
    Ok(settings)
}

/// Parses a switch in the spellings that environment variables use.
fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Quotes a name for an error, and shortens it.
fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
        assert!(both.to_string().contains("mean the same, but differ"), "{both}");
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
        assert!(error.to_string().contains("not a storage option of S3"), "{error}");
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
