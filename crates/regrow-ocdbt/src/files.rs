//! Reads byte ranges, version tree nodes and B+tree nodes of one database. It caches the B+tree
//! nodes.
//!
//! Data files never change, so the cache stays valid. The key of a node in the cache includes its
//! transitive path, because the names inside a node depend on this path.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use regrow_store::{ByteRange, Located, Span, Store};

use super::envelope::{Structure, look};
use super::manifest::MANIFEST_KEY;
use super::node::{KEY_LEN_MAX_BYTES, Node, NodeRef, Value};
use super::rule::Rule;
use super::table::DataFile;
use super::versions::{VersionChild, VersionNode};

/// The most memory for parsed nodes. Above this, all cached nodes are dropped.
const CACHE_LEN_MAX_BYTES: usize = 256 << 20;

/// The data files of one database.
pub(super) struct Files {
    base: Arc<dyn Store>,
    node_len_max_bytes: u64,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    nodes: HashMap<NodeRef, Arc<Node>>,
    footprint_bytes: usize,
}

impl Files {
    pub(super) fn new(base: Arc<dyn Store>, node_len_max_bytes: u64) -> Self {
        Self { base, node_len_max_bytes, cache: Mutex::default() }
    }

    pub(super) fn base(&self) -> &Arc<dyn Store> {
        &self.base
    }

    /// The B+tree node at `reference`, checked against its parent's statements: its height is
    /// `height`, its first relative key is `min_key` or later, and its keys omit `prefix_len`
    /// bytes.
    pub(super) fn node(
        &self,
        reference: &NodeRef,
        height: u8,
        min_key: &[u8],
        prefix_len: usize,
    ) -> Result<Arc<Node>> {
        let node = self.any_node(reference)?;
        let broken = if node.height != height {
            Rule::Ref
                .error("the height of a B+tree node differs from its parent")
                .expected(height, node.height)
        } else if node.first_key() < min_key {
            Rule::Ref.error("the first key of a B+tree node is smaller than in its parent").expected(
                format_args!("{} or later", min_key.escape_ascii()),
                node.first_key().escape_ascii(),
            )
        } else if prefix_len + node.longest_key_len() > KEY_LEN_MAX_BYTES {
            Rule::Btree.error("a key with its prefix is too long").expected(
                format_args!("at most {KEY_LEN_MAX_BYTES} bytes"),
                prefix_len + node.longest_key_len(),
            )
        } else {
            return Ok(node);
        };
        Err(self.blame(reference, broken))
    }

    fn any_node(&self, reference: &NodeRef) -> Result<Arc<Node>> {
        // If a thread panicked with the lock, the footprint may be wrong by one node. Then the
        // cache only gets a little larger or smaller.
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = lock().nodes.get(reference) {
            return Ok(node.clone());
        }
        let stored = self.structure(reference, Structure::BtreeNode)?;
        let node = Node::parse(&stored, reference.file.transitive(), self.node_len_max_bytes);
        let node = Arc::new(node.map_err(|error| self.blame(reference, error))?);
        let mut cache = lock();
        if cache.footprint_bytes.saturating_add(node.footprint_bytes()) > CACHE_LEN_MAX_BYTES {
            *cache = Cache::default();
        }
        cache.footprint_bytes = cache.footprint_bytes.saturating_add(node.footprint_bytes());
        cache.nodes.insert(reference.clone(), node.clone());
        Ok(node)
    }

    /// The version tree node that `child` refers to, checked against the statements of `child`.
    pub(super) fn version_node(&self, child: &VersionChild, arity_log2: u8) -> Result<VersionNode> {
        let reference = &child.reference;
        let stored = self.structure(reference, Structure::VersionNode)?;
        let node = VersionNode::parse(&stored, reference.file.transitive());
        let node = node.map_err(|error| self.blame(reference, error))?;
        let differs = |what: &str| {
            Rule::Ref.error(format_args!("the {what} of a version tree node differs from its parent"))
        };
        let broken = if node.height != child.height {
            differs("height").expected(child.height, node.height)
        } else if node.arity_log2 != arity_log2 {
            differs("arity").expected(arity_log2, node.arity_log2)
        } else if node.generation() != child.generation {
            differs("last generation").expected(child.generation, node.generation())
        } else {
            return Ok(node);
        };
        Err(self.blame(reference, broken))
    }

    fn structure(&self, reference: &NodeRef, structure: Structure) -> Result<Bytes> {
        let read = |at, len_bytes| self.range(&reference.file, reference.offset_bytes + at, len_bytes);
        look(&read, reference.len_bytes, structure).map_err(|error| self.blame(reference, error))?;
        self.range(&reference.file, reference.offset_bytes, reference.len_bytes)
    }

    /// Exactly `len_bytes` bytes of a data file. A length of 0 needs no file.
    pub(super) fn range(&self, file: &DataFile, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        if len_bytes == 0 {
            return Ok(Bytes::new());
        }
        self.range_at(self.path_of(file)?, offset_bytes, len_bytes)
    }

    /// As [`Files::range`], for a path that was checked to be safe.
    pub(super) fn range_at(&self, path: &[u8], offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let error = match self.base.get(path, ByteRange::Span { offset_bytes, len_bytes }) {
            Ok(Some(bytes)) if bytes.len() as u64 == len_bytes => return Ok(bytes),
            Ok(Some(bytes)) => short().expected(format_args!("{len_bytes} bytes"), bytes.len()),
            Ok(None) => missing(),
            Err(error) if error.kind() == ErrorKind::Corrupt => match error.expected_found() {
                Some((expected, found)) => short().expected(expected, found),
                None => Rule::FileShort.adopt(&error),
            },
            Err(error) => error,
        };
        Err(error.at_byte(offset_bytes).in_file(self.base.describe(path)))
    }

    /// Returns an error unless the store has these bytes. Reads none of them: `len_of` gives the
    /// lengths of files.
    pub(super) fn check_range(
        &self,
        file: &DataFile,
        offset_bytes: u64,
        len_bytes: u64,
        len_of: impl FnOnce(&Arc<[u8]>) -> Result<Option<u64>>,
    ) -> Result<()> {
        if len_bytes == 0 {
            return Ok(());
        }
        let path = self.path_of(file)?;
        let error = match len_of(path)? {
            None => missing(),
            Some(len) if offset_bytes.saturating_add(len_bytes) > len => short().expected(
                format_args!("{len_bytes} bytes from byte {offset_bytes} on"),
                format_args!("{len} bytes"),
            ),
            Some(_) => return Ok(()),
        };
        Err(error.at_byte(offset_bytes).in_file(self.base.describe(path)))
    }

    pub(super) fn located(&self, value: Value<'_>) -> Result<Located> {
        match value {
            Value::Inline(bytes) => Ok(Located::Inline(bytes)),
            // The empty value needs no file, so its reference may name none.
            Value::Indirect { len_bytes: 0, .. } => Ok(Located::Inline(Bytes::new())),
            Value::Indirect { file, offset_bytes, len_bytes } => Ok(Located::At(Span {
                store: self.base.clone(),
                key: self.path_of(file)?.clone(),
                offset_bytes,
                len_bytes,
            })),
        }
    }

    /// The path of a data file. If the path is unsafe, the error has the path of the manifest
    /// instead.
    fn path_of<'f>(&self, file: &'f DataFile) -> Result<&'f Arc<[u8]>> {
        file.path().map_err(|error| error.in_file(self.base.describe(MANIFEST_KEY.as_bytes())))
    }

    /// Adds the file and offset of a structure to an error about it.
    pub(super) fn blame(&self, reference: &NodeRef, error: Error) -> Error {
        let error = error.at_byte(0).shift(reference.offset_bytes);
        match reference.file.path() {
            Ok(path) => error.in_file(self.base.describe(path)),
            Err(_) => error.in_file(self.base.describe(MANIFEST_KEY.as_bytes())),
        }
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("base", &self.base).finish_non_exhaustive()
    }
}

fn missing() -> Error {
    Rule::FileMissing.error("a data file of the database is missing")
}

fn short() -> Error {
    Rule::FileShort.error("a data file is too short for a byte range of the database")
}
