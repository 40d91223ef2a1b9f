//! Rows of a TRAK store after a power cut: each row that is marked as done has its data.

use regrow::location::Location;
use regrow_layouts::trak::{Mode, Parameters, Precision, TrakStore};
use serde_json::json;

use super::{Scene, told};

const ROWS: u64 = 40;
const COLUMNS: u64 = 300;

/// A model's rows are written and marked, a batch after the other.
pub struct Rows;

fn open(root: &Location) -> regrow::Result<TrakStore> {
    let metadata = json!({"JL dimension": COLUMNS, "JL matrix type": "normal", "train set size": ROWS});
    let parameters = Parameters { train_set_size: ROWS, proj_dim: COLUMNS, precision: Precision::Single };
    TrakStore::open(
        root.join("store").local_path()?,
        parameters,
        &Mode::Create(metadata.as_object().unwrap().clone()),
    )
}

fn row(row: u64, columns: u64) -> Vec<u8> {
    (0..columns).flat_map(|column| (row as f32 + 1.0 + column as f32 / 32.0).to_le_bytes()).collect()
}

fn featurize(store: &TrakStore) -> regrow::Result<()> {
    let arrays = store.model(0)?;
    let missing = arrays.rows.missing()?;
    for batch in missing.chunks(10) {
        let bytes = |columns: u64| batch.iter().flat_map(|&at| row(at, columns)).collect::<Vec<u8>>();
        arrays.rows.write_rows("grads", batch, &bytes(COLUMNS))?;
        arrays.rows.write_rows("out_to_loss", batch, &bytes(1))?;
        arrays.rows.mark_done(batch)?;
    }
    arrays.rows.flush()?;
    drop(arrays);
    store.write_flags(0, false).map(drop)
}

impl Scene for Rows {
    fn name(&self) -> String {
        "rows of a TRAK store".to_owned()
    }

    fn prepare(&self, root: &Location) {
        open(root).unwrap().register(0, false).unwrap();
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        featurize(&open(root)?)
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let store = told("open", open(root))?;
        let catalog = told("the catalog", store.catalog())?;
        if !catalog.faults.is_empty() {
            return Err(format!("{:?}", catalog.faults));
        }
        let check_rows = |is_done: bool| {
            let arrays = told("the model", store.model(0))?;
            let missing = told("the missing rows", arrays.rows.missing())?;
            if is_done && !missing.is_empty() {
                return Err(format!("rows {missing:?} are missing"));
            }
            for (name, columns) in [("grads", COLUMNS), ("out_to_loss", 1)] {
                let mut bytes = vec![0; (ROWS * columns * 4) as usize];
                let array = told("the array", arrays.rows.array(name))?;
                told("the rows", array.read_rows(0, &mut bytes))?;
                for (at, found) in (0..).zip(bytes.chunks_exact(columns as usize * 4)) {
                    if !missing.contains(&at) && found != row(at, columns) {
                        return Err(format!("row {at} of {name} is said to be done"));
                    }
                }
            }
            Ok(())
        };
        check_rows(is_done)?;
        told("the rest", featurize(&store))?;
        check_rows(true)
    }
}
