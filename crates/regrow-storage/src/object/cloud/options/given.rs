//! Sorts the options of the caller.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::names::{canonical, store_key};
use super::quoted;
use super::unknown::unknown;
use crate::StorageOptions;
use crate::error::{Error, Result};
use crate::object::cloud::settings::{Service, Tuning};

/// The options of the caller, sorted.
pub(super) struct Given {
    /// Options under `object_store`'s names.
    pub(super) config: BTreeMap<String, String>,
    pub(super) tuning: Tuning,
    pub(super) ca_bundle: Option<PathBuf>,
    pub(super) anon: Option<bool>,
    pub(super) profile: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) token: Option<String>,
    pub(super) connection_string: Option<String>,
}

impl Given {
    /// # Errors
    /// `InvalidArgument` for an unknown name, an invalid value, or two names of the same option.
    pub(super) fn read(service: Service, options: &StorageOptions) -> Result<Self> {
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
                    "the storage options {} and {} mean the same, but differ",
                    quoted(other),
                    quoted(name)
                )));
            }
            given.take(service, name, &known, value)?;
        }
        Ok(given)
    }

    fn take(&mut self, service: Service, name: &str, known: &str, value: &str) -> Result<()> {
        if self.tuning.take(name, known, value)? {
            return Ok(());
        }
        match (service, known) {
            (_, "anon") => self.anon = Some(flag(name, value)?),
            (_, "ca_bundle") => self.ca_bundle = Some(PathBuf::from(value)),
            (_, "endpoint") => self.endpoint = Some(value.to_owned()),
            // Only the endpoint decides whether requests use http.
            (_, "allow_http") => {
                flag(name, value)?;
            }
            (Service::S3, "profile") => self.profile = Some(value.to_owned()),
            (Service::S3, "checksum") => {
                let algorithm = match value.to_ascii_lowercase().as_str() {
                    "sha256" => "sha256",
                    "crc64nvme" => "crc64nvme",
                    _ => return Err(bad_value(name, "crc64nvme or sha256")),
                };
                self.config.insert("aws_checksum_algorithm".to_owned(), algorithm.to_owned());
            }
            (Service::Gcs, "token") => self.token = Some(value.to_owned()),
            // gcsfs needs the project only to make buckets.
            (Service::Gcs, "project") => {}
            (Service::Azure, "connection_string") => self.connection_string = Some(value.to_owned()),
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

impl Tuning {
    /// Takes an option of the time limits and sizes; `false` for any other option.
    fn take(&mut self, name: &str, known: &str, value: &str) -> Result<bool> {
        let seconds = || match value.parse::<f64>() {
            Ok(seconds) if (0.01..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(bad_value(name, "a number of seconds")),
        };
        let count = |least: u64, most: u64| match value.parse::<u64>() {
            Ok(count) if (least..=most).contains(&count) => Ok(count),
            _ => Err(bad_value(name, &format!("a whole number from {least} to {most}"))),
        };
        match known {
            "connect_timeout" => self.connect_timeout = seconds()?,
            "read_timeout" => self.read_timeout = seconds()?,
            "retry_timeout" => self.retry_timeout = seconds()?,
            "max_retries" => self.max_retries = count(0, 100)? as usize,
            "part_size" => self.part_len_bytes = Some(count(5 << 20, 4 << 30)?),
            "max_concurrency" => self.parts_in_flight = Some(count(1, 256)? as usize),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(bad_value(name, "true or false")),
    }
}

/// The error for an invalid value. It omits the value, which may be a secret that was given under
/// the wrong name.
fn bad_value(name: &str, wanted: &str) -> Error {
    Error::invalid(format!("the value of the storage option {} is not valid", quoted(name)))
        .expected(wanted, "something else")
}
