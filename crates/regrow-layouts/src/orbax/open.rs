//! Opening: from a location to a tree of leaves.
//!
//! A folder of steps leads to a step, a step to its items, items to one tree:
//!
//! ```text
//! root ── step ── default                          one item: its tree
//!             └── state, cfg, rng, …               several: a dict of items by name; metrics go to the description
//! ```

use super::Orbax;
use super::checkpoint_metadata::{CHECKPOINT_METADATA_FILE, ItemHandlers, OF_THE_WHOLE};
use super::composite::Composite;
use super::detect::{About, Found, detect, not_a_checkpoint};
use super::files::{Listed, read_small, some_names};
use super::items::{self, Item, Looked};
use super::items_reader::ItemsReader;
use super::marker_files::{COMMIT_SUCCESS_FILE, V1_MARKER_FILE};
use super::opened::{Opened, Wanted};
use super::own_files::noted_files;
use super::reader::OrbaxReader;
use super::slot::{Slot, Source, graft};
use super::steps::{self, Step, Steps, TMP_MARK};
use super::{bare, jax_tree, json_text, legacy};
use crate::item_files::Place;
use crate::item_folder::ItemFolder;
use crate::items_record::{self, ItemsRecord};
use crate::options::OpenOptions;
use crate::regrow::{self, Regrow};
use crate::{Description, Format, Reader, formats};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::{counted, printable};
use regrow_storage::location::{Location, StepFolder};
use regrow_tree::tree::{Key, LeafKind, NodeKind, Tree, TreeBuilder};

const COPY_AGAIN: &str =
    "open another step, or copy the whole checkpoint again (`regrow repair --from COPY`)";

const RECORD_LOST: &str = "regrow.items.json is missing: the items are read without their checksums";

/// While this file exists, the item that the file names counts as deleted (v1).
const DELETION_FILE: &str = "_CHECKPOINT_DELETION";

/// A tree, and the databases that have its arrays.
struct Parts {
    tree: Tree<Slot>,
    databases: Vec<Location>,
    lost: Vec<Location>,
    is_guessed: bool,
}

/// The opened checkpoint: either all of it is in Orbax' layout, or each item has its own reader.
enum Whole {
    Own(Parts),
    Items(Vec<(String, Box<dyn Reader>)>),
    OneItem(Box<dyn Reader>),
}

type Opening = (Whole, Option<ItemFolder>);

/// Opens the checkpoint at a location, whose kind is `found`.
///
/// # Errors
/// As [`Format::open`](crate::Format::open); `NotACheckpoint`, `Uncommitted`; `NotFound`
/// for a step or an item that is not there.
pub(super) fn open(found: Found, at: &Location, options: &OpenOptions) -> Result<Box<dyn Reader>> {
    let mut description = Description { layout: "orbax".to_owned(), ..Description::default() };
    let mut step_folder = None;
    let (whole, items) = match found {
        Found::Steps(steps) => {
            let step = steps.pick(options.step, at)?;
            describe_steps(&mut description, &steps, step);
            let folder = step_folder.insert(StepFolder::at(&step.folder));
            let reading = step.folder.for_reading()?.location;
            if Regrow.recognise(&reading)? {
                // The reader of the default layout also checks checksums, which Orbax' files lack.
                let own = OpenOptions { step: None, ..options.clone() };
                match regrow::open_step(&reading, &own, description.clone(), folder.clone()) {
                    // The salvage goes on with Orbax' documents, which have almost the same
                    // information.
                    Err(error) if options.salvage && error.kind().is_damage() => {}
                    opened => return opened,
                }
            }
            let found = detect(&reading, Wanted::of(options));
            let whole = found.and_then(|found| open_one(&reading, options, &mut description, found));
            let whole = whole.map_err(|error| folder.blame(error))?;
            if description.custom_metadata.is_none() {
                description.custom_metadata = steps::root_metadata(at)?;
            }
            whole
        }
        found => {
            if let Some(step) = options.step {
                let own = at.name().to_str().and_then(steps::step_number);
                if own != Some(step) {
                    return Err(Error::new(ErrorKind::NotFound, format!("step {step} does not exist"))
                        .in_file(at)
                        .help("this is one checkpoint, not a folder of steps: leave the step out"));
                }
            }
            open_one(at, options, &mut description, found)?
        }
    };
    let reader: Box<dyn Reader> = match whole {
        Whole::Own(parts) => Box::new(reader_of(parts, description, step_folder)),
        Whole::Items(items) => Box::new(Composite::of_items(items, description, step_folder)?),
        Whole::OneItem(item) => Box::new(Composite::of_one(item, description, step_folder)),
    };
    Ok(match items {
        None => reader,
        Some(items) => Box::new(ItemsReader { reader, items }),
    })
}

fn reader_of(parts: Parts, mut description: Description, step_folder: Option<StepFolder>) -> OrbaxReader {
    let mut sources = Vec::with_capacity(parts.tree.len());
    let tree = parts.tree.map(|slot| {
        sources.push(slot.source);
        slot.info
    });
    if sources.iter().any(|source| matches!(source, Source::Zarr(_))) {
        description.notes.push("array data has no checksums: regrow may not detect damage of it".to_owned());
    }
    let Parts { databases, lost, is_guessed, .. } = parts;
    OrbaxReader { description, tree, sources, databases, lost, step_folder, is_guessed }
}

fn describe_steps(description: &mut Description, steps: &Steps, step: &Step) {
    description.step = Some(step.number);
    description.steps = steps.committed.iter().map(|step| step.number).collect();
    description.notes.extend(steps.notes.iter().cloned());
    let unfinished = steps.uncommitted.len();
    if unfinished > 0 {
        let names = steps.uncommitted.join(", ");
        description.notes.push(format!(
            "{}: {names}",
            counted(unfinished, "step was never committed", "steps were never committed")
        ));
    }
}

fn open_one(
    at: &Location,
    options: &OpenOptions,
    description: &mut Description,
    found: Found,
) -> Result<Opening> {
    let wanted = Wanted::of(options);
    let own =
        |opened: Opened, description: &mut Description| Ok((Whole::Own(take(opened, description)), None));
    match found {
        Found::One(item, about) => {
            refuse_item(options, at)?;
            let parts = take(open_item(&item, at, "", &about, wanted)?, description);
            note_custom(description, &about);
            let items = about.record.is_some().then(|| folder_of(at, about, description, options));
            Ok((Whole::Own(parts), items))
        }
        Found::Items(listed, about) => {
            let whole = open_items(at, options, description, &listed, &about)?;
            note_custom(description, &about);
            let items = folder_of(at, about, description, options);
            Ok((whole, Some(items)))
        }
        Found::BareArrays => {
            refuse_item(options, at)?;
            own(bare::open(at, wanted)?, description)
        }
        Found::JaxTree => {
            refuse_item(options, at)?;
            own(jax_tree::open(at, wanted)?, description)
        }
        Found::MsgpackFile => {
            refuse_item(options, at)?;
            own(legacy::open_aggregate(&at.parent(), wanted)?, description)
        }
        Found::Steps(_) | Found::FlaxSteps => {
            Err(Error::new(ErrorKind::NotACheckpoint, "this step holds steps of its own").in_file(at))
        }
        Found::Nothing(listed) => Err(not_a_checkpoint(at, &listed)),
    }
}

fn folder_of(
    at: &Location,
    about: About,
    description: &mut Description,
    options: &OpenOptions,
) -> ItemFolder {
    let About { record, mut lost, .. } = about;
    description.warnings.extend(lost.iter().map(|error| error.what().to_owned()));
    for (item, why) in &description.lost_items {
        lost.push(Error::corrupt(why.as_str()).in_file(at.join(item)).help(COPY_AGAIN));
    }
    let is_whole = options.item.is_none();
    ItemFolder { at: at.clone(), items: description.items.clone(), record, is_whole, lost }
}

fn open_item(item: &Item, at: &Location, name: &str, about: &About, wanted: Wanted) -> Result<Opened> {
    let folder = if name.is_empty() { at.clone() } else { at.join(name) };
    match item {
        Item::Json(file) | Item::Metrics(file) => check_recorded(&folder, name, file, about)?,
        _ => {}
    }
    item.open(&folder, wanted)
}

/// Checks a small file of an item against the record.
fn check_recorded(folder: &Location, name: &str, file: &str, about: &About) -> Result<()> {
    let Some(record) = &about.record else { return Ok(()) };
    let path = if name.is_empty() { file.to_owned() } else { format!("{name}/{file}") };
    let at = folder.join(file);
    match read_small(&at)? {
        // The caller opens the file next, and reports that the file is missing.
        None => Ok(()),
        Some(bytes) => record.check(folder, &path, &bytes).map_err(|error| error.of_file(&at)),
    }
}

/// The folders of a checkpoint, and the items in them.
struct Items<'a> {
    at: &'a Location,
    options: &'a OpenOptions,
    listed: &'a [Listed],
    documents: &'a About,
    deleted: Option<String>,
    found: Vec<(String, Item)>,
}

/// Opens all items of a checkpoint as one tree, or the one that the caller asks for.
fn open_items(
    at: &Location,
    options: &OpenOptions,
    description: &mut Description,
    listed: &[Listed],
    documents: &About,
) -> Result<Whole> {
    let mut items = Items { at, options, listed, documents, deleted: None, found: Vec::new() };
    if items.has_file(DELETION_FILE) {
        items.deleted = deleted_item(at)?;
    }
    items.classify(description)?;
    items.note_losses(description)?;
    let has_files = items.has_files_of_a_handler(description)?;
    items.read_metrics(description)?;
    if let Some(asked) = &options.item {
        return items.open_asked(asked, description);
    }
    if items.found.iter().any(|(_, item)| matches!(item, Item::Layout(_))) {
        return open_mixed(at, &items.found, options, description, documents);
    }
    let is_data = |(_, item): &&(String, Item)| !matches!(item, Item::Metrics(_) | Item::Files(_));
    let data: Vec<_> = items.found.iter().filter(is_data).collect();
    Ok(Whole::Own(match data.as_slice() {
        [] => items.without_data(has_files, description)?,
        [(name, item)] => items.open_or_lost(name, item, description)?,
        data => items.open_data(data, description)?,
    }))
}

impl Items<'_> {
    fn has_file(&self, name: &str) -> bool {
        self.listed.iter().any(|entry| !entry.is_dir && entry.name == name)
    }

    fn record(&self) -> Option<&ItemsRecord> {
        self.documents.record.as_ref()
    }

    fn handlers(&self) -> &ItemHandlers {
        &self.documents.said.item_handlers
    }

    fn is_deleted(&self, name: &str) -> bool {
        self.deleted.as_deref() == Some(name)
    }

    fn classify(&mut self, description: &mut Description) -> Result<()> {
        // If one handler wrote directly into the checkpoint's folder, the subfolders are not items.
        if matches!(self.handlers(), ItemHandlers::One(_)) && self.record().is_none() {
            return Ok(());
        }
        for entry in self.listed.iter().filter(|entry| entry.is_dir) {
            let name = &entry.name;
            if name.contains(TMP_MARK) && !entry.is_link {
                description.notes.push(format!("the item {name} was never committed"));
            } else if self.is_deleted(name) {
                description.notes.push(format!("the item {name} is being deleted"));
            } else {
                let handler = self.handlers().of(name);
                let Looked { item, lost } = items::look(&self.at.join(name), name, handler, self.record())?;
                if let Some(file) = lost {
                    let why = format!("the item {name} has lost its file {}", printable(&file));
                    description.lost_items.push((name.clone(), why));
                }
                description.items.push((name.clone(), item.kind()));
                self.found.push((name.clone(), item));
            }
        }
        Ok(())
    }

    fn expected(&self) -> Vec<&String> {
        match (self.record(), self.handlers()) {
            (Some(record), _) => record.items.iter().map(|item| &item.name).collect(),
            (None, ItemHandlers::Many(handlers)) => handlers.iter().map(|(name, _)| name).collect(),
            _ => Vec::new(),
        }
    }

    fn note_losses(&self, description: &mut Description) -> Result<()> {
        if self.has_file(V1_MARKER_FILE) && !self.has_file(CHECKPOINT_METADATA_FILE) {
            description.notes.push(format!(
                "{CHECKPOINT_METADATA_FILE} is missing: Orbax' v1 API needs it, regrow does not"
            ));
        }
        let is_there = |name: &str| self.listed.iter().any(|entry| entry.is_dir && entry.name == name);
        for name in self.expected().into_iter().filter(|name| !name.is_empty() && !is_there(name)) {
            if !self.is_deleted(name) {
                let why = format!("the item {name} is listed but its folder is missing");
                description.lost_items.push((name.clone(), why));
            }
        }
        if self.record().is_none() && self.has_file(COMMIT_SUCCESS_FILE) && !self.options.salvage {
            let marker = read_small(&self.at.join(COMMIT_SUCCESS_FILE))?.unwrap_or_default();
            if items_record::is_noted(&marker) {
                description.lost_items.push((items_record::FILE_NAME.to_owned(), RECORD_LOST.to_owned()));
            }
        }
        description.warnings.extend(description.lost_items.iter().map(|(_, why)| why.clone()));
        Ok(())
    }

    /// Whether the checkpoint is itself one item, with files of a handler that regrow does not
    /// read.
    fn has_files_of_a_handler(&self, description: &mut Description) -> Result<bool> {
        match self.handlers() {
            _ if self.record().is_some_and(|record| record.item("").is_none()) => Ok(false),
            ItemHandlers::Many(_) => Ok(false),
            handlers => files_of_handler(self.at, self.listed, handlers, description),
        }
    }

    fn read_metrics(&self, description: &mut Description) -> Result<()> {
        for (name, item) in &self.found {
            if let (Item::Metrics(file), None) = (item, &description.metrics) {
                let folder = self.at.join(name);
                let read = check_recorded(&folder, name, file, self.documents)
                    .and_then(|()| items::read_metrics(&folder, file));
                match or_lost(read, Wanted::of(self.options), self.found.len())? {
                    Ok(metrics) => description.metrics = Some(metrics),
                    // The checkpoint's own metadata has the metrics, too.
                    Err(_) if !self.documents.said.metrics.is_empty() => {}
                    Err(why) => {
                        description.warnings.push(format!("the metrics are lost: {}", why.what()));
                    }
                }
            }
        }
        Ok(())
    }

    fn open_asked(&self, asked: &String, description: &mut Description) -> Result<Whole> {
        let Some((name, item)) = self.found.iter().find(|(name, _)| name == asked) else {
            if self.expected().contains(&asked) && !self.is_deleted(asked) {
                return Err(missing_item(self.at, asked));
            }
            let names: Vec<&str> = self.found.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Error::new(ErrorKind::NotFound, format!("there is no item {asked:?}"))
                .in_file(self.at)
                .help(format!("the items are: {}", names.join(", "))));
        };
        if let Item::Layout(place) = item {
            let item = self.at.join(name);
            return Ok(Whole::OneItem(open_layout(&item, name, *place, self.options, self.documents)?));
        }
        let opened = open_item(item, self.at, name, self.documents, Wanted::of(self.options))?;
        Ok(Whole::Own(take(opened, description)))
    }

    /// An empty tree for a checkpoint that has no tree but other content: metrics, items of files,
    /// or files of a handler.
    fn without_data(&self, has_files: bool, description: &mut Description) -> Result<Parts> {
        let has_metrics = self.found.iter().any(|(_, item)| matches!(item, Item::Metrics(_)));
        match self.handlers() {
            ItemHandlers::Many(handlers) if self.found.is_empty() && !handlers.is_empty() => {
                return Err(Error::corrupt("the items of this checkpoint are missing")
                    .in_file(self.at)
                    .expected(
                        format_args!("the folders that {CHECKPOINT_METADATA_FILE} lists"),
                        some_names(self.listed),
                    )
                    .help("copy the whole checkpoint again"));
            }
            ItemHandlers::Many(_) if !self.found.is_empty() => {}
            _ if has_metrics => {}
            _ if has_files => "files".clone_into(&mut description.variant),
            _ => return Err(not_a_checkpoint(self.at, self.listed)),
        }
        Ok(Parts { tree: dict_of(Vec::new())?, databases: Vec::new(), lost: Vec::new(), is_guessed: false })
    }

    /// Opens an item. For a lost item, returns a placeholder leaf if there are other items or the
    /// checkpoint is salvaged.
    fn open_or_lost(&self, name: &str, item: &Item, description: &mut Description) -> Result<Parts> {
        let wanted = Wanted::of(self.options);
        let opened = open_item(item, self.at, name, self.documents, wanted);
        let opened = or_lost(opened, wanted, self.found.len())?
            .unwrap_or_else(|why| lost_item(name, why, wanted, description));
        Ok(take(opened, description))
    }

    /// Opens several items as one dict. The user's metadata of each item is under its name.
    fn open_data(&self, data: &[&(String, Item)], description: &mut Description) -> Result<Parts> {
        let mut custom = serde_json::Map::new();
        let (mut trees, mut databases, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_guessed = false;
        for (name, item) in data {
            let parts = self.open_or_lost(name, item, description)?;
            note_item(&mut custom, name, description);
            trees.push((name.clone(), parts.tree));
            databases.extend(parts.databases);
            lost.extend(parts.lost);
            is_guessed |= parts.is_guessed;
        }
        description.custom_metadata = (!custom.is_empty()).then_some(custom.into());
        Ok(Parts { tree: dict_of(trees)?, databases, lost, is_guessed })
    }
}

/// Notes the files that a handler has written directly into the checkpoint's folder, and that
/// regrow does not read. Returns `false` if the checkpoint has no such handler.
///
/// # Errors
/// `Corrupt` if all of its files are gone.
fn files_of_handler(
    at: &Location,
    listed: &[Listed],
    handlers: &ItemHandlers,
    description: &mut Description,
) -> Result<bool> {
    let noted = noted_files(at);
    let handler = match (handlers, &noted) {
        (ItemHandlers::One(handler), _) => handler.as_str(),
        (_, Some(_)) => "a handler without a name",
        _ => return Ok(false),
    };
    let is_own = |entry: &&Listed| !OF_THE_WHOLE.contains(&entry.name.as_str());
    let own: Vec<Listed> = listed.iter().filter(is_own).cloned().collect();
    if own.is_empty() && noted.as_ref().is_none_or(|noted| !noted.is_empty()) {
        return Err(Error::corrupt("the files of this checkpoint are missing")
            .in_file(at)
            .expected(format_args!("the files of {handler}"), some_names(listed))
            .help("copy the whole checkpoint again"));
    }
    let is_lost = |name: &&String| at.has_listings() && !own.iter().any(|entry| entry.name == **name);
    for name in noted.iter().flatten().filter(is_lost) {
        description.warnings.push(format!("{name} is listed but missing"));
    }
    description.notes.push(format!("files of {handler}, which reads them: {}", some_names(&own)));
    Ok(true)
}

fn open_mixed(
    at: &Location,
    found: &[(String, Item)],
    options: &OpenOptions,
    description: &mut Description,
    documents: &About,
) -> Result<Whole> {
    let wanted = Wanted::of(options);
    let mut readers: Vec<(String, Box<dyn Reader>)> = Vec::new();
    let mut custom = serde_json::Map::new();
    for (name, item) in found {
        let item_at = at.join(name);
        let own = |opened: Opened| -> Box<dyn Reader> {
            let mut own = Description { layout: "orbax".to_owned(), ..Description::default() };
            let parts = take(opened, &mut own);
            Box::new(reader_of(parts, own, None))
        };
        let reader = match item {
            Item::Metrics(_) | Item::Files(_) => continue,
            Item::Layout(place) => {
                let opened = open_layout(&item_at, name, *place, options, documents);
                or_lost(opened, wanted, found.len())?
                    .unwrap_or_else(|why| own(lost_item(name, why, wanted, description)))
            }
            item => {
                let opened = or_lost(open_item(item, at, name, documents, wanted), wanted, found.len())?;
                own(opened.unwrap_or_else(|why| lost_item(name, why, wanted, description)))
            }
        };
        if let Some(value) = &reader.description().custom_metadata {
            custom.insert(name.clone(), value.clone());
        }
        readers.push((name.clone(), reader));
    }
    if readers.len() == 1 {
        return Ok(readers.pop().map_or(Whole::Items(Vec::new()), |(_, reader)| Whole::OneItem(reader)));
    }
    description.custom_metadata = (!custom.is_empty()).then_some(custom.into());
    Ok(Whole::Items(readers))
}

/// The opened item, or the error of an item that cannot be opened. If there are other items, the
/// error affects only this item.
fn or_lost<T>(opened: Result<T>, wanted: Wanted, item_count: usize) -> Result<std::result::Result<T, Error>> {
    match wanted.or_lost(opened) {
        Err(error) if item_count > 1 && error.kind().is_of_content() => Ok(Err(error)),
        opened => opened,
    }
}

/// A placeholder leaf for an item that cannot be opened. Loading this leaf is an error, unless the
/// checkpoint is salvaged.
fn lost_item(name: &str, why: Error, wanted: Wanted, description: &mut Description) -> Opened {
    description.warnings.push(format!("the item {name} cannot be read: {}", why.what()));
    let mut slot = Slot::lost("", why);
    if wanted.is_strict() {
        slot.info.kind = LeafKind::Unknown("an item that cannot be read".into());
    }
    Opened::new(Tree::single(slot), "lost")
}

fn open_layout(
    item: &Location,
    name: &str,
    place: Place,
    options: &OpenOptions,
    documents: &About,
) -> Result<Box<dyn Reader>> {
    // An item copied from another checkpoint is consistent in itself, so compare it with the
    // record.
    if !options.salvage {
        check_recorded(item, name, regrow::manifest::FILE_NAME, documents)?;
    }
    let at = &match place {
        Place::Folder => item.clone(),
        Place::File(file) => item.join(file),
    };
    let options =
        OpenOptions { salvage: options.salvage, by_names: options.by_names, ..OpenOptions::default() };
    for format in formats().filter(|format| format.name() != Orbax.name()) {
        if let Some(open) = format.detect(at, &options)? {
            return open(at, &options);
        }
    }
    Err(Error::new(ErrorKind::NotACheckpoint, "regrow cannot read the layout of this item").in_file(at))
}

fn note_item(
    custom: &mut serde_json::Map<String, serde_json::Value>,
    name: &str,
    description: &mut Description,
) {
    if let Some(value) = description.custom_metadata.take() {
        custom.insert(name.to_owned(), value);
    }
}

fn dict_of(trees: Vec<(String, Tree<Slot>)>) -> Result<Tree<Slot>> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    for (name, tree) in trees {
        graft(&mut build, Key::dict(name), tree)?;
    }
    build.close()?;
    build.finish()
}

fn take(opened: Opened, description: &mut Description) -> Parts {
    if opened.custom_metadata.is_some() {
        description.custom_metadata = opened.custom_metadata;
    }
    if !description.variant.split("; ").any(|variant| variant == opened.variant) {
        if !description.variant.is_empty() {
            description.variant.push_str("; ");
        }
        description.variant.push_str(&opened.variant);
    }
    description.notes.extend(opened.notes);
    description.warnings.extend(opened.warnings);
    if opened.lost_manifest.is_some() {
        description.warnings.push(regrow::MANIFEST_LOST.to_owned());
    }
    Parts {
        tree: opened.tree,
        databases: opened.databases,
        lost: opened.lost_manifest.into_iter().collect(),
        is_guessed: opened.is_guessed,
    }
}

/// Takes the user's metadata and the metrics from the checkpoint's document, where the items gave
/// none.
fn note_custom(description: &mut Description, about: &About) {
    let about = &about.said;
    if description.custom_metadata.is_none() && !about.custom_metadata.is_empty() {
        description.custom_metadata = Some(about.custom_metadata.clone().into());
    }
    if description.metrics.is_none() && !about.metrics.is_empty() {
        description.metrics = Some(about.metrics.clone().into());
    }
}

fn refuse_item(options: &OpenOptions, at: &Location) -> Result<()> {
    match &options.item {
        None => Ok(()),
        Some(item) => Err(Error::new(ErrorKind::NotFound, format!("there is no item {item:?}"))
            .in_file(at)
            .help("this checkpoint has no items: leave the item out")),
    }
}

pub(super) fn missing_item(at: &Location, item: &str) -> Error {
    Error::corrupt(format!("the item {item} is listed but its folder is missing"))
        .in_file(at.join(item))
        .help("copy the checkpoint again, all of it, or take another step")
}

pub(super) fn deleted_item(at: &Location) -> Result<Option<String>> {
    let file = at.join(DELETION_FILE);
    let Some(bytes) = read_small(&file)? else { return Ok(None) };
    let record: serde_json::Value = json_text::parse(&bytes).in_file(&file)?;
    Ok(record.get("checkpointable_name").and_then(serde_json::Value::as_str).map(str::to_owned))
}
