//! Opens a checkpoint in the default layout: it reads only `regrow.json` until data is requested.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::checked::CheckedStore;
use super::manifest::uuid_text;
use super::manifest::{self, DataFile, LeafPlace, Manifest};
use crate::{Description, Reader, Rest, Standing};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::text::counted;
use regrow_ocdbt::{MANIFEST_KEY, OcdbtStore};
use regrow_storage::Document;
use regrow_storage::location::{Location, StepFolder};
use regrow_store::reads::{Coded, Part, ReadOptions, Source, Text};
use regrow_store::{Blob, Located, Store, StoreExt};
use regrow_tree::array::Region;
use regrow_tree::tree::{LeafInfo, Tree};
use regrow_zarr::zarr::{ArrayMeta, Missing, V3_DOCUMENT, ZarrArray};

/// The most runs of a region that are read together, which limits the extra memory.
const RUNS_MAX: usize = 4096;

/// Regions of at least this length are read without the page cache. The caller may read shorter
/// ones again.
const DIRECT_LEN_MIN_BYTES: usize = 32 << 20;

/// The most `zarr.json` documents that the cache keeps, and the longest one that it keeps.
const METAS_LEN: usize = 256;
const META_LEN_MAX_BYTES: usize = 4 << 10;

/// An opened checkpoint in the default layout.
#[derive(Debug)]
pub struct RegrowReader {
    at: Location,
    description: Description,
    tree: Tree<LeafInfo>,
    texts: HashMap<usize, Arc<str>>,
    places: Vec<LeafPlace>,
    store: CheckedStore,
    database_uuid: Option<String>,
    /// Whether the arrays lie in the parts of several processes: see [`manifest`].
    is_in_parts: bool,
    step_folder: Option<StepFolder>,
    /// The database; opened when a leaf in the database is first needed.
    database: OnceLock<Arc<OcdbtStore>>,
    /// A cache of parsed `zarr.json` documents, by their text: thousands of arrays have the same
    /// text, and each piece of an array needs its document.
    metas: Mutex<HashMap<Bytes, Arc<ArrayMeta>>>,
}

impl RegrowReader {
    pub fn open(at: &Location) -> Result<Self> {
        Self::open_named(at, manifest::FILE_NAME)
    }

    /// Opens a checkpoint; with `takes_any_length`, for a salvage, reads data files whose length
    /// differs from their record, as far as they go.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_as(at: &Location, takes_any_length: bool) -> Result<Self> {
        Self::open_in(at, manifest::FILE_NAME, takes_any_length)
    }

    /// Reads a `regrow.json` with another name, such as `regrow.process_<k>.json` of a part.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn open_named(at: &Location, name: &str) -> Result<Self> {
        Self::open_in(at, name, false)
    }

    fn open_in(at: &Location, name: &str, takes_any_length: bool) -> Result<Self> {
        let base = at.opened()?;
        let document = Document { what: name, language: Language::Json, len_max_bytes: JSON_LEN_MAX_BYTES };
        let bytes = base.read_document(name, document)?.unwrap_or_default();
        Self::from_manifest(at, &bytes, base, takes_any_length).in_file(at.join(name))
    }

    /// Makes this reader the reader of a step of a folder of steps.
    #[must_use]
    pub fn into_step(mut self, about: Description, folder: StepFolder) -> Self {
        let Description { step, steps, notes, .. } = about;
        self.description = Description { step, steps, notes, ..self.description };
        self.step_folder = Some(folder);
        self
    }

    pub(super) fn data_files(&self) -> impl Iterator<Item = &DataFile> {
        self.store.records()
    }

    /// The data file of a record; `None` if it is missing or has another length than recorded.
    pub(super) fn data_file(&self, record: &DataFile) -> Option<Arc<dyn Blob>> {
        self.store.data_file(record)
    }

    pub(super) fn places(&self) -> &[LeafPlace] {
        &self.places
    }

    pub(super) fn location(&self) -> &Location {
        &self.at
    }

    pub(super) fn database_uuid(&self) -> Option<&str> {
        self.database_uuid.as_deref()
    }

    pub(super) fn store(&self) -> &CheckedStore {
        &self.store
    }

    pub(super) fn texts(&self) -> &HashMap<usize, Arc<str>> {
        &self.texts
    }

    fn from_manifest(
        at: &Location,
        bytes: &[u8],
        base: Arc<dyn Store>,
        takes_any_length: bool,
    ) -> Result<Self> {
        let manifest = Manifest::parse(bytes)?;
        let mut regrown = manifest.structure.regrow()?;
        let places = manifest.places(regrown.tree.len())?;
        manifest.check_names()?;
        let (raw, chunks): (Arc<str>, Arc<str>) = (Arc::from("raw"), Arc::from("zstd"));
        let is_in_parts = !manifest.parts.is_empty();
        for (leaf, (info, place)) in regrown.tree.leaves_mut().iter_mut().zip(&places).enumerate() {
            if is_in_parts && info.kind.is_array() {
                info.chunk_shape = manifest.chunk_shape(leaf, &info.shape)?;
                info.write_shape = manifest.write_shape(leaf, &info.shape)?;
            }
            match *place {
                LeafPlace::Raw { file, offset_bytes } => {
                    let end = offset_bytes.checked_add(info.len_bytes());
                    let inside =
                        manifest.data_files.get(file).zip(end).is_some_and(|(file, end)| {
                            offset_bytes >= file.data_offset && end <= file.len_bytes
                        });
                    if !inside {
                        return Err(Error::corrupt(format!(
                            "regrow.json places {} outside its data file",
                            info.name
                        )));
                    }
                    info.coding = raw.clone();
                }
                LeafPlace::Chunks if is_in_parts && !manifest.is_zstd(leaf) => info.coding = raw.clone(),
                LeafPlace::Chunks => info.coding = chunks.clone(),
                LeafPlace::Nowhere if info.kind.is_array() => {
                    return Err(Error::corrupt(format!(
                        "regrow.json lacks the position of the data of {}",
                        info.name
                    )));
                }
                LeafPlace::Nowhere => {}
            }
        }
        let of_parts = manifest.parts.iter().map(|part| part.data_files.len()).sum::<usize>();
        let variant = match manifest.data_files.len() + of_parts {
            1 => "one data file".to_owned(),
            n => format!("{n} data files"),
        };
        let variant = match manifest.parts.len() {
            0 => variant,
            n => format!("{variant} by {}", counted(n, "process", "processes")),
        };
        let store =
            CheckedStore::new(base, manifest.data_files, manifest.files, manifest.parts, takes_any_length)?;
        let description = Description {
            layout: "regrow".to_owned(),
            variant,
            custom_metadata: manifest.custom_metadata,
            ..Description::default()
        };
        Ok(Self {
            at: at.clone(),
            description,
            tree: regrown.tree,
            texts: regrown.texts,
            places,
            store,
            database_uuid: manifest.database_uuid,
            is_in_parts,
            step_folder: None,
            database: OnceLock::new(),
            metas: Mutex::default(),
        })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, LeafPlace)> {
        let place = self.places.get(leaf).copied();
        self.tree
            .leaves()
            .get(leaf)
            .zip(place)
            .ok_or_else(|| Error::invalid(format!("leaf {leaf} does not exist")))
    }

    /// A leaf in the database, as the zarr array that Orbax would read.
    fn chunks(&self, info: &LeafInfo) -> Result<ZarrArray> {
        let database = match self.database.get() {
            Some(database) => database.clone(),
            None => {
                let opened = Arc::new(OcdbtStore::open(Arc::new(self.store.clone()))?);
                self.check_identity(&opened)?;
                self.database.get_or_init(|| opened).clone()
            }
        };
        let key = super::zarr_key(&info.name, V3_DOCUMENT);
        let Some(json) = database.get_text_key(&key)? else {
            return Err(Error::corrupt(format!("the database has no {key}"))
                .in_file(self.store.describe(MANIFEST_KEY.as_bytes())));
        };
        let meta = self.meta(&json).in_file(database.describe(key.as_bytes()))?;
        if meta.shape() != &info.shape || meta.dtype() != super::stored_dtype(info.dtype) {
            return Err(Error::corrupt("zarr.json and regrow.json differ")
                .in_file(database.describe(key.as_bytes()))
                .expected(
                    format_args!("{} {}", info.dtype, info.shape),
                    format_args!("{} {}", meta.dtype(), meta.shape()),
                ));
        }
        Ok(ZarrArray::new(database, info.name.as_bytes(), meta, Missing::Error))
    }

    /// Parses a `zarr.json`, or takes it from the cache.
    fn meta(&self, json: &Bytes) -> Result<Arc<ArrayMeta>> {
        let known = || self.metas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meta) = known().get(json) {
            return Ok(Arc::clone(meta));
        }
        let meta = Arc::new(ArrayMeta::parse_v3(json)?);
        if json.len() <= META_LEN_MAX_BYTES {
            let mut known = known();
            if known.len() >= METAS_LEN {
                known.clear();
            }
            // Copy the bytes: as a view they would keep a whole node of the database in memory.
            known.insert(Bytes::copy_from_slice(json), Arc::clone(&meta));
        }
        Ok(meta)
    }

    fn check_identity(&self, database: &OcdbtStore) -> Result<()> {
        let found = uuid_text(&database.uuid());
        match &self.database_uuid {
            Some(expected) if *expected != found => {
                Err(Error::corrupt("the database belongs to another checkpoint")
                    .in_file(self.store.describe(MANIFEST_KEY.as_bytes()))
                    .expected(format_args!("uuid {expected}"), format_args!("uuid {found}"))
                    .help("copy all files of the checkpoint again"))
            }
            _ => Ok(()),
        }
    }
}

impl Reader for RegrowReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let (info, place) = self.leaf(leaf)?;
        Ok(match place {
            LeafPlace::Raw { file, offset_bytes } => {
                Source::Raw(self.store.extent(file, offset_bytes, info.len_bytes())?)
            }
            LeafPlace::Chunks if info.shape.is_empty() => Source::Memory(Bytes::new()),
            LeafPlace::Chunks if self.is_in_parts => match self.chunks(info)?.locate_raw_whole()? {
                Some(Located::At(span)) => {
                    Source::Raw(self.store.extent_named(&span.key, span.offset_bytes, span.len_bytes)?)
                }
                Some(Located::Inline(bytes)) => Source::Memory(bytes),
                None => Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            },
            LeafPlace::Chunks => Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            LeafPlace::Nowhere => {
                self.texts.get(&leaf).map_or(Source::Nothing, |text| Source::Text(Text::Known(text)))
            }
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, place) = self.leaf(leaf)?;
        match place {
            LeafPlace::Chunks if region.is_empty() => Ok(()),
            LeafPlace::Chunks => self.chunks(info)?.read_region(region, out),
            LeafPlace::Nowhere => Err(Error::invalid("the leaf has no elements")),
            LeafPlace::Raw { file, offset_bytes } => {
                if region.is_empty() {
                    return Ok(());
                }
                let how = ReadOptions { verified: true, direct: out.len() >= DIRECT_LEN_MIN_BYTES };
                let mut rest = out;
                let mut parts = Vec::new();
                region.for_each_run(&info.shape, info.dtype, |offset, _, len| {
                    let (now, later) = std::mem::take(&mut rest)
                        .split_at_mut_checked(len)
                        .ok_or_else(|| Error::invalid("the destination is shorter than the region"))?;
                    rest = later;
                    parts.push(Part { offset_bytes: offset_bytes + offset, out: now, leaf });
                    if parts.len() < RUNS_MAX {
                        return Ok(());
                    }
                    self.store.fill(file, std::mem::take(&mut parts), how)
                })?;
                self.store.fill(file, parts, how)
            }
        }
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.places.get(leaf) {
            Some(&LeafPlace::Raw { file, offset_bytes }) => (file, offset_bytes),
            _ => (usize::MAX, leaf as u64),
        });
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        let mut errors = self.store.misfits()?;
        errors.extend(self.store.check_heads());
        errors.extend(self.store.check_small_files()?);
        // Compare the views only if no file is damaged.
        if errors.is_empty() {
            errors = self.check_views();
        }
        let names: Vec<&str> = self.store.empty_records().map(|record| record.name.as_str()).collect();
        let note = || {
            format!(
                "an early version of regrow wrote this checkpoint and recorded only the length of {}: \
                 regrow cannot notice if the file belongs to another checkpoint; save or convert it again",
                names.join(" and ")
            )
        };
        Ok(Rest::noted((!names.is_empty()).then(note)).found(errors))
    }

    fn standing(&self) -> Standing<'_> {
        Standing {
            has_data_checksums: true,
            is_never_rewritten: true,
            step_folder: self.step_folder.as_ref(),
            ..Standing::default()
        }
    }
}
