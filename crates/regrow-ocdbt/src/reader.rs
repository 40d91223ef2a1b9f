//! One version of a database, read as a kvstore.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};
use regrow_store::{ByteRange, Located, ReadOnly, Span, Store, StoreCapabilities, resolve_range};

use super::config::OcdbtConfig;
use super::files::Files;
use super::manifest::{MANIFEST_KEY, Manifest};
use super::node::Value;
use super::rule::Rule;
use super::versions::Version;
use super::walk::{Bounds, Walk, prefix_end};

/// The keys of a database, each with the position of its value.
pub type Listed = Vec<(Vec<u8>, Located)>;

/// The most memory for listed entries. Shared subtrees and shared key prefixes let a small file
/// list more.
const ENTRIES_LEN_MAX_BYTES: u64 = 4 << 30;

/// One version of an OCDBT database, read only.
///
/// Opening reads the manifest alone. Nodes are read when a key is first looked for below them, and
/// kept: a key found again costs a binary search per level.
#[derive(Debug)]
pub struct OcdbtStore {
    manifest: Manifest,
    /// The version that is read; `None` in a numbered database without commits.
    pub(super) version: Option<Version>,
    files: Files,
}

impl OcdbtStore {
    /// Opens the newest version of the database whose `manifest.ocdbt` lies at the root of `base`.
    ///
    /// # Errors
    /// `NotFound` if the manifest is missing; `Corrupt`, `Unsupported` or `Limit` if it cannot be
    /// read.
    pub fn open(base: Arc<dyn Store>) -> Result<Self> {
        let manifest = Manifest::read(&*base)?;
        let files = Files::new(base, manifest.config.node_len_max_bytes());
        Ok(Self { version: manifest.versions.last().cloned(), manifest, files })
    }

    /// The configuration for writing the database.
    pub fn config(&self) -> &OcdbtConfig {
        &self.manifest.config
    }

    /// The UUID of the database: random, and the same in all its manifests.
    pub fn uuid(&self) -> [u8; 16] {
        self.manifest.uuid
    }

    /// Every key with the position of its value, in key order. Reads each node once.
    ///
    /// # Errors
    /// `Corrupt` for a node that is damaged or missing, `Limit` if the entries need more memory
    /// than the limit. A missing data file is found only when a value is read.
    pub fn entries(&self) -> Result<Vec<(Vec<u8>, Located)>> {
        self.collect_entries(None)
    }

    /// The same as [`entries`](Self::entries), without the keys below unreadable nodes. Also
    /// returns the error of the first such node.
    ///
    /// # Errors
    /// As [`entries`](Self::entries), except errors of damaged and missing nodes.
    pub fn entries_there(&self) -> Result<(Listed, Option<Error>)> {
        let mut damage = None;
        let entries = self.collect_entries(Some(&mut damage))?;
        Ok((entries, damage))
    }

    fn collect_entries(&self, damage: Option<&mut Option<Error>>) -> Result<Listed> {
        let mut entries = Vec::new();
        let mut budget = Budget::default();
        self.walk(Bounds::ALL, damage, &mut |prefix, leaf, wanted| {
            entries.reserve(wanted.len());
            for i in wanted {
                let key = full_key(prefix, leaf.key(i));
                budget.spend(key.len())?;
                if let Some(value) = leaf.value(i) {
                    entries.push((key, self.files.located(value)?));
                }
            }
            Ok(())
        })?;
        Ok(entries)
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    pub(super) fn manifest_place(&self) -> PathBuf {
        self.files.base().describe(MANIFEST_KEY.as_bytes())
    }

    fn walk(
        &self,
        wanted: Bounds<'_>,
        damage: Option<&mut Option<Error>>,
        visit: &mut super::walk::Visit<'_>,
    ) -> Result<()> {
        match &self.version {
            Some(version) => Walk::run(&self.files, version, wanted, damage, visit),
            None => Ok(()),
        }
    }

    /// Calls `found` with the value of `key`; `None` if the key does not exist.
    fn find<T>(&self, key: &[u8], found: impl FnOnce(Value<'_>) -> Result<T>) -> Result<Option<T>> {
        let Some(version) = &self.version else { return Ok(None) };
        let Some(root) = &version.root else { return Ok(None) };
        let mut node = self.files.node(root, version.root_height, b"", 0)?;
        let mut rest = key;
        loop {
            if node.height == 0 {
                let value = node.find(rest).and_then(|i| node.value(i));
                return value.map(found).transpose();
            }
            let Some(child) = node.count_up_to(rest).checked_sub(1).and_then(|i| node.child(i)) else {
                return Ok(None);
            };
            let Some(below) = rest.strip_prefix(child.common) else { return Ok(None) };
            let min_key = child.key.strip_prefix(child.common).unwrap_or_default();
            let prefix_len = key.len() - below.len();
            let next = self.files.node(&child.reference, node.height - 1, min_key, prefix_len)?;
            rest = below;
            node = next;
        }
    }
}

impl Store for OcdbtStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        match self.locate(key)? {
            None => Ok(None),
            Some(Located::Inline(bytes)) => {
                let part = resolve_range(range, bytes.len() as u64)
                    .map_err(|error| error.in_file(self.describe(key)))?;
                Ok(Some(bytes.slice(part.start as usize..part.end as usize)))
            }
            Some(Located::At(span)) => {
                let part = resolve_range(range, span.len_bytes)
                    .map_err(|error| error.in_file(self.describe(key)))?;
                self.read(&span, part).map(Some)
            }
        }
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let end = prefix_end(prefix);
        let wanted = Bounds { from: prefix, to: end.as_deref(), ..Bounds::ALL };
        let mut keys = Vec::new();
        let mut budget = Budget::default();
        self.walk(wanted, None, &mut |prefix, leaf, wanted| {
            keys.reserve(wanted.len());
            for i in wanted {
                let key = full_key(prefix, leaf.key(i));
                budget.spend(key.len())?;
                keys.push(key);
            }
            Ok(())
        })?;
        Ok(keys)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.find(key, |value| match value {
            Value::Inline(bytes) => Ok(bytes.len() as u64),
            Value::Indirect { len_bytes, .. } => Ok(len_bytes),
        })
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        self.find(key, |value| self.files.located(value))
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        // TensorStore writes a key inside a database as `folder/manifest.ocdbt|ocdbt:key`.
        let mut text = self.manifest_place().into_os_string();
        text.push("|ocdbt:");
        text.push(String::from_utf8_lossy(key).as_ref());
        text.into()
    }

    fn capabilities(&self) -> StoreCapabilities<'_> {
        let writes = Err(ReadOnly { what: "an opened OCDBT database is read only", help: None });
        StoreCapabilities { writes, maps: None, versions: None }
    }
}

impl OcdbtStore {
    fn read(&self, span: &Span, part: std::ops::Range<u64>) -> Result<Bytes> {
        let len_bytes = part.end - part.start;
        if len_bytes == 0 {
            return Ok(Bytes::new());
        }
        self.files.range_at(&span.key, span.offset_bytes + part.start, len_bytes)
    }
}

fn full_key(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(prefix.len() + key.len());
    full.extend_from_slice(prefix);
    full.extend_from_slice(key);
    full
}

/// Counts the memory of a listing.
#[derive(Debug, Default)]
struct Budget(u64);

impl Budget {
    fn spend(&mut self, key_len: usize) -> Result<()> {
        self.0 += (key_len + size_of::<(Vec<u8>, Located)>()) as u64;
        if self.0 <= ENTRIES_LEN_MAX_BYTES {
            return Ok(());
        }
        Err(Rule::Limit
            .error("the keys of the database are too long together")
            .expected(format_args!("at most {ENTRIES_LEN_MAX_BYTES} bytes with their index"), "more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_takes_its_keys_and_their_index_and_no_more_than_may_be() {
        let each_bytes = size_of::<(Vec<u8>, Located)>() as u64;
        let mut budget = Budget::default();
        budget.spend(10).unwrap();
        budget.spend(1).unwrap();
        assert_eq!(budget.0, 11 + 2 * each_bytes);
        let mut full = Budget(ENTRIES_LEN_MAX_BYTES - each_bytes - 5);
        full.spend(5).unwrap();
        assert_eq!(Rule::of(&full.spend(0).unwrap_err()), Some(Rule::Limit));
    }
}
