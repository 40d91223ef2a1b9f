//! Decodes an object into a pytree: maps become dicts, and arrays become leaves with the position
//! of their data.
//!
//! The decoder makes one pass over the file's bytes without copying arrays, and finds the position
//! of every leaf. It accepts only forms that Flax writes. These are errors, with the offset and the
//! key path: a repeated key; `-1` in a shape; a NumPy scalar with axes; chunks of several dtypes.
//!
//! | module | holds |
//! |---|---|
//! | `mod` | containers and their keys |
//! | `leaves` | numbers, text, arrays |
//! | `chunked` | an array that Flax has cut into chunks, which is a map |
//! | `gathered` | a TensorStore spec, which is a map, too |

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::layout::CHUNKED_KEY;
use super::msgpack::{DEPTH_MAX, Scanner, Token, too_deep};
use regrow_base::error::{Error, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

mod chunked;
mod gathered;
mod leaves;
#[cfg(test)]
mod tests;

use gathered::with_specs;

/// A leaf of a decoded object.
#[derive(Debug)]
pub struct Decoded {
    /// The name, kind, dtype and shape of the leaf.
    pub info: LeafInfo,
    /// The position of the data.
    pub data: Data,
}

/// The position of a leaf's data.
#[derive(Debug)]
pub enum Data {
    /// In C order, in one piece of the file or in several.
    Pieces(Vec<Bytes>),
    /// Text.
    Text(Arc<str>),
    /// In another file, described by a TensorStore spec.
    Spec(Value),
    /// No data: an extension that is not Flax'.
    Absent,
    /// Lost, with the reason, when an object is salvaged.
    Lost(Error),
}

/// Reads one object that must fill `bytes`.
///
/// # Errors
/// `Corrupt`, `Unsupported` or `Limit`, with leaf and offset.
pub fn decode(bytes: &Bytes) -> Result<Tree<Decoded>> {
    let mut decoder = Decoder::new(bytes);
    match decoder.object() {
        Ok(()) => with_specs(decoder.build.finish()?),
        Err(error) => Err(decoder.blame(error)),
    }
}

/// Reads one object up to the first error. The leaf with the error is lost, and all leaves after it
/// are missing.
///
/// # Errors
/// As [`decode`], if the first token is already wrong.
pub(crate) fn decode_front(bytes: &Bytes) -> Result<Tree<Decoded>> {
    let mut decoder = Decoder::new(bytes);
    if let Err(error) = decoder.object() {
        if decoder.open.is_empty() {
            // Either the whole object was read and other bytes follow, or nothing was read.
            return if decoder.is_complete {
                with_specs(decoder.build.finish()?)
            } else {
                Err(decoder.blame(error))
            };
        }
        let pending = decoder.pending.take();
        if let Some(key) = pending {
            let info = decoder.info(LeafKind::Placeholder, Dtype::UInt8, Shape::scalar());
            decoder.build.leaf(key, Decoded { info, data: Data::Lost(error) })?;
        }
        for _ in 0..decoder.open.len() {
            decoder.build.close()?;
        }
    }
    with_specs(decoder.build.finish()?)
}

/// A container that is being read.
struct Open {
    left: usize,
    /// The keys so far, for a map; `None` for an array.
    keys: Option<HashSet<Key>>,
    next_index: usize,
}

struct Decoder<'a> {
    bytes: &'a Bytes,
    scanner: Scanner<'a>,
    /// The key path of the current value. After an error, the path of the error.
    path: KeyPath,
    open: Vec<Open>,
    /// The number of arrays among `open`. Arrays in chunks are not recognised below an array.
    open_lists: usize,
    build: TreeBuilder<Decoded>,
    pending: Option<Key>,
    /// Whether the last byte of the object was read.
    is_complete: bool,
}

impl<'a> Decoder<'a> {
    fn new(bytes: &'a Bytes) -> Self {
        Self {
            bytes,
            scanner: Scanner::new(bytes),
            path: KeyPath::root(),
            open: Vec::new(),
            open_lists: 0,
            build: TreeBuilder::new(),
            pending: None,
            is_complete: false,
        }
    }

    fn blame(&self, error: Error) -> Error {
        if self.path.is_root() { error } else { error.at_leaf(&self.path) }
    }
}

impl Decoder<'_> {
    fn object(&mut self) -> Result<()> {
        self.value(Key::Index(0))?;
        while let Some(open) = self.open.last_mut() {
            if open.left == 0 {
                if open.keys.is_none() {
                    self.open_lists -= 1;
                }
                self.open.pop();
                self.build.close()?;
                self.path.pop();
                continue;
            }
            open.left -= 1;
            let key = match &open.keys {
                None => {
                    open.next_index += 1;
                    Key::Index(open.next_index - 1)
                }
                Some(_) => self.key()?,
            };
            self.path.push(key.clone());
            self.pending = Some(key.clone());
            self.value(key)?;
            self.pending = None;
        }
        self.is_complete = true;
        self.scanner.finish("the msgpack object")
    }

    fn key(&mut self) -> Result<Key> {
        let at = self.scanner.offset_bytes();
        let key = match self.scanner.next()? {
            Token::Str(range) => Key::dict(self.scanner.text(&range)?),
            Token::Int(number) => Key::DictInt(number),
            Token::Array(_) | Token::Map(_) => {
                return Err(Error::corrupt("a key is an array or a map").at_byte(at));
            }
            _ => {
                return Err(Error::unsupported("a key is neither text nor an integer")
                    .at_byte(at)
                    .help("read the file with regrow.flax.msgpack_restore, which keeps keys of every kind"));
            }
        };
        if let Some(keys) = self.open.last_mut().and_then(|open| open.keys.as_mut())
            && !keys.insert(key.clone())
        {
            self.path.push(key);
            return Err(Error::corrupt("a key is there twice").at_byte(at).help(
                "Flax would take the last one without a word; regrow.flax.msgpack_restore does the same",
            ));
        }
        if key.text() == CHUNKED_KEY && self.open_lists == 0 {
            return Err(Error::corrupt("the key that marks an array in chunks is not the first of its map")
                .at_byte(at));
        }
        Ok(key)
    }

    fn value(&mut self, key: Key) -> Result<()> {
        let at = self.scanner.offset_bytes();
        match self.scanner.next()? {
            Token::Map(count) => {
                if self.is_chunked(count) {
                    let leaf = self.chunked(count, at)?;
                    return self.leaf(key, leaf);
                }
                self.enter(key, NodeKind::Dict, count, at)
            }
            Token::Array(count) => self.enter(key, NodeKind::List, count, at),
            Token::Nil => {
                self.build.open(key, NodeKind::None)?;
                self.build.close()?;
                self.path.pop();
                Ok(())
            }
            token => {
                let leaf = self.scalar(token)?;
                self.leaf(key, leaf)
            }
        }
    }

    fn enter(&mut self, key: Key, kind: NodeKind, count: usize, at: u64) -> Result<()> {
        if self.open.len() >= DEPTH_MAX {
            return Err(too_deep().at_byte(at));
        }
        let keys = (kind == NodeKind::Dict).then(HashSet::new);
        if keys.is_none() {
            self.open_lists += 1;
        }
        self.build.open(key, kind)?;
        self.open.push(Open { left: count, keys, next_index: 0 });
        Ok(())
    }

    fn leaf(&mut self, key: Key, leaf: Decoded) -> Result<()> {
        self.build.leaf(key, leaf)?;
        self.path.pop();
        Ok(())
    }
}
