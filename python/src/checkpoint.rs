//! Saves and opens checkpoints, and reads opened ones. Each call of the engine releases the
//! interpreter.

use std::ffi::OsString;

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use regrow::array::{Array, Region, Shape};
use regrow::engine::Selected;
use regrow::options::LostFiles;
use regrow::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, PathPattern};
use regrow::{Error, OpenOptions, PublicKey, RegionOptions, SaveReport, VerifyOptions, VerifyReport};
use regrow_base::wording::{Caller, in_words_of};
use regrow_layouts::Loss;
use regrow_layouts::orbax::json_text;

use crate::columns::{Structure, StructureIn, print_paths};
use crate::convert::transform_rules;
use crate::error::{OrRaise, place, released};
use crate::gather::let_go;
use crate::leaves::{
    LeavesIn, LeavesOut, from_infos, from_leaves, kind_number, shape_tuples, show_arrays, to_leaves,
};
use crate::location::LocationIn;
use crate::memory::{Destinations, Slab};
use crate::options::{
    LoadRequest, RegionsHowIn, SaveIn, load_options, or_posted, region_options, save_options,
};
use crate::regions::{RegionsIn, leaf_regions};
use crate::safetensors::{MapsOut, maps_out};
use crate::watch::{WatchIn, watched};

/// A save report: path, stored bytes, number of leaves, bytes of data, seconds, stages (name,
/// seconds, bytes, GB/s), I/O path, reused bytes, notes, losses.
pub type SaveOut = (
    OsString,
    u64,
    usize,
    u64,
    f64,
    Vec<(&'static str, f64, u64, f64)>,
    String,
    u64,
    Vec<String>,
    Vec<LossOut>,
);

/// Saves a tree, and returns the report.
#[pyfunction]
pub fn save(
    py: Python<'_>,
    path: LocationIn,
    structure: StructureIn<'_>,
    leaves: LeavesIn<'_>,
    mut options: SaveIn,
    watch: WatchIn,
) -> PyResult<SaveOut> {
    let job = options.take_job().or_raise()?;
    let (tree, mut options) = or_posted(py, &path, job.as_ref(), || {
        let leaves = to_leaves(structure.tree(), &leaves)?;
        Ok((structure.tree().with_leaves(leaves).or_raise()?, save_options(options).or_raise()?))
    })?;
    options.job = job;
    let len_bytes =
        tree.leaves().iter().filter_map(Leaf::as_array).map(Array::len_bytes).fold(0, u64::saturating_add);
    let report = watched(py, watch, len_bytes, |monitor| {
        options.monitor = monitor;
        regrow::save_with(path, &tree, &options)
    });
    // Drop the tree while this thread holds the interpreter: the leaves own Python objects.
    drop(tree);
    let_go(py);
    Ok(save_report(report?))
}

/// A loss: its kind, the key path, and what happens to the leaf.
pub type LossOut = (&'static str, String, String);

pub fn loss_out(loss: &Loss) -> LossOut {
    (loss.kind.name(), loss.path.to_string(), loss.what.clone())
}

pub fn save_report(report: SaveReport) -> SaveOut {
    let gb_per_s =
        report.stages.iter().map(|stage| (stage.stage.name(), stage.seconds, stage.bytes, stage.gb_per_s()));
    let stages = gb_per_s.collect();
    (
        report.path.into_os_string(),
        report.stored_bytes,
        report.leaf_count,
        report.data_bytes,
        report.seconds,
        stages,
        report.io_path.to_string(),
        report.reused_bytes,
        in_python(&report.notes),
        report.losses.iter().map(loss_out).collect(),
    )
}

/// The options of an opening: `regrow/_load/_opening.py`.
#[derive(FromPyObject)]
pub struct OpeningIn {
    step: Option<u64>,
    item: Option<String>,
    lost_is_error: bool,
    arrays_only: bool,
    mmap: bool,
    ignore_seal: bool,
    /// Public keys as hex digits.
    trusted_keys: Vec<String>,
    /// Whether the tree comes from a template, so that leaves are found by name.
    by_names: bool,
}

fn open_options(opening: OpeningIn) -> regrow::Result<OpenOptions> {
    Ok(OpenOptions {
        step: opening.step,
        item: opening.item,
        lost_files: lost_files(opening.lost_is_error),
        arrays_only: opening.arrays_only,
        mapped: opening.mmap,
        ignore_seal: opening.ignore_seal,
        trusted_keys: opening
            .trusted_keys
            .iter()
            .map(|key| PublicKey::parse(key))
            .collect::<Result<_, _>>()?,
        by_names: opening.by_names,
        ..OpenOptions::default()
    })
}

pub fn lost_files(is_error: bool) -> LostFiles {
    if is_error { LostFiles::Error } else { LostFiles::Warn }
}

/// Opens a checkpoint of any layout. Reads only metadata.
#[pyfunction]
pub fn open(py: Python<'_>, path: LocationIn, opening: OpeningIn) -> PyResult<Checkpoint> {
    released(py, || regrow::open_with(path, &open_options(opening)?)).map(Checkpoint)
}

/// The intact part of a checkpoint, with placeholders for lost leaves; then the losses, other
/// damage, and whether the pytree is lost.
type IntactOut = (Checkpoint, Vec<FindingOut>, Vec<FindingOut>, bool);

/// Opens the intact part of a damaged checkpoint. Verifies all of it.
#[pyfunction]
pub fn open_intact(
    py: Python<'_>,
    path: LocationIn,
    opening: OpeningIn,
    watch: WatchIn,
) -> PyResult<IntactOut> {
    let open = released(py, || open_options(opening))?;
    let intact = watched(py, watch, u64::MAX, |monitor| regrow::engine::open_intact(path, &open, &monitor))?;
    let findings = |errors: &[regrow::Error]| errors.iter().map(finding_out).collect();
    let (lost, damage) = (findings(&intact.lost), findings(&intact.damage));
    Ok((Checkpoint(intact.checkpoint), lost, damage, intact.is_bare))
}

/// Reads and checks the whole checkpoint at a path.
#[pyfunction]
pub fn verify(py: Python<'_>, path: LocationIn, opening: OpeningIn, watch: WatchIn) -> PyResult<VerifyOut> {
    let open = released(py, || open_options(opening))?;
    // The size is unknown until the checkpoint is open, so watch as if the work were long.
    let report =
        watched(py, watch, u64::MAX, |monitor| regrow::verify_with(path, &VerifyOptions { open, monitor }))?;
    Ok(verify_out(report))
}

/// The number of a step, and its report or the error of its opening.
type VerifiedStepOut = (u64, Option<VerifyOut>, Option<FindingOut>);

/// Verifies each committed step of a folder. Returns for each its number, and the report or the
/// error of its opening.
#[pyfunction]
pub fn verify_steps(
    py: Python<'_>,
    path: LocationIn,
    opening: OpeningIn,
    watch: WatchIn,
) -> PyResult<Vec<VerifiedStepOut>> {
    let open = released(py, || open_options(opening))?;
    let verified = watched(py, watch, u64::MAX, |monitor| {
        regrow::engine::verify_steps(path, &VerifyOptions { open, monitor })
    })?;
    let step = |(step, verified): (u64, regrow::Result<VerifyReport>)| match verified {
        Ok(report) => (step, Some(verify_out(report)), None),
        Err(error) => (step, None, Some(finding_out(&error))),
    };
    Ok(verified.into_iter().map(step).collect())
}

/// Reads and checks one share of the leaves. For each finding, also returns its rank among the
/// findings of all shares, and its text on one line.
#[pyfunction]
pub fn verify_share(
    py: Python<'_>,
    path: LocationIn,
    opening: OpeningIn,
    share: (u32, u32),
    watch: WatchIn,
) -> PyResult<(VerifyOut, Vec<(usize, String)>)> {
    let open = released(py, || open_options(opening))?;
    let verified = watched(py, watch, u64::MAX, |monitor| {
        regrow::engine::verify_share(path, &VerifyOptions { open, monitor }, share.0, share.1)
    })?;
    let said = verified.report.findings.iter().map(|finding| finding.error.what().to_owned());
    let places = verified.places.iter().copied().zip(said).collect();
    Ok((verify_out(verified.report), places))
}

fn verify_out(report: VerifyReport) -> VerifyOut {
    let unprotected = report.unprotected_files.into_iter();
    let findings = report.findings.iter().map(|finding| finding_out(&finding.error)).collect();
    (
        findings,
        report.checked_bytes,
        report.leaf_count,
        report.has_data_checksums,
        in_python(&report.notes),
        report.unprotected_bytes,
        report.signer.map(|signer| signer.to_string()),
        unprotected.map(|each| (each.file.into_os_string(), each.bytes)).collect(),
        report.step,
    )
}

pub fn finding_out(error: &Error) -> FindingOut {
    let error = error.in_words_of(Caller::Python);
    let (file, leaf, offset_bytes) = place(&error);
    (error.kind().name(), error.to_string(), file, leaf, offset_bytes)
}

/// Notes and warnings with the names that options have in Python.
pub fn in_python(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| in_words_of(Caller::Python, text)).collect()
}

/// An opened checkpoint. A leaf is given by its position in flatten order.
#[pyclass(frozen, module = "regrow._native")]
pub struct Checkpoint(regrow::Checkpoint);

impl Checkpoint {
    pub fn new(checkpoint: regrow::Checkpoint) -> Self {
        Self(checkpoint)
    }

    pub fn opened(&self) -> &regrow::Checkpoint {
        &self.0
    }

    fn len_bytes(&self) -> u64 {
        self.0.tree().leaves().iter().map(LeafInfo::len_bytes).fold(0, u64::saturating_add)
    }
}

/// The structure; then the kinds, dtypes, shapes and stored names of the leaves.
type TreeOut<'py> =
    (Structure, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>);

/// A leaf: its key path, stored name, kind, dtype and shape.
type LeafOut<'py> = (String, String, u8, u8, Bound<'py, PyTuple>);

/// More metadata of a leaf: chunk shape, write shape, sharding as JSON, encoding.
type InfoOut<'py> = (Option<Bound<'py, PyTuple>>, Option<Bound<'py, PyTuple>>, Option<String>, String);

/// Selected leaves: their positions, kinds, dtypes and shapes.
type SelectedOut<'py> = (Bound<'py, PyList>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyList>);

/// A verification report: findings, bytes read, number of leaves, whether there are checksums,
/// notes, bytes without checksums, signer, files with such bytes, the step of a folder of steps.
type VerifyOut =
    (Vec<FindingOut>, u64, usize, bool, Vec<String>, u64, Option<String>, Vec<(OsString, u64)>, Option<u64>);

/// A finding: its kind, message, file, leaf and offset.
pub type FindingOut = (&'static str, String, Option<String>, Option<String>, Option<u64>);

#[pymethods]
impl Checkpoint {
    #[getter]
    fn path(&self) -> OsString {
        self.0.path().into()
    }

    #[getter]
    fn layout(&self) -> &str {
        &self.0.description().layout
    }

    #[getter]
    fn variant(&self) -> &str {
        &self.0.description().variant
    }

    #[getter]
    fn step(&self) -> Option<u64> {
        self.0.description().step
    }

    #[getter]
    fn steps(&self) -> Vec<u64> {
        self.0.description().steps.clone()
    }

    #[getter]
    fn items(&self) -> Vec<(String, String)> {
        self.0.description().items.clone()
    }

    /// The subtree at a printed key path, as a checkpoint.
    fn at(&self, path: &str) -> PyResult<Self> {
        self.0.at(path).or_raise().map(Self)
    }

    /// The checkpoint with its leaves renamed, transposed and reshaped.
    fn transformed(
        &self,
        rename: Vec<(String, String)>,
        transpose: Vec<(String, Vec<usize>)>,
        reshape: Vec<(String, Vec<i64>)>,
    ) -> PyResult<Self> {
        let rules = transform_rules(rename, transpose, reshape).or_raise()?;
        self.0.transformed(&rules).or_raise().map(Self)
    }

    /// The files of an item, by their names in the item's folder.
    fn item_files<'py>(&self, py: Python<'py>, item: &str) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let files = released(py, || self.0.item_files(item))?;
        Ok(files.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
    }

    #[getter]
    fn metadata(&self) -> Option<String> {
        self.0.description().custom_metadata.as_ref().map(json_text::to_text)
    }

    #[getter]
    fn objects(&self) -> Option<String> {
        self.0.description().objects.clone()
    }

    #[getter]
    fn metrics(&self) -> Option<String> {
        self.0.description().metrics.as_ref().map(json_text::to_text)
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        in_python(&self.0.description().notes)
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        in_python(&self.0.description().warnings)
    }

    fn tree<'py>(&self, py: Python<'py>) -> PyResult<TreeOut<'py>> {
        let tree = self.0.tree();
        let (kinds, dtypes, shapes, names) = from_infos(py, tree.leaves())?;
        Ok((Structure::of(tree)?, kinds, dtypes, shapes, names))
    }

    /// The structure without metadata of the leaves.
    #[getter]
    fn structure(&self) -> PyResult<Structure> {
        Structure::of(self.0.tree())
    }

    #[getter]
    fn leaf_count(&self) -> usize {
        self.0.tree().len()
    }

    /// Key path, stored name, kind, dtype and shape of a leaf.
    fn leaf<'py>(&self, py: Python<'py>, leaf: usize) -> PyResult<LeafOut<'py>> {
        let info = self.0.info(leaf).or_raise()?;
        let path = self.0.key_path(leaf).or_raise()?.to_string();
        let shape = PyTuple::new(py, info.shape.dims())?;
        Ok((path, info.name.to_string(), kind_number(&info.kind), info.dtype as u8, shape))
    }

    /// The first `count` keys; `None` if they depend on the paths of all leaves.
    fn first_keys(&self, count: usize) -> Option<Vec<String>> {
        self.0.first_keys(count)
    }

    /// A text for each leaf, with which `find` finds exactly this leaf.
    fn keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        released(py, || Ok(self.0.keys()))
    }

    /// The printed key paths of leaves without data that match one of the patterns; of all leaves
    /// without data if there are no patterns.
    fn placeholders(&self, only: Vec<String>) -> PyResult<Vec<String>> {
        let only =
            only.iter().map(|text| PathPattern::new(text)).collect::<Result<Vec<_>, _>>().or_raise()?;
        let is_placeholder = |(path, info): &(KeyPath, &LeafInfo)| {
            info.kind == LeafKind::Placeholder
                && (only.is_empty() || only.iter().any(|pattern| pattern.matches(path)))
        };
        if !self.0.tree().leaves().iter().any(|info| info.kind == LeafKind::Placeholder) {
            return Ok(Vec::new());
        }
        Ok(self.0.tree().iter().filter(is_placeholder).map(|(path, _)| path.to_string()).collect())
    }

    /// The printed key paths. Two leaves may have the same text.
    fn paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        released(py, || Ok(print_paths(self.0.paths())))
    }

    fn info<'py>(&self, py: Python<'py>, leaf: usize) -> PyResult<InfoOut<'py>> {
        let info = self.0.info(leaf).or_raise()?;
        let tuple = |shape: &Option<Shape>| -> PyResult<Option<Bound<'py, PyTuple>>> {
            shape.as_ref().map(|shape| PyTuple::new(py, shape.dims())).transpose()
        };
        let sharding = info.sharding.as_ref().map(|sharding| sharding.to_json().to_string());
        Ok((tuple(&info.chunk_shape)?, tuple(&info.write_shape)?, sharding, info.coding.to_string()))
    }

    fn find(&self, path: &str) -> PyResult<usize> {
        self.0.find(path).or_raise()
    }

    fn read<'py>(&self, py: Python<'py>, leaf: usize) -> PyResult<LeavesOut<'py>> {
        let leaf_read = released(py, || self.0.read(leaf))?;
        from_leaves(py, vec![leaf_read], |_| self.0.key_path(leaf).unwrap_or_default())
    }

    fn region(&self, py: Python<'_>, leaf: usize, starts: Vec<u64>, lens: Vec<u64>) -> PyResult<Slab> {
        let region = Region::new(starts, lens).or_raise()?;
        let array = released(py, || self.0.region(leaf, &region))?;
        Ok(Slab::new(array.to_c_order().or_raise()?))
    }

    /// Loads regions of leaves, each into its own array.
    fn load_regions<'py>(
        &self,
        py: Python<'py>,
        wanted: Vec<RegionsIn<'py>>,
        how: RegionsHowIn,
        watch: WatchIn,
    ) -> PyResult<Bound<'py, PyList>> {
        let wanted = leaf_regions(wanted);
        let elements = wanted.iter().map(|want| want.region.len_elements());
        let mut options = region_options(how);
        let arrays = watched(py, watch, elements.fold(0, u64::saturating_add), |monitor| {
            options.monitor = monitor;
            self.0.load_regions(&wanted, &options)
        })?;
        show_arrays(py, &arrays, |at| {
            let leaf = wanted.get(at).map(|want| want.leaf);
            leaf.and_then(|leaf| self.0.key_path(leaf).ok()).unwrap_or_default()
        })
    }

    /// Private maps of the files of these leaves, and the position of each leaf in its map.
    fn map_private(
        &self,
        py: Python<'_>,
        leaves: Vec<usize>,
        unverified: bool,
        watch: WatchIn,
    ) -> PyResult<MapsOut> {
        let maps = watched(py, watch, u64::MAX, |monitor| {
            self.0.map_private(&leaves, &RegionOptions { unverified, monitor, ..RegionOptions::default() })
        })?;
        Ok(maps_out(maps))
    }

    /// The leaves that a load would return: positions (-1 for none), kinds, dtypes after casts,
    /// shapes.
    fn select<'py>(&self, py: Python<'py>, load: LoadRequest<'py>) -> PyResult<SelectedOut<'py>> {
        let options = load_options(load)?;
        let selected = released(py, || self.0.select(&options))?;
        let infos = self.0.tree().leaves();
        let info = |leaf: &Option<Selected>| leaf.and_then(|leaf| infos.get(leaf.leaf));
        let leaves = selected.iter().map(|leaf| leaf.map_or(-1, |leaf| leaf.leaf as i64));
        let kinds: Vec<u8> =
            selected.iter().map(|leaf| info(leaf).map_or(u8::MAX, |info| kind_number(&info.kind))).collect();
        let dtypes: Vec<u8> =
            selected.iter().map(|leaf| leaf.map_or(u8::MAX, |leaf| leaf.dtype as u8)).collect();
        let shapes = shape_tuples(py, selected.iter().map(|leaf| info(leaf).map(|info| &info.shape)))?;
        Ok((
            PyList::new(py, leaves.collect::<Vec<_>>())?,
            PyBytes::new(py, &kinds),
            PyBytes::new(py, &dtypes),
            shapes,
        ))
    }

    /// Loads the leaves that a request selects.
    fn load<'py>(
        &self,
        py: Python<'py>,
        load: LoadRequest<'py>,
        watch: WatchIn,
    ) -> PyResult<(Structure, LeavesOut<'py>)> {
        let mut options = load_options(load)?;
        let tree = watched(py, watch, self.len_bytes(), |monitor| {
            options.monitor = monitor;
            self.0.load(&options)
        })?;
        let structure = Structure::of(&tree)?;
        let path_of = |at| structure.tree().path_of(at);
        let leaves = from_leaves(py, tree.into_leaves(), path_of)?;
        Ok((structure, leaves))
    }

    /// Loads into arrays: one array, or `None`, for each leaf of the template. Returns which arrays
    /// were filled in place.
    fn load_into<'py>(
        &self,
        py: Python<'py>,
        load: LoadRequest<'py>,
        outs: Vec<Option<Bound<'py, PyUntypedArray>>>,
        watch: WatchIn,
    ) -> PyResult<(Vec<bool>, LeavesOut<'py>)> {
        let mut options = load_options(load)?;
        let mut outs = Destinations::new(outs);
        let bytes = outs.bytes_mut();
        let tree = watched(py, watch, self.len_bytes(), |monitor| {
            options.monitor = monitor;
            self.0.load_into_memory(&options, bytes)
        })?;
        let is_absent = |leaf: &Leaf| matches!(leaf.data, LeafData::Absent);
        let is_array = |leaf: &Leaf| !matches!(leaf.kind, LeafKind::Placeholder | LeafKind::Unknown(_));
        let filled = tree.leaves().iter().zip(outs.are_filled());
        let filled = filled.map(|(leaf, given)| given && is_absent(leaf) && is_array(leaf)).collect();
        let structure = Structure::of(&tree)?;
        let leaves = from_leaves(py, tree.into_leaves(), |at| structure.tree().path_of(at))?;
        Ok((filled, leaves))
    }

    fn verify(&self, py: Python<'_>, watch: WatchIn) -> PyResult<VerifyOut> {
        watched(py, watch, self.len_bytes(), |monitor| self.0.verify_watched(&monitor)).map(verify_out)
    }

    /// Bytes of all arrays and texts.
    #[getter]
    fn data_bytes(&self) -> u64 {
        self.len_bytes()
    }

    /// Whether another checkpoint has replaced this one at its path since the opening.
    fn is_replaced(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_replaced())
    }

    fn overview(&self, py: Python<'_>) -> PyResult<String> {
        released(py, || Ok(regrow::engine::overview(&self.0)))
    }
}
