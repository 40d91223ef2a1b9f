//! The options of callers. The fields are those of the classes in `regrow/_core/_requests.py`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use regrow::array::{Casting, Dtype};
use regrow::coordination::{Job, SessionOptions};
use regrow::engine::{Compression, Layout, TemplateLeaf};
use regrow::location::ToLocation;
use regrow::tree::{PathPattern, Tree};
use regrow::{Error, LoadOptions, RegionOptions, Result, SaveOptions};
use regrow_layouts::orbax::json_text;
use serde_json::{Map, Value};

use crate::columns::StructureIn;
use crate::coordination::{CoordinatorIn, WaitIn, session_options};
use crate::error::OrRaise;
use crate::gather::TemplateLeaves;
use crate::location::LocationIn;
use crate::watch::seconds;

/// The casts, as patterns with the names of dtypes, and the allowed changes of values.
#[derive(FromPyObject)]
pub struct CastsIn {
    rules: Vec<(String, String)>,
    casting: CastingIn,
}

/// The allowed changes of values: `"checked"`, `"lossy"` or `"as_numpy"`.
pub struct CastingIn(pub Casting);

impl FromPyObject<'_, '_> for CastingIn {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self(match value.extract::<&str>()? {
            "lossy" => Casting::Lossy,
            "as_numpy" => Casting::AsNumpy,
            _ => Casting::Checked,
        }))
    }
}

/// The files that a save may replace: none, a checkpoint, or `"any file"`. `"any file"` is for
/// regrow's replacements of another library's functions.
#[derive(FromPyObject)]
pub enum OverwriteIn {
    Checkpoint(bool),
    Name(String),
}

/// The options of a save.
#[derive(FromPyObject)]
pub struct SaveIn {
    overwrite: OverwriteIn,
    durable: bool,
    keep_cached: bool,
    casts: CastsIn,
    compression: Option<CompressionIn>,
    metadata: Option<String>,
    seal: bool,
    parity: Option<String>,
    trust_base: bool,
    budget_bytes: Option<u64>,
    wait: f64,
    layout: String,
    layout_options: String,
    base: Option<LocationIn>,
    job: Option<JobIn>,
}

impl SaveIn {
    /// Takes the job out of the options, so that the caller can use the job before it checks the
    /// other options.
    pub fn take_job(&mut self) -> Result<Option<Job>> {
        self.job.take().map(to_job).transpose()
    }
}

/// The job of a save: a coordinator, and the options of waits between its processes.
pub type JobIn = (CoordinatorIn, WaitIn);

/// The compression: `"none"`, or a level of zstd.
#[derive(FromPyObject)]
pub enum CompressionIn {
    Level(i32),
    Name(String),
}

pub fn save_options(save: SaveIn) -> Result<SaveOptions> {
    let compression = match save.compression {
        None => None,
        Some(CompressionIn::Level(level)) => Some(Compression::Zstd(level)),
        Some(CompressionIn::Name(name)) if name == "none" => Some(Compression::None),
        Some(CompressionIn::Name(name)) => {
            return Err(Error::invalid(format!("the compression {name:?} is not known")));
        }
    };
    let custom_metadata = save.metadata.as_deref().map(to_metadata).transpose()?;
    let (overwrite, replace_any_file) = match save.overwrite {
        OverwriteIn::Checkpoint(overwrite) => (overwrite, false),
        OverwriteIn::Name(name) if name == "any file" => (true, true),
        OverwriteIn::Name(name) => {
            return Err(Error::invalid(format!("overwrite={name:?} is not valid: it is true or false")));
        }
    };
    Ok(SaveOptions {
        layout: to_layout(&save.layout, &save.layout_options)?,
        overwrite,
        replace_any_file,
        not_durable: !save.durable,
        keep_cached: save.keep_cached,
        cast: to_casts(save.casts.rules)?,
        casting: save.casts.casting.0,
        compression,
        custom_metadata,
        seal: save.seal,
        parity: save.parity.as_deref().map(str::parse).transpose()?,
        trust_base: save.trust_base,
        base: save.base.as_ref().map(ToLocation::to_location).transpose()?,
        budget_bytes: save.budget_bytes,
        wait: seconds(save.wait),
        job: save.job.map(to_job).transpose()?,
        ..SaveOptions::default()
    })
}

/// Runs `make` for a save of `path`. If `make` fails, the other processes of the job, which join
/// this save, receive the error.
pub fn or_posted<T>(
    py: Python<'_>,
    path: &LocationIn,
    job: Option<&Job>,
    make: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    make().inspect_err(|raised| {
        if let (Some(job), Ok(at)) = (job, path.to_location()) {
            let error = Error::invalid(raised.value(py).to_string());
            py.detach(|| drop(job.refuse(&at, "save", error)));
        }
    })
}

pub fn to_job((coordinator, wait): JobIn) -> Result<Job> {
    let coordinator = Python::attach(|py| coordinator.into_coordinator(py));
    let coordinator = coordinator.map_err(|raised| {
        Error::invalid(format!("the coordinator cannot be used: {raised}"))
            .help("give an object of the protocol regrow.Coordinator")
    })?;
    let SessionOptions { timeout, prefix, on_wait, .. } = session_options(wait)?;
    Ok(Job { coordinator, timeout, prefix, on_wait })
}

fn to_metadata(text: &str) -> Result<Value> {
    json_text::parse(text.as_bytes())
        .map_err(|error| Error::invalid(format!("the metadata is not JSON: {}", error.what())))
}

/// The entries of metadata, which must be a JSON object.
pub fn metadata_members(text: Option<String>) -> Result<Map<String, Value>> {
    match text.as_deref().map(to_metadata).transpose()? {
        None => Ok(Map::new()),
        Some(Value::Object(members)) => Ok(members),
        Some(other) => Err(Error::invalid("the metadata of a checkpoint of items must be an object")
            .expected("a dict", other)),
    }
}

/// The layout with this name. `options` are its options as JSON.
pub fn to_layout(name: &str, options: &str) -> Result<Layout> {
    let options = serde_json::from_str(options)
        .map_err(|error| Error::invalid(format!("the options of layout {name:?} are not JSON: {error}")))?;
    Layout::from_name(name, options)
}

/// The options of a load of an opened checkpoint.
#[derive(FromPyObject)]
pub struct LoadRequest<'py> {
    only: Vec<String>,
    casts: CastsIn,
    template: Option<TemplateIn<'py>>,
    partial: bool,
    verify: bool,
    mmap: bool,
    budget_bytes: Option<u64>,
    unread: Vec<usize>,
}

pub fn load_options(load: LoadRequest<'_>) -> PyResult<LoadOptions> {
    let template = load.template.map(to_template).transpose()?;
    let only = load.only.iter().map(|text| PathPattern::new(text)).collect::<Result<_>>();
    Ok(LoadOptions {
        only: only.or_raise()?,
        cast: to_casts(load.casts.rules).or_raise()?,
        casting: load.casts.casting.0,
        template,
        partial: load.partial,
        unverified: !load.verify,
        mapped: load.mmap,
        budget_bytes: load.budget_bytes,
        unread: load.unread,
        ..LoadOptions::default()
    })
}

/// The options of a load of regions, from Python.
#[derive(FromPyObject)]
pub struct RegionsHowIn {
    casting: CastingIn,
    verify: bool,
    budget_bytes: Option<u64>,
}

pub fn region_options(how: RegionsHowIn) -> RegionOptions {
    RegionOptions {
        casting: how.casting.0,
        unverified: !how.verify,
        budget_bytes: how.budget_bytes,
        ..RegionOptions::default()
    }
}

/// A template: the structure, the requirements of its leaves, and the leaves to skip.
type TemplateIn<'py> = (StructureIn<'py>, PyRef<'py, TemplateLeaves>, PyBackedBytes);

fn to_template((structure, leaves, skips): TemplateIn<'_>) -> PyResult<Tree<TemplateLeaf>> {
    structure.tree().with_leaves(leaves.leaves(&skips)).or_raise()
}

fn to_casts(casts: Vec<(String, String)>) -> Result<Vec<(PathPattern, Dtype)>> {
    casts.into_iter().map(|(pattern, dtype)| Ok((PathPattern::new(&pattern)?, dtype.parse()?))).collect()
}
