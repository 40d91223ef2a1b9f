//! Checkpoints of `jax.experimental.array_serialization.pytree_serialization`: a tree in JSON, and
//! a database of arrays. The name of an array is the number of its leaf.
//!
//! ```text
//! pytreedef.json   {"__jax_pytreedef_repr": FLATBUFFER in base64,
//!                   "__jax_leaf_ids": ["Array(float32[2, 3])", null, …]}      one text a leaf
//! array_store/     manifest.ocdbt  d/  process_0/…                              keys: 0/zarr.json, 0/c/0/0, 2/zarr.json …
//!
//! table PyTreeDef { kind: byte; children: [PyTreeDef]; children_names: [string]; custom_name: string; custom_auxdata: [byte] }
//! ```
//!
//! A leaf whose text is null is read as `None`. A custom node is read as the name of its type and
//! its children.
//!
//! Source: JAX 0.10 `pytree_serialization.py`, `export/serialization.fbs`; FlatBuffers' internals.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::arrays::Arrays;
use super::files::read_small;
use super::json_text;
use super::marker_files::MANIFEST_FILE;
use super::opened::{Opened, Wanted};
use super::slot::Slot;
use regrow_base::bytes::limits::TREE_DEPTH_MAX;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_tree::tree::{Key, LeafKind, NodeKind, TreeBuilder};
use regrow_zarr::zarr::Missing;

pub(super) const TREE_FILE: &str = "pytreedef.json";
const STORE_FOLDER: &str = "array_store";

/// Bytes of the smallest table and the offset that leads to it.
const TABLE_LEN_MIN_BYTES: usize = 8;

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "__jax_pytreedef_repr")]
    tree: String,
    #[serde(rename = "__jax_leaf_ids")]
    leaves: Vec<Option<String>>,
}

pub(super) fn has_lost_its_tree(at: &Location) -> bool {
    at.join(STORE_FOLDER).join(MANIFEST_FILE).is_file() && !at.join(TREE_FILE).is_file()
}

pub(super) fn lost_its_tree(at: &Location) -> Error {
    Error::corrupt("the tree of a checkpoint of JAX' array_serialization is missing")
        .in_file(at.join(TREE_FILE))
        .help(format!("copy the whole checkpoint again; the arrays are in {STORE_FOLDER}, by number"))
}

pub(super) fn open(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let file = folder.join(TREE_FILE);
    let bytes = read_small(&file)?.ok_or_else(|| lost_its_tree(folder))?;
    let document: Document = json_text::parse(&bytes).in_file(&file)?;
    let table = STANDARD
        .decode(&document.tree)
        .map_err(|error| Error::corrupt(format!("the tree is not base64: {error}")).in_file(&file))?;
    let store = folder.join(STORE_FOLDER);
    let has_arrays = document.leaves.iter().any(Option::is_some);
    let mut arrays = match has_arrays {
        true if !store.join(MANIFEST_FILE).is_file() && wanted.is_strict() => {
            return Err(Error::corrupt("the database that holds the arrays has no manifest")
                .in_file(store.join(MANIFEST_FILE))
                .help("copy the whole checkpoint again, with all its files"));
        }
        true => Some(Arrays::in_database(&store, true, Missing::Fill, wanted)?),
        false => None,
    };
    let mut reading = Reading { table: Table(&table), tables: 0, customs: Vec::new() };
    let mut numbers = 0..document.leaves.len();
    let build = reading.build(&mut |build, key| {
        let number =
            numbers.next().ok_or_else(|| Error::corrupt("the tree has more leaves than are listed"))?;
        let said = document.leaves.get(number).and_then(Option::as_deref);
        let (Some(arrays), Some(said)) = (arrays.as_mut(), said) else {
            build.open(key, NodeKind::None)?;
            return build.close();
        };
        let slot = arrays.leaf(&number.to_string(), LeafKind::JaxArray)?;
        let found = format!("Array({}{:?})", slot.info.dtype.name(), slot.info.shape.dims());
        if slot.info.kind != LeafKind::Placeholder && said != found {
            return Err(Error::corrupt(format!("array {number} differs from the tree"))
                .expected(said, found)
                .help("the tree and the arrays belong to two checkpoints: copy both again"));
        }
        build.leaf(key, slot)
    });
    let tree = build.in_file(&file)?.finish()?;
    if let Some(left) = numbers.next() {
        let count = document.leaves.len();
        return Err(Error::corrupt("the tree has fewer leaves than are listed")
            .in_file(&file)
            .expected(count, left));
    }
    let notes = match reading.customs.as_slice() {
        [] => Vec::new(),
        customs => {
            vec![format!("nodes of your own types are read as their children: {}", customs.join(", "))]
        }
    };
    Ok(Opened {
        notes,
        databases: has_arrays.then_some(store).into_iter().collect(),
        ..Opened::new(tree, "jax array_serialization: ocdbt, zarr v3")
    })
}

/// Reads the nodes of a tree from the flat buffer.
struct Reading<'b> {
    table: Table<'b>,
    /// The number of tables that were read. It is limited, because shared offsets could double the
    /// work at every level.
    tables: usize,
    customs: Vec<String>,
}

enum Step {
    Visit(usize, Key),
    Close,
}

impl Reading<'_> {
    fn build(
        &mut self,
        leaf: &mut dyn FnMut(&mut TreeBuilder<Slot>, Key) -> Result<()>,
    ) -> Result<TreeBuilder<Slot>> {
        let mut build = TreeBuilder::new();
        let mut steps = vec![Step::Visit(self.table.indirect(0)?, Key::Index(0))];
        let mut depth = 0;
        while let Some(step) = steps.pop() {
            let Step::Visit(at, key) = step else {
                build.close()?;
                depth -= 1;
                continue;
            };
            self.tables += 1;
            if self.tables > self.table.0.len() / TABLE_LEN_MIN_BYTES || depth > TREE_DEPTH_MAX {
                return Err(Error::new(
                    ErrorKind::Limit,
                    "the tree has more nodes than its bytes could hold",
                ));
            }
            let kind = self.table.byte(at, 0)?;
            if kind == 0 {
                leaf(&mut build, key)?;
                continue;
            }
            let children = self.table.vector(at, 1)?;
            let names = self.table.vector(at, 2)?;
            let kind = match kind {
                1 => NodeKind::None,
                2 => NodeKind::Tuple,
                3 => NodeKind::List,
                4 if names.len() == children.len() => NodeKind::Dict,
                4 => {
                    return Err(Error::corrupt(
                        "a dict of the tree has a different number of keys and children",
                    )
                    .at_byte(at as u64));
                }
                5 => {
                    let name = self.table.field(at, 3)?.map(|at| self.table.text(at)).transpose()?;
                    let name = name.unwrap_or_default();
                    if !self.customs.contains(&name) {
                        self.customs.push(name.clone());
                    }
                    NodeKind::Custom(name.into())
                }
                other => {
                    return Err(Error::unsupported(format!("a node of the tree is of kind {other}"))
                        .at_byte(at as u64)
                        .expected("0 to 5", other)
                        .help("a newer JAX wrote it: load it there, and save it with regrow.save"));
                }
            };
            let is_dict = kind == NodeKind::Dict;
            build.open(key, kind)?;
            depth += 1;
            steps.push(Step::Close);
            for (number, child) in children.into_iter().enumerate().rev() {
                let key = match names.get(number).filter(|_| is_dict) {
                    Some(&name) => Key::dict(self.table.text(name)?),
                    None => Key::Index(number),
                };
                steps.push(Step::Visit(self.table.indirect(child)?, key));
            }
        }
        Ok(build)
    }
}

/// A flat buffer. Every offset is checked before it is followed.
struct Table<'b>(&'b [u8]);

impl Table<'_> {
    fn number<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let bytes =
            at.checked_add(N).and_then(|end| self.0.get(at..end)).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| Error::corrupt("the tree's bytes end inside a node").at_byte(at as u64))
    }

    /// The target of the offset at `at`, which is always after `at`.
    fn indirect(&self, at: usize) -> Result<usize> {
        let offset = u32::from_le_bytes(self.number(at)?) as usize;
        match at.checked_add(offset) {
            Some(to) if offset > 0 && to < self.0.len() => Ok(to),
            _ => Err(Error::corrupt("an offset of the tree is outside of it").at_byte(at as u64)),
        }
    }

    /// The position of a field of the table at `at`; `None` if the table lacks the field.
    fn field(&self, at: usize, number: usize) -> Result<Option<usize>> {
        let back = i64::from(i32::from_le_bytes(self.number(at)?));
        let fields = usize::try_from(at as i64 - back);
        let fields =
            fields.map_err(|_| Error::corrupt("a node of the tree has no fields").at_byte(at as u64))?;
        let len = usize::from(u16::from_le_bytes(self.number(fields)?));
        let slot = 4 + 2 * number;
        if slot + 2 > len {
            return Ok(None);
        }
        let offset = usize::from(u16::from_le_bytes(self.number(fields.saturating_add(slot))?));
        Ok((offset > 0).then_some(at.saturating_add(offset)))
    }

    fn byte(&self, at: usize, number: usize) -> Result<u8> {
        let Some(at) = self.field(at, number)? else { return Ok(0) };
        let [byte] = self.number(at)?;
        Ok(byte)
    }

    /// The positions of the elements of a field that is a vector of offsets.
    fn vector(&self, at: usize, number: usize) -> Result<Vec<usize>> {
        let Some(at) = self.field(at, number)? else { return Ok(Vec::new()) };
        let at = self.indirect(at)?;
        let count = u32::from_le_bytes(self.number(at)?) as usize;
        if count > (self.0.len() - at) / 4 {
            return Err(Error::corrupt("a node of the tree has more children than there are bytes")
                .at_byte(at as u64));
        }
        Ok((0..count).map(|number| at + 4 + 4 * number).collect())
    }

    /// The text that the offset at `at` leads to.
    fn text(&self, at: usize) -> Result<String> {
        let at = self.indirect(at)?;
        let len = u32::from_le_bytes(self.number(at)?) as usize;
        let bytes = (at + 4).checked_add(len).and_then(|end| self.0.get(at + 4..end));
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.map(str::to_owned)
            .ok_or_else(|| Error::corrupt("a name of the tree is not text").at_byte(at as u64))
    }
}
