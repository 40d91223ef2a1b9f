//! EasyLM's streamed files: one record for each leaf, without a count or an end mark.
//!
//! ```text
//! | array 2 | array n | "params" | "w" | bin | a msgpack object of Flax: a leaf |   and so on to the end of the file
//!           '------- its key path -----'
//! ```
//!
//! Source: EasyLM `checkpoint.py` (`StreamingCheckpointer`).

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;

use super::decode::{Decoded, decode};
use super::msgpack::{Scanner, Token};
use crate::path_tree;
use regrow_base::error::{Error, Result};
use regrow_tree::tree::{Key, KeyPath, NodeKind, Tree};

/// Whether bytes begin like a file of records. A record begins with a list of keys, so a list of
/// two texts is not a record.
pub(super) fn begins_record(start: &[u8]) -> bool {
    let mut scanner = Scanner::new(start);
    let Ok(Token::Array(2)) = scanner.next() else { return false };
    let Ok(Token::Array(keys)) = scanner.next() else { return false };
    for _ in 0..keys {
        match scanner.next() {
            Ok(Token::Str(_)) => {}
            _ => return false,
        }
    }
    let first = scanner.offset_bytes() as usize;
    // The value is a `bin`, or a `str`, as old packers wrote bytes.
    keys > 0 && matches!(start.get(first), Some(0xc4..=0xc6 | 0xa0..=0xbf | 0xd9..=0xdb))
}

/// All records; in a salvage, the records before the first error.
pub(super) fn decode_stream(bytes: &Bytes, salvage: bool) -> Result<Tree<Decoded>> {
    let (mut paths, mut values, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    let mut scanner = Scanner::new(bytes);
    while scanner.offset_bytes() < bytes.len() as u64 {
        let read = record(&mut scanner).and_then(|(path, value)| {
            let at = value.start as u64;
            let tree = decode(&bytes.slice(value)).map_err(|error| error.shift(at).at_leaf(&path))?;
            match known.insert(path.clone()) {
                true => Ok((path, leaf_of(tree, at)?)),
                false => Err(Error::corrupt("a leaf occurs twice").at_leaf(&path).at_byte(at)),
            }
        });
        match read {
            Ok((path, value)) => {
                paths.push(path);
                values.push(Some(value));
            }
            Err(error) if salvage && error.kind().is_damage() && !paths.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let places: Vec<&KeyPath> = paths.iter().collect();
    let build = path_tree::build(&places, |build, key, number| {
        match values.get_mut(number).and_then(Option::take).flatten() {
            Some(mut leaf) => {
                leaf.info.name = places.get(number).map(|path| path.join(".")).unwrap_or_default().into();
                build.leaf(key, leaf)
            }
            None => {
                build.open(key, NodeKind::None)?;
                build.close()
            }
        }
    });
    build?.finish()
}

fn record(scanner: &mut Scanner<'_>) -> Result<(KeyPath, Range<usize>)> {
    let start = scanner.offset_bytes();
    let bad = |what: &str| {
        Error::corrupt(format!("a record of a streamed file {what}"))
            .at_byte(start)
            .help("EasyLM writes pairs of a key path and the bytes of a leaf; copy the file again")
    };
    let Token::Array(2) = scanner.next()? else { return Err(bad("is not a pair")) };
    let Token::Array(count) = scanner.next()? else { return Err(bad("does not begin with a key path")) };
    let mut path = KeyPath::root();
    for _ in 0..count {
        let key = match scanner.next()? {
            Token::Str(range) => Key::dict(scanner.text(&range)?),
            Token::Int(number) => Key::DictInt(number),
            _ => return Err(bad("has a key that is neither text nor an integer")),
        };
        path.push(key);
    }
    match scanner.next()? {
        Token::Bin(range) | Token::Str(range) => Ok((path, range)),
        _ => Err(bad("has no bytes after its key path").at_leaf(&path)),
    }
}

/// The one leaf of an object, or `None` for Python's `None`.
fn leaf_of(tree: Tree<Decoded>, at: u64) -> Result<Option<Decoded>> {
    match tree.nodes() {
        [only] if only.kind == NodeKind::None => Ok(None),
        [only] if only.kind == NodeKind::Leaf => Ok(tree.into_leaves().pop()),
        _ => Err(Error::corrupt("the value of a record is a container, not a leaf").at_byte(at)),
    }
}
