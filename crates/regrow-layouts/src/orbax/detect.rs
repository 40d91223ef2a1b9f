//! Recognises the layouts of Orbax' history by names and first bytes.
//!
//! ```text
//! regrow.items.json                      items, or one JSON item
//! _METADATA                              a pytree
//! orbax.checkpoint | handlers of items   items
//! pytreedef.json                         JAX' own tree
//! manifest.ocdbt, no sign of _METADATA   arrays in a database
//! checkpoint | metadata | …              one item, for example msgpack from before _METADATA
//! manifest.ocdbt, signs of _METADATA     a damaged pytree
//! _CHECKPOINT_METADATA | commit_success.txt   items
//! 100/ 200/ | step_100/ …                steps
//! default/_METADATA | state/checkpoint …  items without a document
//! checkpoint_100                         flax files
//! array_store/                           JAX' own, without its tree: an error
//! params.w/.zarray …                     arrays, and nothing else
//! d/                                     a database without its manifest: an error
//! *.orbax-checkpoint-tmp                 never committed: an error
//! ```
//!
//! The first match applies: `TESTS` has the order. In a storage without listings the tests end
//! after `commit_success.txt`. A location in a folder with `.orbax-checkpoint-tmp` in its name is
//! an error before all tests.

use std::cell::OnceCell;

use super::checkpoint_metadata::{CHECKPOINT_METADATA_FILE, CheckpointMetadata, ItemHandlers};
use super::files::{Listed, list, read_small, some_names};
use super::items::{self, Family, Item};
use super::marker_files::{AGGREGATE_FILE, COMMIT_SUCCESS_FILE, V1_MARKER_FILE};
use super::metadata::METADATA_FILE;
use super::opened::Wanted;
use super::steps::{self, Steps, TMP_MARK};
use super::{bare, jax_tree, left, legacy};
use crate::items_record::{self, ItemKind, ItemsRecord};
use crate::{flax, regrow};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::system::not_found;
use regrow_storage::Entry;
use regrow_storage::location::Location;

/// The names that Orbax gives to items by default.
const ITEMS: [&str; 3] = ["default", "state", "pytree"];

/// Files that only a whole checkpoint has, not an item.
const OF_A_WHOLE: [&str; 3] = [CHECKPOINT_METADATA_FILE, V1_MARKER_FILE, regrow::manifest::FILE_NAME];

/// The kind of checkpoint at a location.
#[derive(Debug)]
pub(super) enum Found {
    One(Item, About),
    Items(Vec<Listed>, About),
    Steps(Steps),
    BareArrays,
    /// A checkpoint of JAX' array serialization: its own tree, and a database.
    JaxTree,
    /// Flax' files, one for each step. The layout flax reads them. Flax also saves Orbax folders,
    /// so both layouts look here.
    FlaxSteps,
    MsgpackFile,
    Nothing(Vec<Listed>),
}

/// The contents of a checkpoint's documents.
#[derive(Debug, Default)]
pub(super) struct About {
    pub said: CheckpointMetadata,
    /// regrow's record of the items.
    pub record: Option<ItemsRecord>,
    /// The errors of damaged documents, if the checkpoint is opened without them.
    pub lost: Vec<Error>,
}

/// Finds the kind of checkpoint at an existing location.
///
/// # Errors
/// `Uncommitted` if the location has only temporary files; `Corrupt` for an unreadable
/// `_CHECKPOINT_METADATA`, unless the open may leave out parts; errors of the storage.
pub(super) fn detect(at: &Location, wanted: Wanted) -> Result<Found> {
    #[cfg(test)]
    tests::CALLS.set(tests::CALLS.get() + 1);
    if steps::is_temporary(at) {
        return Err(steps::uncommitted(at));
    }
    let found = at.look()?.ok_or_else(|| Error::io("cannot open", at, not_found()))?;
    if !found.is_folder() {
        let is_msgpack = found.is_file() && legacy::is_msgpack_file(at);
        return Ok(if is_msgpack { Found::MsgpackFile } else { Found::Nothing(Vec::new()) });
    }
    let mut listed = list(at)?;
    let about = about(at, &listed, wanted)?;
    if !at.has_listings() {
        listed.extend(named_items(at, &about)?);
    }
    let folder = Folder { at, listed, about, pytrees: OnceCell::new() };
    for test in TESTS {
        if let Some(holds) = test(&folder)? {
            return Ok(folder.found(holds));
        }
    }
    Ok(folder.found(Holds::Nothing))
}

/// The result of one test: the kind of checkpoint in a folder.
enum Holds {
    One(Item),
    Items,
    Steps(Steps),
    BareArrays,
    JaxTree,
    FlaxSteps,
    Nothing,
}

/// Returns the kind of checkpoint in a folder; `None` if the next test decides.
type Test = fn(&Folder<'_>) -> Result<Option<Holds>>;

/// The tests in order. The first test that returns a kind decides.
const TESTS: [Test; 15] = [
    recorded_items,
    described_pytree,
    described_items,
    jax_tree_file,
    database,
    known_item,
    marked_items,
    nothing_without_listings,
    folder_of_steps,
    undescribed_items,
    flax_files,
    lost_jax_tree,
    bare_arrays,
    lost_manifest,
    uncommitted,
];

/// A folder to test.
struct Folder<'a> {
    at: &'a Location,
    listed: Vec<Listed>,
    about: About,
    /// The committed folders with a `_METADATA`; set by the first call of `pytrees`.
    pytrees: OnceCell<Vec<String>>,
}

impl Folder<'_> {
    fn found(self, holds: Holds) -> Found {
        match holds {
            Holds::One(item) => Found::One(item, self.about),
            Holds::Items => Found::Items(self.listed, self.about),
            Holds::Steps(steps) => Found::Steps(steps),
            Holds::BareArrays => Found::BareArrays,
            Holds::JaxTree => Found::JaxTree,
            Holds::FlaxSteps => Found::FlaxSteps,
            Holds::Nothing => Found::Nothing(self.listed),
        }
    }

    fn has_file(&self, wanted: &str) -> bool {
        has_file(&self.listed, wanted)
    }

    fn handler(&self) -> Option<&str> {
        match &self.about.said.item_handlers {
            ItemHandlers::One(handler) => Some(handler),
            _ => None,
        }
    }

    fn has_foreign_handler(&self) -> bool {
        self.handler().is_some_and(|handler| Family::of(handler) == Family::Unknown)
    }

    fn is_pytree(&self, entry: &Listed) -> bool {
        entry.is_dir && self.at.join(&entry.name).join(METADATA_FILE).is_file()
    }

    /// Whether a subfolder has the default name and the files of an item.
    fn has_named_item(&self) -> bool {
        let is_aggregate = |entry: &Listed| {
            entry.is_dir && legacy::is_msgpack_file(&self.at.join(&entry.name).join(AGGREGATE_FILE))
        };
        let is_item = |entry: &Listed| {
            ITEMS.contains(&entry.name.as_str()) && (self.is_pytree(entry) || is_aggregate(entry))
        };
        self.listed.iter().any(is_item)
    }

    fn pytrees(&self) -> &[String] {
        self.pytrees.get_or_init(|| {
            let committed = self.listed.iter().filter(|entry| !entry.name.contains(TMP_MARK));
            committed.filter(|entry| self.is_pytree(entry)).map(|entry| entry.name.clone()).collect()
        })
    }
}

fn recorded_items(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let Some(record) = &folder.about.record else { return Ok(None) };
    Ok(Some(match record.item("") {
        Some(item) if item.kind == ItemKind::Json => {
            Holds::One(Item::Json(item.file.clone().unwrap_or_default()))
        }
        _ => Holds::Items,
    }))
}

fn described_pytree(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let is_one = folder.has_file(METADATA_FILE)
        && (!folder.has_foreign_handler() || items::is_pytree(folder.at, &folder.listed)?);
    Ok(is_one.then_some(Holds::One(Item::Pytree)))
}

fn described_items(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let are_named = matches!(folder.about.said.item_handlers, ItemHandlers::Many(_));
    let are_there = folder.has_file(V1_MARKER_FILE) || folder.has_foreign_handler() || are_named;
    Ok(are_there.then_some(Holds::Items))
}

fn jax_tree_file(folder: &Folder<'_>) -> Result<Option<Holds>> {
    Ok(folder.has_file(jax_tree::TREE_FILE).then_some(Holds::JaxTree))
}

fn database(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let is_one = folder.handler().is_none() && bare::is_database(folder.at, &folder.listed);
    Ok(is_one.then_some(Holds::BareArrays))
}

fn known_item(folder: &Folder<'_>) -> Result<Option<Holds>> {
    Ok(match Item::of(&folder.listed, "", folder.handler()) {
        Item::Files(_) => None,
        item => Some(Holds::One(item)),
    })
}

fn marked_items(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let are_marked = folder.has_file(CHECKPOINT_METADATA_FILE) || folder.has_file(COMMIT_SUCCESS_FILE);
    Ok(are_marked.then_some(Holds::Items))
}

/// The tests after this test need a listing.
fn nothing_without_listings(folder: &Folder<'_>) -> Result<Option<Holds>> {
    Ok((!folder.at.has_listings()).then_some(Holds::Nothing))
}

fn folder_of_steps(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let steps = steps::find(folder.at, &folder.listed)?;
    let are_steps = !steps.committed.is_empty() && !folder.has_named_item();
    Ok(are_steps.then_some(Holds::Steps(steps)))
}

/// Recognises items without a document. A pytree that is a whole checkpoint is not an item.
fn undescribed_items(folder: &Folder<'_>) -> Result<Option<Holds>> {
    let are_items =
        folder.has_named_item() || folder.pytrees().iter().any(|name| !stands_alone(&folder.at.join(name)));
    Ok(are_items.then_some(Holds::Items))
}

fn flax_files(folder: &Folder<'_>) -> Result<Option<Holds>> {
    Ok(flax::steps::are_in(folder.at)?.then_some(Holds::FlaxSteps))
}

fn lost_jax_tree(folder: &Folder<'_>) -> Result<Option<Holds>> {
    match jax_tree::has_lost_its_tree(folder.at) {
        true => Err(jax_tree::lost_its_tree(folder.at)),
        false => Ok(None),
    }
}

fn bare_arrays(folder: &Folder<'_>) -> Result<Option<Holds>> {
    Ok(bare::are_in(folder.at)?.then_some(Holds::BareArrays))
}

fn lost_manifest(folder: &Folder<'_>) -> Result<Option<Holds>> {
    match left::lost_manifest(folder.at, &folder.listed)? {
        Some(lost) => Err(lost),
        None => Ok(None),
    }
}

fn uncommitted(folder: &Folder<'_>) -> Result<Option<Holds>> {
    match folder.listed.iter().find(|entry| entry.name.contains(TMP_MARK)) {
        Some(temporary) if folder.pytrees().is_empty() => {
            Err(steps::uncommitted(&folder.at.join(&temporary.name)))
        }
        _ => Ok(None),
    }
}

fn has_file(listed: &[Listed], wanted: &str) -> bool {
    listed.iter().any(|entry| !entry.is_dir && entry.name == wanted)
}

/// The folders of the items that the metadata list, or that have Orbax' default names, for storages
/// without listings.
fn named_items(at: &Location, about: &About) -> Result<Vec<Listed>> {
    let mut names = ITEMS.to_vec();
    let recorded = about.record.iter().flat_map(|record| &record.items);
    names.extend(recorded.map(|item| item.name.as_str()).filter(|name| !name.is_empty()));
    if let ItemHandlers::Many(handlers) = &about.said.item_handlers {
        // A name must not lead out of the folder.
        let named = handlers.iter().map(|(name, _)| name.as_str());
        names.extend(named.filter(|name| !name.contains('/') && !matches!(*name, "" | "." | "..")));
    }
    names.sort_unstable();
    names.dedup();
    let found = at.those_there(&names)?;
    let listed =
        |entry: Entry| Some(Listed { name: entry.name.into_string().ok()?, is_dir: true, is_link: false });
    Ok(found.into_iter().filter(Entry::is_folder).filter_map(listed).collect())
}

/// Whether a folder is a whole checkpoint. Such a folder is not an item of the folder above.
fn stands_alone(folder: &Location) -> bool {
    OF_A_WHOLE.iter().any(|file| folder.join(file).is_file())
}

/// The contents of the documents; empty if there are none. If the record of the items can be read,
/// `_CHECKPOINT_METADATA` may be lost.
fn about(folder: &Location, listed: &[Listed], wanted: Wanted) -> Result<About> {
    let record = match has_file(listed, items_record::FILE_NAME) {
        true => wanted.or_lost(ItemsRecord::of(folder))?.unwrap_or_default(),
        false => None,
    };
    let file = folder.join(CHECKPOINT_METADATA_FILE);
    let read = || match read_small(&file)? {
        None if record.as_ref().is_some_and(|record| record.file(CHECKPOINT_METADATA_FILE).is_some()) => {
            Err(Error::corrupt("the metadata of the checkpoint is missing").in_file(&file))
        }
        None => Ok(CheckpointMetadata::default()),
        Some(bytes) => {
            if let Some(record) = &record {
                record.check(folder, CHECKPOINT_METADATA_FILE, &bytes)?;
            }
            CheckpointMetadata::parse(&bytes).in_file(&file)
        }
    };
    let (said, lost) = match wanted.or_lost(read()) {
        Err(error) if record.is_some() && error.kind().is_of_content() => {
            (CheckpointMetadata::default(), vec![error])
        }
        read => (read?.unwrap_or_default(), Vec::new()),
    };
    Ok(About { said, record, lost })
}

pub(super) fn not_a_checkpoint(at: &Location, listed: &[Listed]) -> Error {
    Error::new(ErrorKind::NotACheckpoint, "this is not an Orbax checkpoint")
        .in_file(at)
        .expected(
            "_METADATA, _CHECKPOINT_METADATA, orbax.checkpoint, a file checkpoint, or folders that are items, steps or zarr arrays",
            some_names(listed),
        )
        .help("give the folder of a checkpoint, or the folder of its steps")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use regrow::engine::save_with;
    use regrow_layouts::options::{Layout, SaveOptions};
    use regrow_storage::location::Location;

    use crate::orbax::Orbax;
    use crate::{Format, OpenOptions};

    thread_local! {
        /// Calls of `detect` in this thread.
        pub(super) static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn an_open_detects_each_folder_once() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::from_name("orbax", serde_json::json!({})).unwrap();
        let options = SaveOptions { layout, ..SaveOptions::default() };
        for path in ["one", "steps/7"] {
            save_with(root.path().join(path), &vec![1.0f32, 2.0], &options).unwrap();
        }
        for (path, folders) in [("one", 1), ("steps", 2)] {
            CALLS.set(0);
            let at = Location::local(root.path().join(path));
            let detected = Orbax.detect(&at, &OpenOptions::default()).unwrap().unwrap();
            detected(&at, &OpenOptions::default()).unwrap();
            assert_eq!(CALLS.get(), folders, "{path}");
        }
    }
}
