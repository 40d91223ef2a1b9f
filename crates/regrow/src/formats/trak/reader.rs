//! A store as a checkpoint: its arrays and the members of its JSON files as one tree.
//!
//! A store may still be written while it is read, in place and through maps, so the bytes behind a
//! shared map may change at any time. So all arrays are read by `pread`, and none is shown as a
//! map.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::array_file::ArrayFile;
use super::catalog::{Catalog, Subject, model_folders};
use super::check;
use super::documents::{self, Experiment, ModelFlags};
use super::layout::{
    ArraySpec, CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters, Precision,
    SCORES_FOLDER, TrainArray, id_file, model_file,
};
use super::store::is_there;
use crate::array::{Region, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Description, Reader, Rest, Sparse, Standing};
use crate::reads::{self, Coded, Text, Unreadable};
use crate::text::counted;
use crate::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Scalar, Tree, TreeBuilder};

/// An opened store.
#[derive(Debug)]
pub(super) struct TrakReader {
    description: Description,
    tree: Tree<LeafInfo>,
    sources: Vec<Source>,
    root: PathBuf,
    catalog: Catalog,
    parameters: Parameters,
}

/// Where the data of a leaf is.
#[derive(Debug)]
enum Source {
    /// It was in a JSON file.
    Member(LeafData),
    /// It was in a JSON file that is damaged: of a store that is salvaged.
    Lost(Error),
    /// In an array of the store.
    Array {
        file: String,
        spec: ArraySpec,
        /// Whether the array is of the size and kind that the rest of the store says.
        fits: bool,
    },
}

impl TrakReader {
    /// Reads the JSON files and the headers of the arrays.
    ///
    /// # Errors
    /// `Corrupt` if a JSON file cannot be used, unless the store is salvaged. An array that cannot
    /// be read is also a leaf, of the sizes that it should have: reading it says what is wrong.
    pub(super) fn open(root: &Path, salvage: bool) -> Result<Self> {
        let mut catalog = Catalog::read(root)?;
        if !salvage && !catalog.faults.is_empty() {
            return Err(catalog.faults.swap_remove(0).error);
        }
        let mut faults = HashMap::new();
        for fault in std::mem::take(&mut catalog.faults) {
            // The model exists, with any state of its flags.
            if let Subject::Model(Some(id)) = fault.subject {
                catalog.models.entry(id).or_default();
                faults.insert(id, fault.error);
            }
        }
        let parameters = parameters_of(root, &catalog)?;
        let mut out = Builder { root, parameters, faults, build: TreeBuilder::new(), sources: Vec::new() };
        let scores_without_record = check::scores_without_record(root, &catalog)?;
        out.build_all(&catalog, &scores_without_record)?;
        let precision = match parameters.precision {
            Precision::Half => "half precision",
            Precision::Single => "single precision",
        };
        let mut notes = vec!["TRAK stores have no checksums: damage to their data goes unseen".to_owned()];
        for (name, _) in catalog.experiments.iter().flatten() {
            if ExperimentName::new(name).is_err() {
                notes.push(format!(
                    "experiment {name:?} has a record and no arrays: no file can have its name"
                ));
            }
        }
        for id in model_folders(root)? {
            if !catalog.models.contains_key(&id) {
                notes.push(format!("folder {id} is there, but model {id} is not registered"));
            }
        }
        notes.extend(catalog.spare.iter().map(|spare| {
            format!(
                "{} speaks of model {}, too; {} counts. TRAK takes the file that it happens to read last",
                spare.file, spare.id, spare.counts
            )
        }));
        for (name, _) in &scores_without_record {
            notes.push(format!(
                "experiment {:?} has scores and no record in {EXPERIMENTS_FILE}",
                name.as_str()
            ));
        }
        let description = Description {
            layout: "trak".to_owned(),
            variant: format!("{precision}, {}", counted(catalog.models.len(), "model", "models")),
            notes,
            ..Description::default()
        };
        let (tree, sources) = (out.build.finish()?, out.sources);
        Ok(Self { description, tree, sources, root: root.to_owned(), catalog, parameters })
    }

    fn array(&self, leaf: usize) -> Result<Option<ArrayFile>> {
        match self.sources.get(leaf) {
            Some(Source::Array { file, spec, fits }) => {
                let opened = ArrayFile::open(&self.root.join(file), spec, false);
                opened.map(Some).map_err(|error| match error.kind() {
                    ErrorKind::NotFound => check::missing(&self.root, file, spec),
                    ErrorKind::Corrupt if !fits => error.help(
                        "its dtype or sizes are not this store's either: copy it again, or move it away",
                    ),
                    _ => error,
                })
            }
            _ => Ok(None),
        }
    }
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
        let size = spec.dtype.size_bytes() as u64;
        let len = region.shape().len_bytes(spec.dtype)?;
        if len != out.len() as u64 || !region.is_inside(&spec.shape()?) {
            return Err(Error::invalid("the region leaves the array, or the destination has another size"));
        }
        if columns == spec.columns || rows <= 1 {
            let start = first_row * array.row_len_bytes() + first_column * size;
            return if out.is_empty() { Ok(()) } else { array.read_data(start, out) };
        }
        let part_len = (columns * size) as usize;
        if part_len == 0 {
            return Ok(());
        }
        for (row, part) in (first_row..).zip(out.chunks_exact_mut(part_len)) {
            array.read_data(row * array.row_len_bytes() + first_column * size, part)?;
        }
        Ok(())
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        // A file that is shorter than its header claims is found before work is planned by the
        // claim.
        self.array(leaf).map(|_| None)
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let info = self.tree.leaves().get(leaf);
        let array = self.array(leaf)?;
        Ok(array
            .zip(info)
            .map(|(array, info)| (array.path().to_owned(), info.len_bytes()))
            .into_iter()
            .collect())
    }

    fn read_order(&self) -> Vec<usize> {
        (0..self.tree.len()).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        let (root, catalog, parameters) = (&self.root, &self.catalog, &self.parameters);
        let findings = check::check(root, catalog, parameters)?;
        Ok(Rest { findings, notes: check::notes(root, catalog, parameters)? })
    }

    fn standing(&self) -> Standing<'_> {
        Standing::default()
    }
}

/// What the store's arrays should look like: by its metadata, or else by the first array that can
/// be read.
pub(super) fn parameters_of(root: &Path, catalog: &Catalog) -> Result<Parameters> {
    let mut found = None;
    let mut precision = None;
    let ids = catalog.models.keys().copied().chain(model_folders(root)?);
    for id in ids {
        for array in [TrainArray::Features, TrainArray::Grads, TrainArray::OutToLoss] {
            let Ok(spec) = ArrayFile::spec_of(&root.join(model_file(id, array.file_name()))) else {
                continue;
            };
            precision = precision.or(Precision::of(spec.dtype));
            if array != TrainArray::OutToLoss {
                found = found.or(Some((spec.rows, spec.columns)));
            }
        }
        if found.is_some() && precision.is_some() {
            break;
        }
    }
    let (train_set_size, proj_dim) = match &catalog.metadata {
        Some(metadata) => {
            documents::sizes_of(metadata).map_err(|error| error.in_file(root.join(METADATA_FILE)))?
        }
        None => found.unwrap_or_default(),
    };
    Ok(Parameters { train_set_size, proj_dim, precision: precision.unwrap_or(Precision::Half) })
}

struct Builder<'a> {
    root: &'a Path,
    parameters: Parameters,
    /// What is wrong with the flags of models.
    faults: HashMap<i64, Error>,
    build: TreeBuilder<LeafInfo>,
    sources: Vec<Source>,
}

impl Builder<'_> {
    fn build_all(&mut self, catalog: &Catalog, without_record: &[(ExperimentName, u64)]) -> Result<()> {
        let experiments: HashMap<&str, Experiment> = catalog
            .experiments
            .iter()
            .flatten()
            .filter_map(|(name, record)| Some((name.as_str(), Experiment::from_record(name, record).ok()?)))
            .collect();
        self.build.open(Key::Index(0), NodeKind::Dict)?;
        let metadata = Value::Object(catalog.metadata.clone().unwrap_or_default());
        self.member(Key::dict("metadata"), &metadata, METADATA_FILE)?;
        self.build.open(Key::dict("models"), NodeKind::Dict)?;
        for (&id, &flags) in &catalog.models {
            self.model(id, flags, &experiments)?;
        }
        self.build.close()?;
        self.build.open(Key::dict(SCORES_FOLDER), NodeKind::Dict)?;
        for (name, _) in catalog.experiments.iter().flatten() {
            let Ok(valid) = ExperimentName::new(name) else { continue };
            let Some(experiment) = experiments.get(name.as_str()) else { continue };
            let spec = self.parameters.scores(experiment.num_targets);
            self.array(Key::dict(name.as_str()), valid.scores_file(), spec)?;
        }
        for (name, num_targets) in without_record {
            let spec = self.parameters.scores(*num_targets);
            self.array(Key::dict(name.as_str()), name.scores_file(), spec)?;
        }
        self.build.close()?;
        let records = Value::Object(catalog.experiments.clone().unwrap_or_default());
        self.member(Key::dict("experiments"), &records, EXPERIMENTS_FILE)?;
        self.build.close()
    }

    fn model(&mut self, id: i64, flags: ModelFlags, experiments: &HashMap<&str, Experiment>) -> Result<()> {
        self.build.open(Key::dict(id.to_string()), NodeKind::Dict)?;
        for array in [TrainArray::Grads, TrainArray::OutToLoss, TrainArray::Features, TrainArray::Mask] {
            let file = format!("{id}/{}", array.file_name());
            let was_deleted =
                array == TrainArray::Grads && flags.is_finalized && !is_there(&self.root.join(&file))?;
            if !was_deleted {
                self.array(Key::dict(array.key()), file, self.parameters.train(array))?;
            }
        }
        match self.faults.remove(&id) {
            None => self.member(Key::dict("flags"), &flags.to_record(), &id_file(id))?,
            Some(why) => {
                let shape = Shape::new([0])?;
                let place = id_file(id);
                self.build.leaf(
                    Key::dict("flags"),
                    info(LeafKind::Placeholder, crate::array::Dtype::UInt8, shape, &place),
                )?;
                self.sources.push(Source::Lost(why));
            }
        }
        let folder = self.root.join(id.to_string());
        let names = if folder.is_dir() { check::experiments_of(self.root, id)? } else { Vec::new() };
        let targets: Vec<(ExperimentName, u64)> = names
            .into_iter()
            .filter_map(|name| {
                let known = experiments.get(name.as_str()).map(|experiment| experiment.num_targets);
                // Of an experiment without a record the arrays themselves say how many targets it
                // has.
                let rows = || {
                    let spec = ArrayFile::spec_of(&folder.join(name.grads_file()))
                        .or_else(|_| ArrayFile::spec_of(&folder.join(name.targets_file())));
                    let spec = spec.ok().filter(|_| !check::is_barely_begun(self.root, id, &name));
                    spec.map(|spec| spec.rows)
                };
                let num_targets = known.or_else(rows)?;
                Some((name, num_targets))
            })
            .collect();
        if !targets.is_empty() {
            self.build.open(Key::dict("targets"), NodeKind::Dict)?;
            for (name, num_targets) in targets {
                self.build.open(Key::dict(name.as_str()), NodeKind::Dict)?;
                let grads = self.parameters.target_grads(num_targets);
                self.array(Key::dict("grads"), format!("{id}/{}", name.grads_file()), grads)?;
                let mask = format!("{id}/{}", name.targets_file());
                if is_there(&self.root.join(&mask))? {
                    self.array(Key::dict("done"), mask, Parameters::target_mask(num_targets))?;
                }
                self.build.close()?;
            }
            self.build.close()?;
        }
        let checkpoint = documents::read_object(&folder.join(CHECKPOINT_FILE))?;
        if let Some(Value::String(identity)) = checkpoint.and_then(|mut object| object.remove("checkpoint")) {
            self.member(
                Key::dict("checkpoint"),
                &Value::String(identity),
                &format!("{id}/{CHECKPOINT_FILE}"),
            )?;
        }
        self.build.close()
    }

    /// An array, of the sizes that its own header gives or, where that cannot be read, those that
    /// it should have.
    fn array(&mut self, key: Key, file: String, expected: ArraySpec) -> Result<()> {
        let spec = ArrayFile::spec_of(&self.root.join(&file)).unwrap_or(expected);
        let info = info(LeafKind::NumpyArray, spec.dtype, spec.shape()?, file.as_str());
        self.build.leaf(key, info)?;
        self.sources.push(Source::Array { file, spec, fits: spec == expected });
        Ok(())
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
        let info = match &leaf.data {
            LeafData::Array(array) => info(leaf.kind.clone(), array.dtype(), array.shape().clone(), place),
            _ => {
                let len = value.as_str().unwrap_or_default().len() as u64;
                info(leaf.kind.clone(), crate::array::Dtype::UInt8, Shape::new(vec![len])?, place)
            }
        };
        self.build.leaf(key, info)?;
        self.sources.push(Source::Member(leaf.data));
        Ok(())
    }
}

fn info(kind: LeafKind, dtype: crate::array::Dtype, shape: Shape, name: &str) -> LeafInfo {
    LeafInfo {
        kind,
        dtype,
        shape,
        name: name.into(),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: "raw".into(),
    }
}
