//! Writes a tree with the structure of a store. For any other tree the error shows the expected
//! structure.
//!
//! ```text
//! metadata      {"JL dimension": P, "JL matrix type": ..., "train set size": N, ...}
//! models        {"<ID>": {grads [N,P], out_to_loss [N,1], features [N,P], is_featurized [N,1] int32,
//!                         flags {is_featurized, is_finalized}, targets {"<EXP>": {grads [T,P], done [T,1]}},
//!                         checkpoint}}
//! scores        {"<EXP>": [N,T]}
//! experiments   {"<EXP>": {num_targets, scores_path, scores_finalized}}
//! ```
//! These may be missing: `models`, `scores` and `experiments`; in a model `flags`, `targets`,
//! `checkpoint`, and `grads` if the model is finalized; in targets `grads` and `done`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::documents::{self, CHECKPOINT_KEY, Experiment, ModelFlags};
use super::layout::{
    ARRAY_SUFFIX, CHECKPOINT_FILE, EXPERIMENTS_FILE, ExperimentName, METADATA_FILE, Parameters, Precision,
    SCORES_FOLDER, Slot, TrainArray, id_file, model_folder_id,
};
use crate::npy::header::Header;
use crate::orbax::json_text::to_python_json;
use crate::refusals::Refusals;
use crate::stream::write_array;
use crate::{Loss, LossKind};
use regrow_base::error::{Error, Result};
use regrow_storage::NewFolder;
use regrow_storage::location::Location;
use regrow_tree::array::{Array, Dtype, DtypeClass, cast_bytes};
use regrow_tree::tree::{Key, KeyPath, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree};

/// The shape of a store's tree, for errors.
const EXPECTED: &str = "metadata, models, scores and experiments, as a TRAK store opens";

/// JSON documents nest no deeper than this (serde_json reads no more either).
const MEMBER_DEPTH_MAX: usize = 100;

/// Writes all files of the store.
pub(super) fn write(tree: &Tree<Leaf>, staged: &dyn NewFolder) -> Result<()> {
    let plan = Plan::of(tree, staged.target())?;
    let Some(folder) = staged.local_folder().map(|folder| folder.join(SCORES_FOLDER)) else {
        return Err(Error::unsupported("TRAK stores map files, which needs a local disk")
            .in_file(staged.target())
            .help("save it to a local disk, or choose another layout"));
    };
    std::fs::create_dir(&folder).map_err(|error| Error::io("cannot make the folder", &folder, error))?;
    for (Slot { file, spec }, array) in &plan.arrays {
        let header = Header::for_array(spec.dtype, spec.shape()?, true).to_bytes();
        let mut out = staged.writer(file, header.len() as u64 + array.len_bytes(), 0)?;
        out.write(&header)?;
        write_array(&mut out, array)?;
        out.finish()?;
    }
    plan.documents.iter().try_for_each(|(file, object)| staged.write(file, &to_python_json(object)?))
}

/// Returns the error that [`write`] would return for this tree. Writes nothing.
pub(super) fn check(tree: &Tree<Leaf>, target: &Location) -> Result<()> {
    Plan::of(tree, target).map(drop)
}

/// The losses of a tree.
pub(super) fn losses(tree: &Tree<LeafInfo>) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut add = |kind, path: KeyPath, what: &str| losses.push(Loss { kind, path, what: what.to_owned() });
    for (path, node) in tree.walk() {
        match node.kind {
            NodeKind::OrderedDict | NodeKind::DefaultDict => {
                add(LossKind::Structure, path.clone(), "comes back as a plain dict");
            }
            NodeKind::Tuple => add(LossKind::Structure, path.clone(), "a tuple comes back as a list"),
            _ => {}
        }
        if matches!(node.key, Key::DictInt(_)) && !path.is_root() {
            add(LossKind::Structure, path, "an integer key comes back as text");
        }
    }
    for (path, info) in tree.iter() {
        if path.keys().last() == Some(&Key::dict("scores_path")) {
            add(LossKind::Note, path, "becomes the path of the new store");
            continue;
        }
        match info.kind {
            LeafKind::JaxArray | LeafKind::NumpyArray if info.shape.dims().is_empty() => {
                add(LossKind::Kind, path, "an array without axes comes back as a Python number")
            }
            LeafKind::JaxArray => add(LossKind::Note, path, "a JAX array comes back as a NumPy array"),
            LeafKind::NumpyScalar => {
                add(LossKind::Kind, path, "a NumPy scalar comes back as a Python number")
            }
            _ => {}
        }
    }
    losses
}

/// One node of the tree, with its descendants.
struct Item<'a> {
    path: KeyPath,
    kind: &'a NodeKind,
    children: Vec<(Key, Item<'a>)>,
    leaf: Option<&'a Leaf>,
}

/// Everything that is to be written, checked.
struct Plan<'a> {
    documents: Vec<(String, Map<String, Value>)>,
    arrays: Vec<(Slot, &'a Array)>,
    parameters: Parameters,
    /// The number of targets of each experiment with a record.
    num_targets: HashMap<String, u64>,
    refused: Refusals,
}

impl<'a> Plan<'a> {
    fn of(tree: &'a Tree<Leaf>, target: &Location) -> Result<Self> {
        let target = target.local_path()?;
        let target = std::path::absolute(target).map_err(|error| Error::io("cannot find", target, error))?;
        if let Some(path) = tree.first_equal_keys() {
            return Err(Error::invalid("two members of a dict have the same key").at_leaf(&path));
        }
        let root = nest(tree)?;
        let mut refused = Refusals::default();
        for (key, item) in root.dict()? {
            if !matches!(&*key.text(), "metadata" | "models" | "scores" | "experiments") {
                refused.add(&item.path, unexpected(EXPECTED));
            }
        }
        let Some(metadata) = root.child("metadata") else {
            return Err(Error::unsupported("the tree is not that of a TRAK store")
                .expected(EXPECTED, "a tree without metadata"));
        };
        let Value::Object(metadata) = metadata.to_json()? else {
            return Err(unexpected("a dict of metadata").at_leaf(&metadata.path));
        };
        let (train_set_size, proj_dim) = documents::sizes_of(&metadata)?;
        let precision = first_precision(root.child("models"));
        let mut plan = Self {
            documents: vec![(METADATA_FILE.to_owned(), metadata)],
            arrays: Vec::new(),
            parameters: Parameters { train_set_size, proj_dim, precision },
            num_targets: HashMap::new(),
            refused,
        };
        let mut records = Map::new();
        for (key, item) in root.members("experiments")? {
            let name = key.text();
            let record = item.to_json().and_then(|mut record| {
                let known = Experiment::from_record(&name, &record).map_err(in_a_tree)?;
                let path = target.join(SCORES_FOLDER).join(format!("{name}{ARRAY_SUFFIX}"));
                if let Some(record) = record.as_object_mut() {
                    record.insert("scores_path".to_owned(), path.to_string_lossy().into());
                }
                Ok((known.num_targets, record))
            });
            if let Some((num_targets, record)) = plan.refused.keep(&item.path, record) {
                plan.num_targets.insert(name.to_string(), num_targets);
                records.insert(name.into_owned(), record);
            }
        }
        plan.documents.push((EXPERIMENTS_FILE.to_owned(), records));
        for (key, item) in root.members("models")? {
            match model_folder_id(&key.text()) {
                Some(id) => plan.model(id, item)?,
                None => plan.refused.add(&item.path, unexpected("an integer as a model's ID")),
            }
        }
        for (key, item) in root.members("scores")? {
            let expected = "scores of an experiment that has a record";
            if let Some((name, targets)) = plan.recorded(&key.text(), item, expected) {
                plan.array(item, plan.parameters.scores(&name, targets));
            }
        }
        std::mem::take(&mut plan.refused).finish("cannot be written to a TRAK store")?;
        Ok(plan)
    }

    fn model(&mut self, id: i64, item: &Item<'a>) -> Result<()> {
        let mut flags = ModelFlags::default();
        for (key, member) in item.dict()? {
            let text = key.text();
            if let Some(array) = TrainArray::ALL.into_iter().find(|array| array.key() == text) {
                self.array(member, self.parameters.train(id, array));
                continue;
            }
            match &*text {
                "flags" => {
                    let record = member.to_json();
                    let found =
                        record.and_then(|record| ModelFlags::from_record(id, &record).map_err(in_a_tree));
                    flags = self.refused.keep(&member.path, found).unwrap_or_default();
                }
                "targets" => {
                    for (key, experiment) in member.dict()? {
                        self.targets(id, &key.text(), experiment)?;
                    }
                }
                "checkpoint" => match member.leaf.map(|leaf| &leaf.data) {
                    Some(LeafData::Text(text)) => {
                        let object = Map::from_iter([(CHECKPOINT_KEY.to_owned(), Value::from(&**text))]);
                        self.documents.push((format!("{id}/{CHECKPOINT_FILE}"), object));
                    }
                    _ => self.refused.add(&member.path, unexpected("text")),
                },
                _ => self.refused.add(&member.path, unexpected("a member of a TRAK model")),
            }
        }
        for array in TrainArray::ALL {
            let may_be_missing = array == TrainArray::Grads && flags.is_finalized;
            if item.child(array.key()).is_none() && !may_be_missing {
                let error = Error::unsupported("an array of a TRAK model is missing");
                self.refused.add(&item.path.child(Key::dict(array.key())), error);
            }
        }
        self.documents.push((id_file(id), flags.to_document(id)));
        Ok(())
    }

    fn targets(&mut self, id: i64, name: &str, item: &Item<'a>) -> Result<()> {
        let expected = "targets of an experiment that has a record";
        let Some((name, targets)) = self.recorded(name, item, expected) else { return Ok(()) };
        for (key, member) in item.dict()? {
            match &*key.text() {
                "grads" => self.array(member, self.parameters.target_grads(id, &name, targets)),
                "done" => self.array(member, self.parameters.target_mask(id, &name, targets)),
                _ => self.refused.add(&member.path, unexpected("grads or done")),
            }
        }
        Ok(())
    }

    /// The experiment of this name and its number of targets, if it has a record.
    fn recorded(&mut self, name: &str, item: &Item<'_>, expected: &str) -> Option<(ExperimentName, u64)> {
        let found = ExperimentName::new(name).and_then(|name| match self.num_targets.get(name.as_str()) {
            Some(&targets) => Ok((name, targets)),
            None => Err(unexpected(expected).help("`repair` of the store adds records that were lost")),
        });
        self.refused.keep(&item.path, found)
    }

    fn array(&mut self, item: &Item<'a>, slot: Slot) {
        let leaf = item.leaf.filter(|leaf| leaf.kind.is_castable());
        let Some(array) = leaf.and_then(Leaf::as_array) else {
            return self.refused.add(&item.path, unexpected("an array"));
        };
        let spec = slot.spec;
        if array.dtype() == spec.dtype && array.shape().dims() == [spec.rows, spec.columns] {
            return self.arrays.push((slot, array));
        }
        let found = format!("{} of shape {}", array.dtype(), array.shape());
        let error = Error::unsupported("an array differs from the metadata").expected(spec, found);
        let help = "a TRAK store has one precision and one set of sizes for all models";
        self.refused.add(&item.path, error.help(help));
    }
}

impl<'a> Item<'a> {
    fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|(key, _)| key.text() == name).map(|(_, child)| child)
    }

    /// The members of the child dict `name`; none if the child is missing.
    fn members(&self, name: &str) -> Result<&[(Key, Item<'a>)]> {
        self.child(name).map_or(Ok(&[]), Self::dict)
    }

    fn dict(&self) -> Result<&[(Key, Item<'a>)]> {
        match self.kind {
            NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict => Ok(&self.children),
            other => Err(Error::unsupported("the tree is not that of a TRAK store")
                .at_leaf(&self.path)
                .expected(format_args!("a dict ({EXPECTED})"), other.name())),
        }
    }

    /// The item as JSON.
    fn to_json(&self) -> Result<Value> {
        if let Some(leaf) = self.leaf {
            return number_or_text(leaf).ok_or_else(|| unexpected("text or a number").at_leaf(&self.path));
        }
        Ok(match self.kind {
            NodeKind::None => Value::Null,
            NodeKind::List | NodeKind::Tuple => {
                Value::Array(self.children.iter().map(|(_, child)| child.to_json()).collect::<Result<_>>()?)
            }
            _ => {
                let members = self.dict()?.iter();
                let pairs = members.map(|(key, child)| Ok((key.text().into_owned(), child.to_json()?)));
                Value::Object(pairs.collect::<Result<_>>()?)
            }
        })
    }
}

/// The error of a JSON file as the error of a tree.
fn in_a_tree(error: Error) -> Error {
    Error::unsupported(error.what().to_owned())
}

fn unexpected(expected: &str) -> Error {
    Error::unsupported("a TRAK store cannot store this").expected(expected, "something else")
}

/// The tree as nested items.
fn nest(tree: &Tree<Leaf>) -> Result<Item<'_>> {
    let mut leaves = tree.leaves().iter();
    let mut open: Vec<(Key, usize, Item<'_>)> = Vec::new();
    for (path, node) in tree.walk() {
        if open.len() > MEMBER_DEPTH_MAX {
            return Err(Error::unsupported("a TRAK store cannot nest deeper").at_leaf(&path));
        }
        let leaf = if node.kind == NodeKind::Leaf { leaves.next() } else { None };
        let item = Item { path, kind: &node.kind, children: Vec::new(), leaf };
        open.push((node.key.clone(), node.child_count, item));
        while open.last().is_some_and(|(_, left, _)| *left == 0) {
            let Some((key, _, done)) = open.pop() else { break };
            match open.last_mut() {
                Some((_, left, parent)) => {
                    *left -= 1;
                    parent.children.push((key, done));
                }
                None => return Ok(done),
            }
        }
    }
    Err(Error::invalid("a tree has a root"))
}

/// The precision of the first array of floats; half if there is none.
fn first_precision(models: Option<&Item<'_>>) -> Precision {
    let arrays = models.iter().flat_map(|models| &models.children).flat_map(|(_, model)| &model.children);
    arrays
        .filter_map(|(_, item)| item.leaf.and_then(Leaf::as_array))
        .find_map(|array| Precision::of(array.dtype()))
        .unwrap_or(Precision::Half)
}

fn number_or_text(leaf: &Leaf) -> Option<Value> {
    let array = match (&leaf.kind, &leaf.data) {
        (LeafKind::Str, LeafData::Text(text)) => return Some(Value::from(&**text)),
        (
            LeafKind::Scalar | LeafKind::NumpyScalar | LeafKind::NumpyArray | LeafKind::JaxArray,
            LeafData::Array(array),
        ) if array.shape().rank() == 0 => array,
        _ => return None,
    };
    let bytes = array.to_c_order().ok()?;
    let wide = |to: Dtype| -> Option<[u8; 8]> {
        let mut out = [0; 8];
        cast_bytes(&bytes, array.dtype(), to, &mut out).ok()?;
        Some(out)
    };
    match array.dtype().class() {
        DtypeClass::Bool => Some(Value::from(bytes.first() == Some(&1))),
        DtypeClass::Signed => wide(Dtype::Int64).map(|number| Value::from(i64::from_le_bytes(number))),
        DtypeClass::Unsigned => wide(Dtype::UInt64).map(|number| Value::from(u64::from_le_bytes(number))),
        DtypeClass::Float => {
            let number = f64::from_le_bytes(wide(Dtype::Float64)?);
            serde_json::Number::from_f64(number).map(Value::Number)
        }
        DtypeClass::Complex => None,
    }
}
