//! One pytree in its folder: `_METADATA` and the other files.
//!
//! ```text
//! _METADATA                      the tree, the form of the arrays                required
//! _strings.json                  text leaves                                     if there are any
//! _sharding                      shardings of jax.Array leaves                   a hint: may be missing
//! array_metadatas/process_<N>    implementations of typed PRNG keys
//! manifest.ocdbt d/ ocdbt.*/     arrays in a database                            or a folder for each
//! checkpoint                     msgpack: leaves with skip_deserialize           before 2024
//! ```
//!
//! Only these files are read, and no array data.

use std::collections::HashMap;
use std::sync::Arc;

use super::array_metadatas::{self, ARRAY_METADATAS_FOLDER};
use super::arrays::{Arrays, names_of_keys};
use super::bare;
use super::entry::Entry;
use super::files::{list, read_small};
use super::left::{entries_there, process_of};
use super::marker_files::{AGGREGATE_FILE, MANIFEST_FILE};
use super::metadata::{METADATA_FILE, TreeMetadata};
use super::opened::{Opened, Wanted};
use super::sharding::{SHARDING_FILE, Shardings};
use super::slot::Slot;
use super::strings::{STRINGS_FILE, Strings};
use super::{legacy, structure};
use crate::regrow;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_tree::array::Shape;
use regrow_tree::sharding::Sharding;
use regrow_tree::tree::{LeafKind, Tree};
use regrow_zarr::zarr::Missing;

pub(super) fn open(folder: &Location, wanted: Wanted) -> Result<Opened> {
    let is_gone = wanted == Wanted::Named && !folder.join(METADATA_FILE).is_file();
    let (metadata, structure, is_guessed) = match read_tree(folder) {
        Err(error) if is_gone || wanted == Wanted::Arrays && error.kind().is_damage() => {
            let (metadata, structure) = guess_tree(folder, wanted)?.ok_or(error)?;
            (metadata, structure, true)
        }
        read => {
            let (metadata, structure) = read?;
            (metadata, structure, false)
        }
    };
    let mut leaves = Leaves::new(folder, &metadata, wanted);
    // Key paths are only built for errors: a tree may be deep.
    let mut slots = Vec::with_capacity(structure.len());
    for &position in structure.leaves() {
        let entry = metadata.entries.get(position).ok_or_else(|| {
            Error::corrupt("value_metadata_tree has a leaf that tree_metadata lacks")
                .expected(format_args!("a number below {}", metadata.entries.len()), position)
                .help("they come from two saves: copy _METADATA again, or restore an earlier step")
        })?;
        let slot = leaves.leaf(entry).map_err(|error| error.at_leaf(&structure::key_path(entry)));
        slots.push(wanted.or_lost(slot)?.unwrap_or_else(|why| Slot::lost(&entry.param_name(), why)));
    }
    let tree = structure.with_leaves(slots)?;
    let mut notes = Vec::new();
    if let Some(why) = &metadata.rich_types_lost {
        notes.push(format!("tuples become lists, and named tuples dicts: {why}"));
    }
    notes.append(&mut leaves.notes);
    Ok(Opened {
        tree,
        custom_metadata: metadata.custom_metadata.clone(),
        variant: match &leaves.arrays {
            Some(arrays) => arrays.variant(),
            None => "no arrays".to_owned(),
        },
        notes,
        warnings: std::mem::take(&mut leaves.warnings),
        databases: leaves.in_database.then(|| folder.clone()).into_iter().collect(),
        is_guessed,
        lost_manifest: regrow::lost_manifest(folder, metadata.beside_regrow_json)?,
    })
}

fn read_tree(folder: &Location) -> Result<(TreeMetadata, Tree<usize>)> {
    let file = folder.join(METADATA_FILE);
    let bytes = read_small(&file)?.ok_or_else(|| missing_metadata(folder))?;
    let metadata = TreeMetadata::parse(&bytes).in_file(&file)?;
    let structure = structure::build(&metadata).in_file(&file)?;
    Ok((metadata, structure))
}

/// A tree from the names of the existing arrays and texts, if `_METADATA` is lost; `None` if there
/// are no arrays.
fn guess_tree(folder: &Location, wanted: Wanted) -> Result<Option<(TreeMetadata, Tree<usize>)>> {
    let listed = list(folder)?;
    let use_ocdbt = folder.join(MANIFEST_FILE).is_file() || listed.iter().any(|it| process_of(it).is_some());
    let (names, use_zarr3) = match use_ocdbt {
        true => {
            let (entries, _) = entries_there(folder)?;
            names_of_keys(entries.iter().map(|(key, _)| key.as_slice()))
        }
        // The document of each array shows the zarr version, so `use_zarr3` may be wrong here.
        false => (bare::names_below(folder)?.into_iter().collect(), false),
    };
    if names.is_empty() {
        return Ok(None);
    }
    let texts = match wanted.or_lost(read_strings(folder))? {
        Ok(Some(strings)) => strings.names(),
        _ => Vec::new(),
    };
    let keys = wanted.or_lost(read_key_impls(&folder.join(ARRAY_METADATAS_FOLDER)))?.unwrap_or_default();
    let known = |mut metadata: TreeMetadata| {
        for (at, entry) in metadata.entries.iter_mut().enumerate() {
            match entry.param_name() {
                _ if at >= names.len() => "string".clone_into(&mut entry.value_type),
                name if keys.contains_key(&name) => "jax.Array".clone_into(&mut entry.value_type),
                _ => {}
            }
        }
        TreeMetadata {
            use_ocdbt: Some(use_ocdbt),
            use_zarr3,
            // In a damaged checkpoint, a missing chunk counts as lost.
            store_array_data_equal_to_fill_value: !wanted.is_strict(),
            ..metadata
        }
    };
    let all = || names.iter().chain(&texts);
    let metadata = known(TreeMetadata::of_names(all()));
    let structure = structure::build(&metadata)?;
    if structure.len() == all().count() {
        return Ok(Some((metadata, structure)));
    }
    // One name is a prefix of another, so no tree of dicts can have both.
    let metadata = known(TreeMetadata::of_whole_names(all()));
    let structure = structure::build(&metadata)?;
    Ok(Some((metadata, structure)))
}

fn read_strings(folder: &Location) -> Result<Option<Strings>> {
    let file = folder.join(STRINGS_FILE);
    read_small(&file)?.map(|bytes| Strings::parse(&bytes).in_file(&file)).transpose()
}

pub(super) fn missing_metadata(folder: &Location) -> Error {
    Error::corrupt("the checkpoint has arrays but no _METADATA, so its tree is unknown")
        .in_file(folder.join(METADATA_FILE))
        .help(
            "load it into a `template`, which gives the tree; or restore an earlier step, or copy the \
             checkpoint again. Orbax does not sync its JSON files, so a power cut can lose them",
        )
}

/// The files beside `_METADATA`, each read when a leaf first needs it.
struct Leaves<'a> {
    folder: &'a Location,
    metadata: &'a TreeMetadata,
    wanted: Wanted,
    in_database: bool,
    arrays: Option<Arrays>,
    strings: Option<Strings>,
    shardings: Option<Shardings>,
    key_impls: Option<HashMap<String, String>>,
    aggregate: Option<HashMap<Vec<String>, Slot>>,
    notes: Vec<String>,
    /// Warnings about lost data other than leaves.
    warnings: Vec<String>,
}

impl<'a> Leaves<'a> {
    fn new(folder: &'a Location, metadata: &'a TreeMetadata, wanted: Wanted) -> Self {
        let has_manifest = folder.join(MANIFEST_FILE).is_file();
        let in_database = metadata.use_ocdbt.unwrap_or(has_manifest);
        Self {
            folder,
            metadata,
            wanted,
            in_database: in_database && has_manifest,
            arrays: None,
            strings: None,
            shardings: None,
            key_impls: None,
            aggregate: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn leaf(&mut self, entry: &Entry) -> Result<Slot> {
        let name = entry.param_name();
        match entry.value_type.as_str() {
            "placeholder" => Ok(Slot::absent(&name, LeafKind::Placeholder)),
            "string" if !entry.skip_deserialize => self.text(&name),
            _ if entry.skip_deserialize => self.aggregated(entry, &name),
            "jax.Array" => self.jax_array(entry, &name),
            "np.ndarray" => self.array(&name, LeafKind::NumpyArray),
            "scalar" => self.array(&name, LeafKind::Scalar),
            other => self.foreign(&name, other),
        }
    }

    /// A leaf of a user's own type handler: the array under its name, or a leaf that cannot be
    /// decoded.
    fn foreign(&mut self, name: &str, type_name: &str) -> Result<Slot> {
        let has_arrays = self.in_database || self.metadata.use_ocdbt != Some(true);
        if has_arrays && self.arrays()?.has(name) {
            return self.array(name, LeafKind::NumpyArray);
        }
        Ok(Slot::absent(name, LeafKind::Unknown(type_name.into())))
    }

    fn array(&mut self, name: &str, kind: LeafKind) -> Result<Slot> {
        self.arrays()?.leaf(name, kind)
    }

    fn arrays(&mut self) -> Result<&mut Arrays> {
        if self.arrays.is_none() {
            let missing = match self.metadata.store_array_data_equal_to_fill_value {
                true => Missing::Error,
                false => Missing::Fill,
            };
            let (folder, use_zarr3) = (self.folder, self.metadata.use_zarr3);
            self.arrays = Some(match (self.in_database, self.metadata.use_ocdbt) {
                (true, _) => Arrays::in_database(folder, use_zarr3, missing, self.wanted)?,
                (false, Some(true)) if !self.wanted.is_strict() => {
                    Arrays::in_database(folder, use_zarr3, missing, self.wanted)?
                }
                (false, Some(true)) => {
                    return Err(Error::corrupt("the database that holds the arrays has no manifest")
                        .in_file(folder.join(MANIFEST_FILE))
                        .help("copy the whole checkpoint again, with all its files"));
                }
                (false, _) => Arrays::in_folders(folder, use_zarr3, missing, self.wanted)?,
            });
        }
        match &mut self.arrays {
            Some(arrays) => Ok(arrays),
            None => Err(Error::corrupt("the checkpoint has neither manifest.ocdbt nor folders of arrays")
                .in_file(self.folder)
                .help("copy the whole checkpoint again, with all its files")),
        }
    }

    fn jax_array(&mut self, entry: &Entry, name: &str) -> Result<Slot> {
        let kind = match self.key_impl(name)? {
            Some(key_impl) => LeafKind::PrngKey(Some(key_impl.into())),
            None => LeafKind::JaxArray,
        };
        let mut slot = self.array(name, kind)?;
        slot.info.write_shape = entry.write_shape.clone().map(Shape::new).transpose()?;
        slot.info.sharding = self.sharding(name)?;
        Ok(slot)
    }

    fn text(&mut self, name: &str) -> Result<Slot> {
        let file = self.folder.join(STRINGS_FILE);
        if self.strings.is_none() {
            let strings = read_strings(self.folder)?.ok_or_else(|| {
                Error::corrupt("the file with the text leaves is missing")
                    .in_file(&file)
                    .help("copy the whole checkpoint again")
            })?;
            self.strings = Some(strings);
        }
        match self.strings.as_ref().and_then(|strings| strings.get(name)) {
            Some(text) => Ok(Slot::text(name, text)),
            None => Err(Error::corrupt("the text of a leaf is missing").in_file(file)),
        }
    }

    fn sharding(&mut self, name: &str) -> Result<Option<Arc<Sharding>>> {
        if self.shardings.is_none() {
            let file = self.folder.join(SHARDING_FILE);
            let read = self.wanted.or_lost(read_small(&file))?.unwrap_or_else(|why| {
                self.warnings.push(format!("shardings are unknown: {why}"));
                None
            });
            let parsed = match read {
                None => Shardings::default(),
                Some(bytes) => Shardings::parse(&bytes).unwrap_or_else(|error| {
                    // Only a note: no data depends on shardings.
                    self.notes.push(format!(
                        "{SHARDING_FILE} cannot be read, so shardings are unknown: {}",
                        error.what()
                    ));
                    Shardings::default()
                }),
            };
            self.shardings = Some(parsed);
        }
        Ok(self.shardings.as_mut().and_then(|shardings| shardings.get(name)))
    }

    fn key_impl(&mut self, name: &str) -> Result<Option<&str>> {
        if self.key_impls.is_none() {
            let read = read_key_impls(&self.folder.join(ARRAY_METADATAS_FOLDER));
            // Without this file PRNG keys load as plain arrays.
            self.key_impls = Some(self.wanted.or_lost(read)?.unwrap_or_else(|why| {
                self.warnings.push(format!("PRNG keys become arrays: {why}"));
                HashMap::new()
            }));
        }
        Ok(self.key_impls.as_ref().and_then(|impls| impls.get(name)).map(String::as_str))
    }

    fn aggregated(&mut self, entry: &Entry, name: &str) -> Result<Slot> {
        let file = self.folder.join(AGGREGATE_FILE);
        if self.aggregate.is_none() {
            let (tree, _) = legacy::read_aggregate(self.folder, self.wanted)?;
            let texts = |path: regrow_tree::tree::KeyPath| {
                path.keys().iter().map(|key| key.text().into_owned()).collect()
            };
            let paths: Vec<Vec<String>> = tree.paths().into_iter().map(texts).collect();
            self.aggregate = Some(paths.into_iter().zip(tree.into_leaves()).collect());
        }
        let keys: Vec<String> = entry.keys.iter().map(|(_, key)| key.clone()).collect();
        let found = self.aggregate.as_mut().and_then(|leaves| leaves.remove(&keys));
        let mut slot = found.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "the msgpack file lacks the value of a leaf").in_file(file)
        })?;
        slot.info.name = name.into();
        if entry.value_type == "jax.Array" && slot.info.kind == LeafKind::NumpyArray {
            slot.info.kind = LeafKind::JaxArray;
        }
        Ok(slot)
    }
}

/// The implementations of typed PRNG keys by leaf name, from the file of the first process: every
/// process writes all leaves.
fn read_key_impls(folder: &Location) -> Result<HashMap<String, String>> {
    let first = match folder.has_listings() {
        true if !folder.is_folder() => None,
        true => {
            let number = |name: &str| name.strip_prefix("process_")?.parse::<u64>().ok();
            list(folder)?.into_iter().filter_map(|entry| number(&entry.name)).min()
        }
        false => Some(0),
    };
    let Some(first) = first else { return Ok(HashMap::new()) };
    let file = folder.join(format!("process_{first}"));
    let Some(bytes) = read_small(&file)? else { return Ok(HashMap::new()) };
    let leaves = array_metadatas::parse(&bytes).map_err(|error| {
        error.in_file(&file).help("without the folder array_metadatas PRNG keys load as uint32 arrays")
    })?;
    let with_impl = leaves.into_iter().filter_map(|leaf| {
        let key_impl = leaf.random_key_impl()?.to_owned();
        Some((leaf.param_name, key_impl))
    });
    Ok(with_impl.collect())
}
