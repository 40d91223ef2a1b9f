//! A TRAK store. Rows, marks and flags pass between Python and Rust. For each array, Python gets
//! the path and the offset of the data, and maps the data.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use regrow::array::Dtype;
use regrow::{Error, Result};
use regrow_layouts::trak::{
    self, ArrayFile, ExperimentName, Mode, ModelFlags, Parameters, Precision, Repair, Rows, TrainArray,
    repair,
};
use serde_json::{Map, Value};

use crate::error::{OrRaise, released};
use crate::memory::borrow_array;

/// An array: its key, path, dtype, rows, columns, and the offset of its data.
type Described = (String, OsString, &'static str, u64, u64, u64);

/// The models with their two flags, `experiments.json` as text, and the damage.
type CatalogOut = (Vec<(i64, bool, bool)>, String, Vec<String>);

/// An opened store.
#[pyclass(frozen, module = "regrow._native")]
pub struct TrakStore(trak::TrakStore);

#[pymethods]
impl TrakStore {
    /// Creates or joins a store. `mode` is `create` or `join`; the metadata are JSON.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        sizes: (u64, u64),
        half_precision: bool,
        mode: &str,
        metadata: &str,
        sync_interval: Option<f64>,
    ) -> PyResult<Self> {
        let (train_set_size, proj_dim) = sizes;
        let parameters = Parameters { train_set_size, proj_dim, precision: precision(half_precision) };
        let mode = match mode {
            "create" => Mode::Create(object(metadata).or_raise()?),
            _ => Mode::Join(object(metadata).or_raise()?),
        };
        let interval = |seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Error::invalid(format!("{seconds} seconds are not an interval")))
        };
        let interval = sync_interval.map(interval).transpose().or_raise()?;
        let opened = released(py, || trak::TrakStore::open(&path, parameters, &mode));
        opened.map(|store| match interval {
            Some(interval) => Self(store.with_sync_interval(interval)),
            None => Self(store.without_syncs()),
        })
    }

    fn catalog(&self, py: Python<'_>) -> PyResult<CatalogOut> {
        let catalog = released(py, || self.0.catalog())?;
        let models =
            catalog.models.iter().map(|(&id, flags)| (id, flags.is_featurized, flags.is_finalized)).collect();
        let experiments = Value::Object(catalog.experiments.unwrap_or_default()).to_string();
        Ok((models, experiments, catalog.faults.iter().map(|fault| fault.error.to_string()).collect()))
    }

    fn register(&self, py: Python<'_>, id: i64, reset: bool) -> PyResult<(bool, bool)> {
        let flags = released(py, || self.0.register(id, reset))?;
        Ok((flags.is_featurized, flags.is_finalized))
    }

    fn reset_arrays(&self, py: Python<'_>, id: i64) -> PyResult<()> {
        released(py, || self.0.reset_arrays(id))
    }

    fn model(&self, py: Python<'_>, id: i64) -> PyResult<TrakArrays> {
        let arrays = released(py, || self.0.model(id))?;
        Ok(TrakArrays { rows: arrays.rows, plain: (TrainArray::Features.key(), arrays.features) })
    }

    fn write_flags(&self, py: Python<'_>, id: i64, is_finalized: bool) -> PyResult<(bool, bool)> {
        let flags = released(py, || self.0.write_flags(id, is_finalized))?;
        Ok((flags.is_featurized, flags.is_finalized))
    }

    fn refresh_flags(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.0.refresh_flags())
    }

    fn lower_flags(
        &self,
        py: Python<'_>,
        id: i64,
        keep_featurized: bool,
        keep_finalized: bool,
    ) -> PyResult<()> {
        let keep = ModelFlags { is_featurized: keep_featurized, is_finalized: keep_finalized };
        released(py, || self.0.lower_flags(id, keep))
    }

    fn delete_grads(&self, py: Python<'_>, id: i64) -> PyResult<()> {
        released(py, || self.0.delete_grads(id))
    }

    fn init_experiment(
        &self,
        py: Python<'_>,
        name: &str,
        num_targets: u64,
        id: i64,
        reset: bool,
    ) -> PyResult<(u64, bool)> {
        let work = || self.0.init_experiment(&ExperimentName::new(name)?, num_targets, id, reset);
        let experiment = released(py, work)?;
        Ok((experiment.num_targets, experiment.scores_finalized))
    }

    fn experiment(&self, py: Python<'_>, name: &str, num_targets: u64, id: i64) -> PyResult<TrakArrays> {
        let work = || self.0.experiment(&ExperimentName::new(name)?, num_targets, id);
        let arrays = released(py, work)?;
        Ok(TrakArrays { rows: arrays.targets, plain: ("scores", arrays.scores) })
    }

    fn finalize_scores(
        &self,
        py: Python<'_>,
        name: &str,
        is_final: bool,
        allow_non_finite: bool,
    ) -> PyResult<()> {
        let work = || self.0.finalize_scores(&ExperimentName::new(name)?, is_final, allow_non_finite);
        released(py, work)
    }

    fn bind_checkpoint(&self, py: Python<'_>, id: i64, identity: &str) -> PyResult<()> {
        released(py, || self.0.bind_checkpoint(id, identity))
    }
}

/// The open arrays of one model, or of an experiment for one model.
#[pyclass(frozen, module = "regrow._native")]
pub struct TrakArrays {
    rows: Rows,
    plain: (&'static str, ArrayFile),
}

#[pymethods]
impl TrakArrays {
    /// Describes all arrays. The mask comes last, as `mask`.
    fn describe(&self) -> Vec<Described> {
        let plain = [(self.plain.0, &self.plain.1), ("mask", self.rows.mask())];
        let all = self.rows.arrays().chain(plain);
        all.map(|(key, array)| {
            let spec = array.spec();
            let path = array.path().as_os_str().to_owned();
            (key.to_owned(), path, spec.dtype.name(), spec.rows, spec.columns, array.data_offset_bytes())
        })
        .collect()
    }

    /// Writes rows, even with NaN or infinities. For a masked array, returns the first written row
    /// that contains NaN or infinities.
    fn write_rows(
        &self,
        py: Python<'_>,
        key: &str,
        rows: &Bound<'_, PyUntypedArray>,
        data: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Option<u64>> {
        let rows = numbers(rows).or_raise()?;
        let array = if key == self.plain.0 { &self.plain.1 } else { self.rows.array(key).or_raise()? };
        let data = borrow_array(data, array.spec().dtype).or_raise()?;
        let work = || {
            let bytes = data.to_c_order()?;
            match key == self.plain.0 {
                true => array.write_rows(&rows, &bytes).map(|()| None),
                false => {
                    self.rows.write_rows(key, &rows, &bytes).map(|()| array.first_non_finite(&rows, &bytes))
                }
            }
        };
        released(py, work)
    }

    fn mark(&self, py: Python<'_>, rows: &Bound<'_, PyUntypedArray>, is_done: bool) -> PyResult<()> {
        let rows = numbers(rows).or_raise()?;
        let work = || if is_done { self.rows.mark_done(&rows) } else { self.rows.mark_undone(&rows) };
        released(py, work)
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let sync_plain = || if self.rows.is_synced() { self.plain.1.sync() } else { Ok(()) };
        released(py, || self.rows.flush().and_then(|()| sync_plain()))
    }

    fn count_done(&self, py: Python<'_>) -> PyResult<u64> {
        released(py, || self.rows.count_done())
    }

    fn missing(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        released(py, || self.rows.missing())
    }
}

/// Repairs a store. Returns a description of the repairs.
#[pyfunction]
#[pyo3(signature = (path, metadata, half_precision, recompute_zero_rows))]
pub fn trak_repair(
    py: Python<'_>,
    path: PathBuf,
    metadata: Option<&str>,
    half_precision: Option<bool>,
    recompute_zero_rows: bool,
) -> PyResult<Vec<String>> {
    let metadata = metadata.map(object).transpose().or_raise()?;
    let with = Repair { metadata, precision: half_precision.map(precision), recompute_zero_rows };
    released(py, || repair(&path, &with))
}

fn precision(half_precision: bool) -> Precision {
    if half_precision { Precision::Half } else { Precision::Single }
}

fn object(text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid(format!("the metadata is not a JSON object: {error}")))
}

fn numbers(rows: &Bound<'_, PyUntypedArray>) -> Result<Vec<u64>> {
    let bytes = borrow_array(rows, Dtype::Int64)?.to_c_order()?;
    let (rows, _) = bytes.as_chunks::<8>();
    let number = |row: &[u8; 8]| {
        let row = i64::from_le_bytes(*row);
        u64::try_from(row).map_err(|_| Error::invalid(format!("row {row} does not exist")))
    };
    rows.iter().map(number).collect()
}
