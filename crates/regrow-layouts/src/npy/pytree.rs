//! Builds a pytree from arrays: the stored pytree of regrow, or dicts of names.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::header::Header;
use super::source::Stored;
use super::zip::Method;
use crate::structure::Regrown;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::counted;
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{Key, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// An array and its header, or the reason why it cannot be read. The header is `None` for a member
/// that is not an npy file: its content is a leaf of kind `Bytes`.
pub(super) type Content = Result<(Stored, Option<Header>), Unreadable>;

/// An array that cannot be read although it is not damaged: a pickle, an unknown dtype. Other
/// arrays can be read. In a salvage, also a damaged or missing array.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// The position of the array; `None` if it is unknown.
    pub stored: Option<Stored>,
    pub why: Error,
}

/// One array of an archive or a folder.
#[derive(Debug)]
pub(super) struct Item {
    pub name: String,
    /// The keys of the leaf, from the array's name, for a checkpoint without a stored pytree.
    pub keys: Vec<String>,
    pub content: Content,
}

/// A pytree with the position of every leaf's data.
#[derive(Debug)]
pub(super) struct Placed {
    pub tree: Tree<LeafInfo>,
    /// The text of each leaf of kind `Str`.
    pub texts: HashMap<usize, Arc<str>>,
    /// For each leaf, its data; `None` for leaves without readable elements.
    pub stored: Vec<Option<Stored>>,
    /// The leaves of kind `Unknown`, and those that are lost.
    pub unreadable: HashMap<usize, Unreadable>,
    /// Arrays that are not the data of a leaf, by their names: texts, which the stored pytree has,
    /// and arrays that the pytree does not list.
    pub others: Vec<(String, Stored)>,
}

pub(super) fn single((stored, _): (Stored, Option<Header>)) -> Placed {
    let info = info("", &Ok((stored.clone(), None)));
    Placed {
        tree: Tree::single(info),
        texts: HashMap::new(),
        stored: vec![Some(stored)],
        unreadable: HashMap::new(),
        others: Vec::new(),
    }
}

/// Builds dicts of names. The items are in an order in which the keys of one container are
/// together.
pub(super) fn nested(items: Vec<Item>, notes: &mut Vec<String>) -> Result<Placed> {
    note_unreadable(&items, notes);
    let mut build = TreeBuilder::new();
    let mut stored = Vec::with_capacity(items.len());
    let mut unreadable = HashMap::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    let mut open: Vec<String> = Vec::new();
    for item in items {
        let Some((last, folders)) = item.keys.split_last() else { continue };
        let common = open.iter().zip(folders).take_while(|(a, b)| a == b).count();
        for _ in common..open.len() {
            build.close()?;
        }
        open.truncate(common);
        for folder in folders.iter().skip(common) {
            build.open(Key::dict(folder.as_str()), NodeKind::Dict)?;
            open.push(folder.clone());
        }
        build.leaf(Key::dict(last.as_str()), info(&item.name, &item.content))?;
        stored.push(match item.content {
            Ok((of_leaf, _)) => Some(of_leaf),
            Err(content) => {
                unreadable.insert(stored.len(), content);
                None
            }
        });
    }
    for _ in 0..=open.len() {
        build.close()?;
    }
    let tree = build.finish()?;
    match tree.first_equal_keys() {
        None => Ok(Placed { tree, texts: HashMap::new(), stored, unreadable, others: Vec::new() }),
        Some(path) => Err(Error::new(ErrorKind::NameCollision, format!("two entries are called {path}"))
            .help(
                "two members of an archive, or a file and a folder, have the same name; rename one of them",
            )),
    }
}

/// Finds the data of every leaf of a pytree that regrow stored. In a salvage, `salvages` is the
/// path of the checkpoint, and a lost leaf becomes unreadable instead of an error.
///
/// # Errors
/// `Corrupt` if the data is missing, or has another dtype or shape.
pub(super) fn kept(
    regrown: Regrown,
    items: Vec<Item>,
    salvages: Option<&Path>,
    notes: &mut Vec<String>,
) -> Result<Placed> {
    note_unreadable(&items, notes);
    let mut by_name: HashMap<String, Content> = HashMap::with_capacity(items.len());
    for item in items {
        if by_name.insert(item.name.clone(), item.content).is_some() {
            let what = format!("two arrays are called {:?}", item.name);
            return Err(Error::new(ErrorKind::NameCollision, what));
        }
    }
    let Regrown { mut tree, texts } = regrown;
    let mut stored = Vec::with_capacity(tree.len());
    let mut codings = Vec::with_capacity(tree.len());
    let (mut others, mut unreadable) = (Vec::new(), HashMap::new());
    let in_file =
        |content: Content| content.map_or_else(|content| content.stored, |(stored, _)| Some(stored));
    for (path, info) in tree.iter() {
        let found = by_name.remove(&*info.name);
        if !info.kind.is_array() {
            others.extend(found.and_then(in_file).map(|stored| (info.name.to_string(), stored)));
            stored.push(None);
            codings.push((Arc::from(""), None));
            continue;
        }
        match (matching(info, found), salvages) {
            (Ok(of_leaf), _) => {
                codings.push((coding(&of_leaf), chunk_shape(&of_leaf)));
                stored.push(Some(of_leaf));
            }
            (Err(why), Some(at)) if why.kind().is_damage() => {
                unreadable.insert(stored.len(), Unreadable { stored: None, why: why.in_file(at) });
                stored.push(None);
                codings.push((Arc::from(""), None));
            }
            (Err(why), _) => return Err(why.at_leaf(&path)),
        }
    }
    for (info, coding) in tree.leaves_mut().iter_mut().zip(codings) {
        (info.coding, info.chunk_shape) = coding;
    }
    if let Some(name) = by_name.keys().min() {
        notes.push(format!(
            "{} part of its pytree, such as {name:?}, and not shown",
            counted(by_name.len(), "array is not", "arrays are not")
        ));
    }
    others.extend(by_name.into_iter().filter_map(|(name, content)| Some((name, in_file(content)?))));
    others.sort_by_key(|(_, stored)| (stored.file, stored.offset_bytes));
    Ok(Placed { tree, texts, stored, unreadable, others })
}

fn matching(info: &LeafInfo, found: Option<Content>) -> Result<Stored> {
    let (mut stored, header) = match found {
        Some(Ok(found)) => found,
        Some(Err(content)) => return Err(content.why),
        None => {
            return Err(Error::corrupt(format!("the array {:?} is missing", info.name))
                .help("copy the whole checkpoint again"));
        }
    };
    let known = header.as_ref().and_then(|header| stored.record.known_as(info, header));
    match known {
        Some(record) => {
            stored.record = record;
            Ok(stored)
        }
        None => {
            let found = match &header {
                Some(header) => format!("{} {}", header.descr.text(), header.shape),
                None => "not an npy file".to_owned(),
            };
            Err(Error::corrupt("an array differs from its pytree")
                .expected(format_args!("{} {}", info.dtype, info.shape), found))
        }
    }
}

fn note_unreadable(items: &[Item], notes: &mut Vec<String>) {
    for item in items {
        if let Err(content) = &item.content {
            notes.push(format!("{:?} cannot be read: {}", item.name, content.why.what()));
        }
    }
}

fn info(name: &str, content: &Content) -> LeafInfo {
    let (kind, dtype, shape, coding, chunk_shape) = match content {
        Ok((stored, _)) => {
            let record = &stored.record;
            (record.kind.clone(), record.dtype, record.shape.clone(), coding(stored), chunk_shape(stored))
        }
        Err(content) => (
            match content.stored {
                Some(_) => LeafKind::Unknown(Arc::from(content.why.what())),
                None => LeafKind::Placeholder,
            },
            Dtype::UInt8,
            Shape::scalar(),
            Arc::from(""),
            None,
        ),
    };
    LeafInfo {
        kind,
        dtype,
        shape,
        name: Arc::from(name),
        chunk_shape,
        write_shape: None,
        sharding: None,
        coding,
    }
}

fn coding(stored: &Stored) -> Arc<str> {
    Arc::from(stored.record.coding(stored.method == Method::Deflated))
}

/// The chunk shape of an array. A deflated member whose elements are not in C order is one chunk,
/// because any part needs the whole member.
fn chunk_shape(stored: &Stored) -> Option<Shape> {
    let is_one_chunk = stored.method == Method::Deflated && !stored.record.is_c_order();
    is_one_chunk.then(|| stored.record.shape.clone())
}
