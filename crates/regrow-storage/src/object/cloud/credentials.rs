//! `~/.aws/credentials` and `~/.aws/config`, which `object_store` does not read.
//!
//! ```text
//! credentials      [work]            config   [profile work]
//!                  aws_access_key_id = ..     region = eu-west-1
//! ```
//!
//! regrow uses keys, session token, region and endpoint of one profile. It does not support
//! profiles that get their keys in another way (`sso_*`, `credential_process`, `role_arn`,
//! `web_identity_token_file`). If keys are needed and the profile has only such an entry, an error
//! names the entry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::surroundings::Surroundings;
use crate::error::{Error, ErrorKind, Result};

/// Longest file of settings. A usual one has a few KB.
const FILE_LEN_BYTES_MAX: u64 = 1 << 20;

/// The settings of one profile in the files.
#[derive(Default)]
pub(super) struct AwsProfile {
    pub(super) access_key_id: Option<String>,
    pub(super) secret_access_key: Option<String>,
    pub(super) session_token: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint_url: Option<String>,
}

/// The profile `by_hand`, or the one of `AWS_PROFILE`, or `default`. Returns an error if the
/// requested profile does not exist, or if keys are `needed` and the profile gets its keys in a way
/// that this build does not support.
pub(super) fn of_aws_files(by_hand: Option<&str>, around: &Surroundings, needed: bool) -> Result<AwsProfile> {
    let asked = by_hand.or_else(|| around.var("AWS_PROFILE")).or_else(|| around.var("AWS_DEFAULT_PROFILE"));
    let profile = asked.unwrap_or("default");
    let place = |var: &str, name: &str| {
        around.var(var).map(PathBuf::from).or_else(|| Some(around.home.as_ref()?.join(".aws").join(name)))
    };
    let keys_file = place("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let config_file = place("AWS_CONFIG_FILE", "config");
    let keys = sections(keys_file.as_deref())?;
    let config = sections(config_file.as_deref())?;
    let config_name = |name: &str| match name {
        "default" => "default".to_owned(),
        name => format!("profile {name}"),
    };
    let in_keys = keys.get(profile);
    let in_config = config.get(&config_name(profile));
    if in_keys.is_none() && in_config.is_none() {
        if asked.is_none() || !(needed || by_hand.is_some()) {
            return Ok(AwsProfile::default());
        }
        let mut names: Vec<&str> = keys.keys().map(String::as_str).collect();
        names.extend(config.keys().map(|name| name.strip_prefix("profile ").unwrap_or(name)));
        names.sort_unstable();
        names.dedup();
        return Err(Error::new(ErrorKind::NotFound, format!("the AWS profile {profile:?} does not exist"))
            .in_file(keys_file.unwrap_or_else(|| PathBuf::from("~/.aws/credentials")))
            .help(match names.is_empty() {
                true => "no profile was found: check HOME, AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE"
                    .to_owned(),
                false => format!("the key paths are {}", names.join(", ")),
            }));
    }
    let value = |name: &str| {
        in_keys
            .and_then(|section| section.get(name))
            .or_else(|| in_config.and_then(|section| section.get(name)))
            .cloned()
    };
    let found = AwsProfile {
        access_key_id: value("aws_access_key_id"),
        secret_access_key: value("aws_secret_access_key"),
        session_token: value("aws_session_token"),
        region: value("region"),
        endpoint_url: value("endpoint_url"),
    };
    if needed && (found.access_key_id.is_none() || found.secret_access_key.is_none()) {
        let other =
            ["sso_session", "sso_start_url", "credential_process", "role_arn", "web_identity_token_file"]
                .into_iter()
                .find(|name| value(name).is_some());
        if let Some(other) = other {
            return Err(Error::unsupported(format!(
                "the AWS profile {profile:?} gets its keys through {other}, which regrow does not support"
            ))
            .in_file(config_file.unwrap_or_else(|| PathBuf::from("~/.aws/config")))
            .help(format!(
                "put the keys into the environment: eval \"$(aws configure export-credentials --profile {profile} \
                 --format env)\""
            )));
        }
    }
    Ok(found)
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// The sections of a file. Empty if the file does not exist.
fn sections(file: Option<&Path>) -> Result<Sections> {
    let Some(file) = file else { return Ok(Sections::new()) };
    let len = match std::fs::metadata(file) {
        Ok(about) => about.len(),
        Err(_) => return Ok(Sections::new()),
    };
    if len > FILE_LEN_BYTES_MAX {
        return Err(Error::new(ErrorKind::Limit, "a file of AWS settings is too large")
            .in_file(file)
            .expected(format_args!("at most {FILE_LEN_BYTES_MAX} bytes"), len));
    }
    let text = std::fs::read(file).map_err(|error| Error::io("cannot read", file, error))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Parses `[name]`, `key = value`, and comments with # or ;. Skips lines that begin with a space,
/// because they belong to a nested setting.
fn parse(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut current = None;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        let line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or_default();
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ").replace(['"', '\''], "");
            sections.entry(name.clone()).or_default();
            current = Some(name);
        } else if let (Some(name), Some((key, value))) = (&current, line.split_once('='))
            && let Some(section) = sections.get_mut(name)
        {
            let value = value.trim();
            // Secrets may hold `#` and `;`, so only a space before them begins a comment.
            let value = value.split(" #").next().unwrap_or(value).split(" ;").next().unwrap_or(value).trim();
            if !value.is_empty() {
                section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(files: &tempfile::TempDir, vars: &[(&str, &str)]) -> Surroundings {
        Surroundings {
            vars: vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            home: Some(files.path().to_owned()),
        }
    }

    fn home(credentials: &str, config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        std::fs::write(folder.path().join(".aws/credentials"), credentials).unwrap();
        std::fs::write(folder.path().join(".aws/config"), config).unwrap();
        folder
    }

    #[test]
    fn a_profile_is_found_in_both_files() {
        let home = home(
            "[default]\naws_access_key_id=A\naws_secret_access_key = s#=;/+ # mine\n\n[work]\naws_access_key_id = W\n\
             aws_secret_access_key = w\naws_session_token = t\n",
            "# comment\n[default]\nregion = eu-west-1\ns3 =\n  max_concurrent_requests = 20\n[profile  work]\nregion=us-west-2\n\
             [profile sso]\nsso_session = x\n",
        );
        let default = of_aws_files(None, &around(&home, &[]), true).unwrap();
        assert_eq!(default.access_key_id.as_deref(), Some("A"));
        assert_eq!(default.secret_access_key.as_deref(), Some("s#=;/+"));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        assert_eq!(default.session_token, None);
        let work = of_aws_files(None, &around(&home, &[("AWS_PROFILE", "work")]), true).unwrap();
        assert_eq!((work.session_token.as_deref(), work.region.as_deref()), (Some("t"), Some("us-west-2")));
        let by_hand =
            of_aws_files(Some("default"), &around(&home, &[("AWS_PROFILE", "work")]), true).unwrap();
        assert_eq!(by_hand.access_key_id.as_deref(), Some("A"));

        let sso = of_aws_files(Some("sso"), &around(&home, &[]), true).err().unwrap();
        assert_eq!(sso.kind(), ErrorKind::Unsupported);
        assert!(sso.to_string().contains("export-credentials"), "{sso}");
        let none = of_aws_files(Some("wrok"), &around(&home, &[]), true).err().unwrap();
        assert!(none.to_string().contains("default, sso, work"), "{none}");
    }

    #[test]
    fn no_files_are_no_error() {
        let empty = tempfile::tempdir().unwrap();
        assert!(of_aws_files(None, &around(&empty, &[]), true).unwrap().access_key_id.is_none());
    }
}
