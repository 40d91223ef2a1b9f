//! A store as a checkpoint: its arrays and the members of its JSON files as one tree.
//!
//! Processes may write to the store in place, and through maps, while it is read. So the reader
//! reads all arrays by `pread`, and gives no views of a map.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::array_file::ArrayFile;
use super::catalog::Catalog;
use super::documents::{self, CHECKPOINT_KEY, ModelFlags};
use super::faults;
use super::layout::{
    CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Precision, SCORES_FOLDER, Slot,
    TrainArray, id_file, id_of_file,
};
use super::store::is_there;
use super::survey::{Survey, Unrecorded};
use crate::{Description, Reader, Rest, Sparse, Standing};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::counted;
use regrow_store::reads::{self, Coded, Text, Unreadable};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};

/// An opened store.
#[derive(Debug)]
pub(super) struct TrakReader {
    description: Description,
    tree: Tree<LeafInfo>,
    sources: Vec<Source>,
    survey: Survey,
}

/// The place of a leaf's data.
#[derive(Debug)]
enum Source {
    /// A member of a JSON file.
    Member(LeafData),
    /// A damaged JSON file of a store that is salvaged.
    Lost(Error),
    /// An array of the store.
    Array {
        slot: Slot,
        /// Whether its dtype and sizes agree with the metadata and the records of the store.
        fits: bool,
        mask: Option<String>,
    },
}

impl TrakReader {
    /// Reads the JSON files and the headers of the arrays.
    ///
    /// # Errors
    /// `Corrupt` if a JSON file cannot be used, unless the store is salvaged. An array that cannot
    /// be read is also a leaf, of the sizes that it should have: reading it gives the error.
    pub(super) fn open(root: &Path, salvage: bool) -> Result<Self> {
        let mut catalog = Catalog::read(root)?;
        if !salvage && !catalog.faults.is_empty() {
            return Err(catalog.faults.swap_remove(0).error);
        }
        let mut faults = HashMap::new();
        for fault in std::mem::take(&mut catalog.faults) {
            // A damaged file of flags costs only the flags. So the tree has the model, and the
            // flags are a lost leaf.
            if let Some(id) = id_of_file(&fault.file) {
                catalog.models.entry(id).or_default();
                faults.insert(id, fault.error);
            }
        }
        if let Some(metadata) = &catalog.metadata {
            documents::sizes_of(metadata).in_file(root.join(METADATA_FILE))?;
        }
        let survey = Survey::of(root, catalog)?;
        let unrecorded = survey.unrecorded()?;
        let mut out = Builder { survey: &survey, faults, build: TreeBuilder::new(), sources: Vec::new() };
        out.build_all(&unrecorded)?;
        let (tree, sources) = (out.build.finish()?, out.sources);
        let precision = match survey.parameters.precision {
            Precision::Half => "half precision",
            Precision::Single => "single precision",
        };
        let description = Description {
            layout: "trak".to_owned(),
            variant: format!("{precision}, {}", counted(survey.catalog.models.len(), "model", "models")),
            notes: notes(&survey, &unrecorded),
            ..Description::default()
        };
        Ok(Self { description, tree, sources, survey })
    }

    fn array(&self, leaf: usize) -> Result<Option<ArrayFile>> {
        let Some(Source::Array { slot, fits, mask }) = self.sources.get(leaf) else { return Ok(None) };
        let opened = ArrayFile::open(&slot.path(&self.survey.root), &slot.spec, false);
        opened.map(Some).map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.survey.missing(slot, mask.as_deref()),
            ErrorKind::Corrupt if !fits => {
                error.help("its dtype or sizes do not fit this store: copy it again, or move it away")
            }
            _ => error,
        })
    }
}

/// The notes of the description: the missing checksums, and contradictions that are no errors.
fn notes(survey: &Survey, unrecorded: &BTreeMap<ExperimentName, Unrecorded>) -> Vec<String> {
    let mut notes =
        vec!["TRAK stores have no checksums: regrow cannot detect damage of their data".to_owned()];
    let catalog = &survey.catalog;
    let names = catalog.experiments.iter().flatten().map(|(name, _)| name);
    notes.extend(
        names
            .filter(|name| ExperimentName::new(name).is_err())
            .map(|name| format!("experiment {name:?} has a record and no arrays: no file can have its name")),
    );
    let unregistered = survey.folders.iter().filter(|id| !catalog.models.contains_key(id));
    notes.extend(unregistered.map(|id| format!("folder {id} is there, but model {id} is not registered")));
    notes.extend(unrecorded.iter().filter(|(_, lost)| lost.has_scores).map(|(name, _)| {
        format!("experiment {:?} has scores and no record in {EXPERIMENTS_FILE}", name.as_str())
    }));
    notes
}

impl Reader for TrakReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<reads::Source<'_>> {
        Ok(match self.sources.get(leaf) {
            Some(Source::Member(LeafData::Text(text))) => reads::Source::Text(Text::Known(text)),
            Some(Source::Member(LeafData::Absent)) | None => reads::Source::Nothing,
            Some(Source::Lost(why)) => reads::Source::Unreadable(Unreadable::lost(why.duplicate())),
            Some(_) => reads::Source::Coded(Coded::default()),
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        if let Some(Source::Member(LeafData::Array(number))) = self.sources.get(leaf) {
            return number.copy_region_c_order(region, out);
        }
        let Some(array) = self.array(leaf)? else {
            return Err(Error::invalid("the leaf has no elements that can be read"));
        };
        let spec = array.spec();
        let (&[first_row, first_column], &[rows, columns]) = (region.starts(), region.lens()) else {
            return Err(Error::invalid("an array of a TRAK store has two axes"));
        };
        let len = region.shape().len_bytes(spec.dtype)?;
        if len != out.len() as u64 || !region.is_inside(&spec.shape()?) {
            return Err(Error::invalid(
                "the region is outside the array, or the destination has another \
                size",
            ));
        }
        if out.is_empty() {
            return Ok(());
        }
        let size = spec.dtype.size_bytes() as u64;
        let start_of = |row: u64| row * spec.row_len_bytes() + first_column * size;
        if columns == spec.columns || rows == 1 {
            return array.read_data(start_of(first_row), out);
        }
        for (row, part) in (first_row..).zip(out.chunks_exact_mut((columns * size) as usize)) {
            array.read_data(start_of(row), part)?;
        }
        Ok(())
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        // Open the array: this returns an error for a file that is shorter than its header says. So
        // a caller plans no memory for data that does not exist.
        self.array(leaf).map(|_| None)
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let (array, info) = (self.array(leaf)?, self.tree.leaves().get(leaf));
        let holder = array.zip(info).map(|(array, info)| (array.path().to_owned(), info.len_bytes()));
        Ok(holder.into_iter().collect())
    }

    fn read_order(&self) -> Vec<usize> {
        (0..self.tree.len()).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest { findings: faults::findings(&self.survey)?, notes: self.survey.notes() })
    }

    fn standing(&self) -> Standing<'_> {
        Standing::default()
    }
}

struct Builder<'a> {
    survey: &'a Survey,
    /// The damage to flags, by model.
    faults: HashMap<i64, Error>,
    build: TreeBuilder<LeafInfo>,
    sources: Vec<Source>,
}

impl Builder<'_> {
    fn build_all(&mut self, unrecorded: &BTreeMap<ExperimentName, Unrecorded>) -> Result<()> {
        let Survey { catalog, parameters, .. } = self.survey;
        let recorded = || self.survey.recorded().map(|(name, experiment)| (name, experiment.num_targets));
        // The arrays themselves give the number of targets of an experiment without a record.
        let with_targets = unrecorded.iter().filter(|(_, lost)| lost.has_targets);
        let by_arrays = with_targets.filter_map(|(name, lost)| Some((name.clone(), lost.num_targets?)));
        let num_targets: HashMap<ExperimentName, u64> = recorded().chain(by_arrays).collect();
        self.build.open(Key::Index(0), NodeKind::Dict)?;
        let metadata = Value::Object(catalog.metadata.clone().unwrap_or_default());
        self.member(Key::dict("metadata"), &metadata, METADATA_FILE)?;
        self.build.open(Key::dict("models"), NodeKind::Dict)?;
        for (&id, &flags) in &catalog.models {
            self.model(id, flags, &num_targets)?;
        }
        self.build.close()?;
        self.build.open(Key::dict(SCORES_FOLDER), NodeKind::Dict)?;
        let with_scores = unrecorded.iter().filter(|(_, lost)| lost.has_scores);
        let lost = with_scores.map(|(name, lost)| (name.clone(), lost.num_targets.unwrap_or(1)));
        for (name, num_targets) in recorded().chain(lost) {
            self.array(Key::dict(name.as_str()), parameters.scores(&name, num_targets), None)?;
        }
        self.build.close()?;
        let records = Value::Object(catalog.experiments.clone().unwrap_or_default());
        self.member(Key::dict("experiments"), &records, EXPERIMENTS_FILE)?;
        self.build.close()
    }

    fn model(
        &mut self,
        id: i64,
        flags: ModelFlags,
        num_targets: &HashMap<ExperimentName, u64>,
    ) -> Result<()> {
        let Survey { root, parameters, .. } = self.survey;
        self.build.open(Key::dict(id.to_string()), NodeKind::Dict)?;
        for array in [TrainArray::Grads, TrainArray::OutToLoss, TrainArray::Features, TrainArray::Mask] {
            let slot = parameters.train(id, array);
            let was_deleted =
                array == TrainArray::Grads && flags.is_finalized && !is_there(&slot.path(root))?;
            if !was_deleted {
                let is_masked = matches!(array, TrainArray::Grads | TrainArray::OutToLoss);
                let mask = is_masked.then(|| parameters.train(id, TrainArray::Mask).file);
                self.array(Key::dict(array.key()), slot, mask)?;
            }
        }
        match self.faults.remove(&id) {
            None => self.member(Key::dict("flags"), &flags.to_record(), &id_file(id))?,
            Some(why) => {
                let info = LeafInfo::without_data(LeafKind::Placeholder, &id_file(id), "raw");
                self.leaf(Key::dict("flags"), info, Source::Lost(why))?;
            }
        }
        let has_folder = self.survey.folders.contains(&id);
        let names = if has_folder { self.survey.experiments_of(id)? } else { BTreeSet::new() };
        let known = names.into_iter().filter_map(|name| num_targets.get_key_value(&name));
        let targets: Vec<(&ExperimentName, &u64)> = known.collect();
        if !targets.is_empty() {
            self.build.open(Key::dict("targets"), NodeKind::Dict)?;
            for (name, &num_targets) in targets {
                self.build.open(Key::dict(name.as_str()), NodeKind::Dict)?;
                let grads = parameters.target_grads(id, name, num_targets);
                let mask = parameters.target_mask(id, name, num_targets);
                self.array(Key::dict("grads"), grads, Some(mask.file.clone()))?;
                if is_there(&mask.path(root))? {
                    self.array(Key::dict("done"), mask, None)?;
                }
                self.build.close()?;
            }
            self.build.close()?;
        }
        let checkpoint = format!("{id}/{CHECKPOINT_FILE}");
        let object = documents::read_object(&root.join(&checkpoint))?;
        if let Some(identity @ Value::String(_)) =
            object.as_ref().and_then(|object| object.get(CHECKPOINT_KEY))
        {
            self.member(Key::dict("checkpoint"), identity, &checkpoint)?;
        }
        self.build.close()
    }

    /// Adds an array. Its sizes are those in its header, or the expected sizes if the header cannot
    /// be read.
    fn array(&mut self, key: Key, mut slot: Slot, mask: Option<String>) -> Result<()> {
        let found = self.survey.spec_of(&slot.file).unwrap_or(slot.spec);
        let fits = found == slot.spec;
        slot.spec = found;
        let info = info(LeafKind::NumpyArray, found.dtype, found.shape()?, &slot.file);
        self.leaf(key, info, Source::Array { slot, fits, mask })
    }

    fn member(&mut self, key: Key, value: &Value, place: &str) -> Result<()> {
        let leaf = match value {
            Value::Object(members) => {
                self.build.open(key, NodeKind::Dict)?;
                for (name, value) in members {
                    self.member(Key::dict(name.as_str()), value, &format!("{place}/{name}"))?;
                }
                return self.build.close();
            }
            Value::Array(items) => {
                self.build.open(key, NodeKind::List)?;
                for (index, value) in items.iter().enumerate() {
                    self.member(Key::Index(index), value, &format!("{place}/{index}"))?;
                }
                return self.build.close();
            }
            Value::Null => {
                self.build.open(key, NodeKind::None)?;
                return self.build.close();
            }
            Value::String(text) => Leaf::text(text.as_str()),
            Value::Bool(flag) => Leaf::scalar(Scalar::Bool(*flag)),
            Value::Number(number) => Leaf::scalar(match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Scalar::Int(number),
                (None, Some(number)) => Scalar::UInt(number),
                (None, None) => Scalar::Float(number.as_f64().unwrap_or(f64::NAN)),
            }),
        };
        let (dtype, shape) = match &leaf.data {
            LeafData::Array(array) => (array.dtype(), array.shape().clone()),
            _ => (Dtype::UInt8, Shape::new(vec![value.as_str().unwrap_or_default().len() as u64])?),
        };
        let info = info(leaf.kind.clone(), dtype, shape, place);
        self.leaf(key, info, Source::Member(leaf.data))
    }

    fn leaf(&mut self, key: Key, info: LeafInfo, source: Source) -> Result<()> {
        self.sources.push(source);
        self.build.leaf(key, info)
    }
}

fn info(kind: LeafKind, dtype: Dtype, shape: Shape, name: &str) -> LeafInfo {
    LeafInfo { dtype, shape, ..LeafInfo::without_data(kind, name, "raw") }
}
