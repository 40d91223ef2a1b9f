//! The environment and the home folder of the process.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The environment and the home folder, as the options read them. Tests make their own.
#[derive(Debug, Clone, Default)]
pub(super) struct Surroundings {
    pub(super) vars: BTreeMap<String, String>,
    pub(super) home: Option<PathBuf>,
}

impl Surroundings {
    pub(super) fn of_process() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        Self { vars, home: std::env::home_dir() }
    }

    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }
}
