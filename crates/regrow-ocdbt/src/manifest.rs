//! Manifests: the configuration, and the references to every version.
//!
//! ```text
//! kind single:   manifest.ocdbt                       | config | data file table | version list | child list |
//! kind numbered: manifest.ocdbt                       | config |
//!                manifest.<generation, 16 hex digits> | config | data file table | version list | child list |
//! ```
//!
//! The config of a numbered file has the kind `single`, and is otherwise equal to the config of
//! `manifest.ocdbt`. A reader uses the numbered file of the highest generation.

use bytes::Bytes;

use crate::bytes::limits::OCDBT_NODE_LEN_MAX_BYTES;
use crate::error::Result;
use regrow_store::Store;

use super::arity::Arity;
use super::config::OcdbtConfig;
use super::envelope::{self, Body, Structure, seal};
use super::rule::Rule;
use super::table;
use super::versions::{
    FileTable, Version, VersionChild, check_manifest_children, read_children, read_versions, write_children,
    write_versions,
};

/// The root record of a database: a folder with this file is a database.
pub const MANIFEST_KEY: &str = "manifest.ocdbt";

/// The folder with the data files of a database.
pub const DATA_FOLDER: &str = "d";

/// Whether a file of this name is a numbered manifest.
pub fn is_numbered_manifest(name: &str) -> bool {
    name.strip_prefix(NUMBERED_PREFIX).is_some_and(|number| {
        number.len() == NUMBERED_DIGITS && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

const NUMBERED_PREFIX: &str = "manifest.";
const NUMBERED_DIGITS: usize = 16;

/// The most attempts to list numbered manifests: a writer that commits removes old ones. If a
/// listed manifest is missing after this many attempts, a commit is not the reason.
const LISTS_MAX: usize = 8;

/// A parsed manifest.
#[derive(Debug, Clone)]
pub(super) struct Manifest {
    pub(super) uuid: [u8; 16],
    pub(super) config: OcdbtConfig,
    /// The newest group of versions; empty only in a numbered database without commits.
    pub(super) versions: Vec<Version>,
    pub(super) children: Vec<VersionChild>,
}

impl Manifest {
    pub(super) fn parse(stored: &Bytes) -> Result<Self> {
        let body = Body::open(stored, Structure::Manifest, OCDBT_NODE_LEN_MAX_BYTES)?;
        body.parse(|input| {
            let (uuid, config) = OcdbtConfig::read(input)?;
            let mut manifest = Self { uuid, config, versions: Vec::new(), children: Vec::new() };
            if !config.numbered {
                let arity = Arity(config.version_tree_arity_log2);
                let files = table::read(input, b"", OCDBT_NODE_LEN_MAX_BYTES)?;
                manifest.versions = read_versions(input, &files, arity)?;
                manifest.children = read_children(input, &files, arity, None)?;
                check_manifest_children(input, arity, &manifest.versions, &manifest.children)?;
            }
            Ok(manifest)
        })
    }

    /// The files to store, in this order. The last one makes the versions visible.
    pub(super) fn encode(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        let mut key = MANIFEST_KEY.to_owned();
        if self.config.numbered {
            let mut body = Vec::new();
            self.config.write(&self.uuid, &mut body);
            files.push((key, self.seal(&body)?));
            let Some(last) = self.versions.last() else { return Ok(files) };
            key = numbered_key(last.generation);
        }
        let mut body = Vec::new();
        OcdbtConfig { numbered: false, ..self.config }.write(&self.uuid, &mut body);
        let table = FileTable::new(&self.versions, &self.children);
        table.write(&mut body);
        write_versions(&mut body, &self.versions, &table);
        write_children(&mut body, &self.children, &table, true);
        files.push((key, self.seal(&body)?));
        Ok(files)
    }

    fn seal(&self, body: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        seal(&mut out, Structure::Manifest, body, self.config.zstd_level)?;
        Ok(out)
    }

    /// Reads the current manifest of the database at the root of `base`.
    pub(super) fn read(base: &dyn Store) -> Result<Self> {
        let place = base.describe(MANIFEST_KEY.as_bytes());
        let Some(stored) = envelope::fetch(base, MANIFEST_KEY.as_bytes(), Structure::Manifest)? else {
            let error = Rule::NoManifest.error("this is not an OCDBT database").in_file(place);
            return Err(error.help("a file manifest.ocdbt"));
        };
        let manifest = Self::parse(&stored).map_err(|error| error.in_file(place))?;
        if manifest.config.numbered { manifest.read_numbered(base) } else { Ok(manifest) }
    }

    fn read_numbered(self, base: &dyn Store) -> Result<Self> {
        let mut generation = 0;
        for _ in 0..LISTS_MAX {
            let Some(newest) = newest_numbered(base)? else { return Ok(self) };
            generation = newest;
            let key = numbered_key(generation);
            let Some(stored) = envelope::fetch(base, key.as_bytes(), Structure::Manifest)? else { continue };
            return self
                .adopt_numbered(&stored, generation)
                .map_err(|error| error.in_file(base.describe(key.as_bytes())));
        }
        let error = Rule::FileMissing.error("a numbered manifest is listed but missing");
        Err(error.in_file(base.describe(numbered_key(generation).as_bytes())))
    }

    fn adopt_numbered(self, stored: &Bytes, generation: u64) -> Result<Self> {
        let numbered = Self::parse(stored)?;
        if numbered.config.numbered {
            return Err(Rule::Config.error("a numbered manifest has kind 1").expected("manifest_kind 0", 1));
        }
        let config = OcdbtConfig { numbered: true, ..numbered.config };
        if numbered.uuid != self.uuid || config != self.config {
            return Err(
                Rule::Config.error("the configuration of a numbered manifest differs from manifest.ocdbt")
            );
        }
        let last = numbered.versions.last().map_or(0, |last| last.generation);
        if last != generation {
            return Err(Rule::VersionTree
                .error("the last generation of a numbered manifest differs from its name")
                .expected(format_args!("generation {generation}"), last));
        }
        Ok(Self { config, ..numbered })
    }
}

pub(super) fn numbered_key(generation: u64) -> String {
    format!("{NUMBERED_PREFIX}{generation:0NUMBERED_DIGITS$x}")
}

pub(super) fn newest_numbered(base: &dyn Store) -> Result<Option<u64>> {
    let keys = base.list(NUMBERED_PREFIX.as_bytes())?;
    Ok(keys.iter().filter_map(|key| generation_of(key)).max())
}

/// Parses the generation strictly: 16 lower-case hex digits, not zero.
fn generation_of(key: &[u8]) -> Option<u64> {
    let digits = key.strip_prefix(NUMBERED_PREFIX.as_bytes())?;
    let strict = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != NUMBERED_DIGITS || !digits.iter().all(strict) {
        return None;
    }
    let generation = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (generation > 0).then_some(generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_numbered_manifests_are_matched_strictly() {
        assert_eq!(generation_of(numbered_key(0x2a).as_bytes()), Some(0x2a));
        for key in [
            "manifest.ocdbt",
            "manifest.0000000000000000",
            "manifest.000000000000000A",
            "manifest.00000000000000001",
            "manifest.+000000000000001",
            "manifest.0000000000000001.__lock",
        ] {
            assert_eq!(generation_of(key.as_bytes()), None, "{key}");
        }
    }
}
