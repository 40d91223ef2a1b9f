//! Opening a checkpoint in the default layout: `regrow.json` alone, until data is asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::block_reads::{Part, ReadOptions};
use super::checked::CheckedStore;
use super::manifest::uuid_text;
use super::manifest::{self, DataFile, LeafPlace, Manifest};
use crate::array::Region;
use crate::bytes::glance::Language;
use crate::bytes::limits::JSON_LEN_MAX_BYTES;
use crate::error::{Error, Result, ResultExt};
use crate::formats::{CheckFor, Description, Reader};
use crate::location::{Location, StepFolder};
use crate::monitor::Monitor;
use crate::report::Finding;
use crate::storage::Document;
use crate::store::ocdbt::{MANIFEST_KEY, OcdbtStore};
use crate::store::{Blob, Store, StoreExt};
use crate::tree::{LeafInfo, Tree};
use crate::zarr::{ArrayMeta, Missing, ZarrArray};

/// Runs of a region that are read together: what they take beside the result stays small.
const RUNS_MAX: usize = 4096;

/// Regions from this length on are read past the page cache; shorter ones may be wanted again.
const DIRECT_LEN_MIN_BYTES: usize = 32 << 20;

/// An opened checkpoint in the default layout.
#[derive(Debug)]
pub struct RegrowReader {
    description: Description,
    tree: Tree<LeafInfo>,
    texts: HashMap<usize, Arc<str>>,
    places: Vec<LeafPlace>,
    store: CheckedStore,
    database_uuid: Option<String>,
    step_folder: Option<StepFolder>,
    /// Opened when the first compressed leaf is read.
    database: OnceLock<Arc<OcdbtStore>>,
}

impl RegrowReader {
    /// Reads `regrow.json`.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`.
    pub fn open(at: &Location) -> Result<Self> {
        let base = at.opened()?;
        let what = manifest::FILE_NAME;
        let document = Document { what, language: Language::Json, len_max_bytes: JSON_LEN_MAX_BYTES };
        let bytes = base.read_document(manifest::FILE_NAME, document)?.unwrap_or_default();
        Self::from_manifest(&bytes, base).in_file(at.join(manifest::FILE_NAME))
    }

    /// The same, as a step of a folder of steps.
    #[must_use]
    pub fn into_step(mut self, about: Description, folder: StepFolder) -> Self {
        let Description { step, steps, notes, .. } = about;
        self.description = Description { step, steps, notes, ..self.description };
        self.step_folder = Some(folder);
        self
    }

    /// What is recorded of each file with array data.
    pub(super) fn data_files(&self) -> impl Iterator<Item = &DataFile> {
        self.store.records()
    }

    /// The file of such a record; `None` if it is not there, or not as long as recorded.
    pub(super) fn data_file(&self, record: &DataFile) -> Option<Arc<dyn Blob>> {
        self.store.data_file(record)
    }

    /// Where the bytes of each leaf are; those of raw ones inside their file.
    pub(super) fn places(&self) -> &[LeafPlace] {
        &self.places
    }

    fn from_manifest(bytes: &[u8], base: Arc<dyn Store>) -> Result<Self> {
        let manifest = Manifest::parse(bytes)?;
        let mut regrown = manifest.structure.regrow()?;
        let places = manifest.places(regrown.tree.len())?;
        manifest.check_names()?;
        let (raw, chunks): (Arc<str>, Arc<str>) = (Arc::from("raw"), Arc::from("zstd"));
        for (info, place) in regrown.tree.leaves_mut().iter_mut().zip(&places) {
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
                LeafPlace::Chunks => info.coding = chunks.clone(),
                LeafPlace::Nowhere if info.kind.is_array() => {
                    return Err(Error::corrupt(format!(
                        "regrow.json has no place for the data of {}",
                        info.name
                    )));
                }
                LeafPlace::Nowhere => {}
            }
        }
        let store = CheckedStore::new(base, &manifest.data_files, manifest.files)?;
        let variant = match manifest.data_files.len() {
            1 => "one data file".to_owned(),
            n => format!("{n} data files"),
        };
        let description = Description {
            layout: "regrow".to_owned(),
            variant,
            custom_metadata: manifest.custom_metadata,
            ..Description::default()
        };
        Ok(Self {
            description,
            tree: regrown.tree,
            texts: regrown.texts,
            places,
            store,
            database_uuid: manifest.database_uuid,
            step_folder: None,
            database: OnceLock::new(),
        })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, LeafPlace)> {
        let place = self.places.get(leaf).copied();
        self.tree
            .leaves()
            .get(leaf)
            .zip(place)
            .ok_or_else(|| Error::invalid(format!("there is no leaf {leaf}")))
    }

    /// A compressed leaf, as the zarr array that Orbax would read.
    fn chunks(&self, info: &LeafInfo) -> Result<ZarrArray> {
        let database = match self.database.get() {
            Some(database) => database.clone(),
            None => {
                let opened = Arc::new(OcdbtStore::open(Arc::new(self.store.clone()))?);
                self.check_identity(&opened)?;
                self.database.get_or_init(|| opened).clone()
            }
        };
        let key = super::zarr_key(&info.name, "zarr.json");
        let Some(json) = database.get_text_key(&key)? else {
            return Err(Error::corrupt(format!("the database has no {key}")));
        };
        let meta = Arc::new(ArrayMeta::parse_v3(&json)?);
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

    /// Errs unless the database is the one that was written with `regrow.json`.
    fn check_identity(&self, database: &OcdbtStore) -> Result<()> {
        let found = uuid_text(&database.uuid());
        match &self.database_uuid {
            Some(expected) if *expected != found => {
                Err(Error::corrupt("the database is another checkpoint's")
                    .in_file(self.store.describe(MANIFEST_KEY.as_bytes()))
                    .expected(format_args!("uuid {expected}"), format_args!("uuid {found}"))
                    .help("copy the checkpoint again, all of its files"))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, leaf: usize, ahead: CheckFor) -> Result<()> {
        match self.leaf(leaf)? {
            (info, LeafPlace::Raw { file, offset_bytes }) => {
                self.store.check(file, offset_bytes, info.len_bytes(), ahead)
            }
            _ => Ok(()),
        }
    }

    /// Names, in an error of a data file, the first of the leaves whose bytes end after where it happened.
    fn name_leaf(&self, ends: &[(usize, u64)], error: Error) -> Error {
        let Some(at) = error.place().offset_bytes else { return error };
        let leaf = ends.iter().find(|(_, end)| *end > at).map(|(leaf, _)| *leaf);
        match leaf.and_then(|leaf| self.tree.iter().nth(leaf)) {
            Some((path, _)) => error.at_leaf(&path),
            None => error,
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

    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        self.texts.get(&leaf).cloned().ok_or_else(|| Error::invalid("the leaf is no text"))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, place) = self.leaf(leaf)?;
        match place {
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
                    parts.push(Part { offset_bytes: offset_bytes + offset, out: now });
                    if parts.len() < RUNS_MAX {
                        return Ok(());
                    }
                    self.store.fill(file, std::mem::take(&mut parts), how, None)
                })?;
                self.store.fill(file, parts, how, None)
            }
        }
    }

    fn read_raw<'a>(
        &self,
        leaves: Vec<(usize, &'a mut [u8])>,
        unverified: bool,
        monitor: &Monitor,
    ) -> Result<Vec<(usize, &'a mut [u8])>> {
        let mut files: BTreeMap<usize, Vec<(usize, Part<'a>)>> = BTreeMap::new();
        let mut others = Vec::new();
        for (leaf, out) in leaves {
            match self.leaf(leaf)? {
                (info, LeafPlace::Raw { file, offset_bytes }) if info.len_bytes() == out.len() as u64 => {
                    files.entry(file).or_default().push((leaf, Part { offset_bytes, out }));
                }
                _ => others.push((leaf, out)),
            }
        }
        let how = ReadOptions { verified: !unverified, direct: true };
        for (file, mut leaves) in files {
            leaves.sort_by_key(|(_, part)| part.offset_bytes);
            let mut parts = Vec::with_capacity(leaves.len());
            let mut ends = Vec::with_capacity(leaves.len());
            let mut end = 0;
            for (leaf, part) in leaves {
                // Regrow writes no two leaves to the same place, but a record may say so.
                if part.offset_bytes < end {
                    others.push((leaf, part.out));
                } else {
                    end = part.offset_bytes.saturating_add(part.out.len() as u64);
                    ends.push((leaf, end));
                    parts.push(part);
                }
            }
            self.store.fill(file, parts, how, Some(monitor)).map_err(|error| self.name_leaf(&ends, error))?;
        }
        Ok(others)
    }

    fn is_never_rewritten(&self) -> bool {
        true
    }

    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        match self.leaf(leaf)? {
            (info, LeafPlace::Raw { file, offset_bytes }) if info.len_bytes() > 0 => {
                self.store.view(file, offset_bytes, info.len_bytes())
            }
            (info, LeafPlace::Raw { .. }) if info.len_bytes() == 0 => Ok(Some(Bytes::new())),
            _ => Ok(None),
        }
    }

    fn is_cached(&self, leaf: usize) -> bool {
        match self.leaf(leaf) {
            Ok((info, LeafPlace::Raw { file, offset_bytes })) => {
                self.store.is_cached(file, offset_bytes, info.len_bytes())
            }
            _ => true,
        }
    }

    fn check_view(&self, leaf: usize) -> Result<()> {
        self.check(leaf, CheckFor::Views)
    }

    fn check_data(&self, leaf: usize) -> Result<()> {
        self.check(leaf, CheckFor::Verify)
    }

    fn check_ahead(&self, leaves: &[usize], ahead: CheckFor, monitor: &Monitor) -> Result<bool> {
        let range = |&leaf: &usize| match self.leaf(leaf) {
            Ok((info, LeafPlace::Raw { file, offset_bytes })) => Some((file, offset_bytes, info.len_bytes())),
            _ => None,
        };
        let ranges = leaves.iter().filter_map(range).collect();
        self.store.check_ahead(ranges, ahead, monitor).map(|()| true)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.places.get(leaf) {
            Some(&LeafPlace::Raw { file, offset_bytes }) => (file, offset_bytes),
            _ => (usize::MAX, leaf as u64),
        });
        order
    }

    fn check_files(&self) -> Result<Vec<Finding>> {
        let mut errors = self.store.check_heads();
        errors.extend(self.store.check_small_files()?);
        Ok(errors.into_iter().map(|error| Finding { error }).collect())
    }

    fn check_notes(&self) -> Result<Vec<String>> {
        let names: Vec<&str> = self.store.empty_records().map(|record| record.name.as_str()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![format!(
            "an early version of regrow wrote this checkpoint: of {} only the length is recorded, so another checkpoint's \
             file in its place would not be noticed; save or convert it again",
            names.join(" and ")
        )])
    }

    fn has_data_checksums(&self) -> bool {
        true
    }

    fn step_folder(&self) -> Option<&StepFolder> {
        self.step_folder.as_ref()
    }
}
