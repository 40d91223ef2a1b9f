//! Lost arrays whose mask marks rows as done, and rows of zeros, which may be right.

use std::fs;
use std::path::Path;

use super::layout::TrainArray;
use super::tests::{fill, name, open, records};
use super::*;

#[test]
fn rows_of_zeros_are_a_note_and_done_again_only_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0, 1]);
    // Row 3 is zero and marked as done. Its gradient may be zero, or a power cut in a run of TRAK
    // may have lost it.
    model.rows.mark_done(&[3]).unwrap();
    drop(model);
    let targets = with_targets(&store, &[0, 2]).targets;
    targets.write_rows("grads", &[2], &[0; 8]).unwrap();
    drop(targets);
    let report = regrow::verify(folder.path()).unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
    assert!(report.notes[0].starts_with("0/_is_featurized.mmap: 1 of 3 rows"), "{}", report.notes[0]);
    assert!(report.notes[0].contains("only: 3;") && report.notes[0].contains("`recompute_zero_rows`"));
    assert!(report.notes[1].starts_with("0/_targets_val.mmap: 1 of 2 rows"), "{}", report.notes[1]);
    assert!(repair(folder.path(), &Repair::default()).unwrap().is_empty());
    assert_eq!(store.model(0).unwrap().rows.missing().unwrap(), [2, 4, 5]);
    let asked = Repair { recompute_zero_rows: true, ..Repair::default() };
    let done = repair(folder.path(), &asked).unwrap();
    for file in ["0/_is_featurized.mmap", "0/_targets_val.mmap"] {
        let line = format!("{file}: 1 row marked as not done");
        assert!(done.contains(&line), "{done:?}");
    }
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    let report = regrow::verify(folder.path()).unwrap();
    assert!(report.is_ok() && report.notes.is_empty(), "{report:?}");
    assert_eq!(store.model(0).unwrap().rows.missing().unwrap(), [2, 3, 4, 5]);
    assert_eq!(store.experiment(&name("val"), 3, 0).unwrap().targets.missing().unwrap(), [1, 2]);
    assert!(repair(folder.path(), &asked).unwrap().is_empty());
}

/// An experiment `val` of model 0 with three targets. The targets in `done` are done; its scores
/// are flagged as final.
fn with_targets(store: &TrakStore, done: &[u64]) -> ExperimentArrays {
    let val = name("val");
    store.init_experiment(&val, 3, 0, false).unwrap();
    store.finalize_scores(&val, true, false).unwrap();
    let arrays = store.experiment(&val, 3, 0).unwrap();
    arrays.targets.write_rows("grads", done, &1_f32.to_le_bytes().repeat(2 * done.len())).unwrap();
    arrays.targets.mark_done(done).unwrap();
    arrays.targets.flush().unwrap();
    arrays
}

/// A model whose rows are all done and whose features are final, and an experiment with all three
/// targets.
pub(super) fn finished(root: &Path) -> TrakStore {
    let store = open(root);
    store.register(0, false).unwrap();
    let model = store.model(0).unwrap();
    fill(&model, &[0, 1, 2, 3, 4, 5]);
    model.features.write_rows(&[0], &[1; 8]).unwrap();
    drop(model);
    store.write_flags(0, true).unwrap();
    with_targets(&store, &[0, 1, 2]);
    assert!(regrow::verify(root).unwrap().is_ok());
    store
}

#[test]
fn lost_gradients_of_targets_are_reported_and_repaired() {
    for has_record in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let store = finished(folder.path());
        fs::remove_file(folder.path().join("0/val_grads.mmap")).unwrap();
        if !has_record {
            fs::write(folder.path().join("experiments.json"), "{}").unwrap();
        }
        let found = regrow::verify(folder.path()).unwrap().findings;
        let lost = found.iter().find(|finding| {
            finding.error.place().file.as_deref() == Some(&*folder.path().join("0/val_grads.mmap"))
        });
        let text = lost.unwrap().error.to_string();
        assert!(text.contains("0/_targets_val.mmap says that 3 of its rows are done"), "{text}");
        assert!(text.contains("`repair`"), "{text}");
        // A conversion fails: it does not leave out the lost arrays.
        let elsewhere = tempfile::tempdir().unwrap();
        let converted =
            regrow::convert(folder.path(), elsewhere.path().join("copy"), &regrow::ConvertOptions::default());
        assert!(converted.unwrap_err().to_string().contains("val_grads.mmap"));
        let done = repair(folder.path(), &Repair::default()).unwrap();
        let says = |text: &str| done.iter().any(|line| line == text);
        assert!(says("0/_targets_val.mmap: 3 rows marked as not done"), "{done:?}");
        assert!(says("0/val_grads.mmap: rebuilt: it was missing"), "{done:?}");
        let report = regrow::verify(folder.path()).unwrap();
        assert!(report.is_ok() && report.notes.is_empty(), "{report:?}");
        assert_eq!(store.experiment(&name("val"), 3, 0).unwrap().targets.missing().unwrap(), [0, 1, 2]);
        assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
        assert!(store.flags(0).unwrap().is_finalized);
        assert!(repair(folder.path(), &Repair::default()).unwrap().is_empty());
    }
}

#[test]
fn gradients_of_targets_that_are_made_again_are_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let store = finished(folder.path());
    // If no file is lost, marks and final scores stay.
    assert!(store.init_experiment(&name("val"), 3, 0, false).unwrap().scores_finalized);
    assert_eq!(store.experiment(&name("val"), 3, 0).unwrap().targets.count_done().unwrap(), 3);
    fs::remove_file(folder.path().join("0/val_grads.mmap")).unwrap();
    assert!(!store.init_experiment(&name("val"), 3, 0, false).unwrap().scores_finalized);
    assert_eq!(store.experiment(&name("val"), 3, 0).unwrap().targets.missing().unwrap(), [0, 1, 2]);
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    assert!(regrow::verify(folder.path()).unwrap().is_ok());
}

#[test]
fn scores_that_are_made_again_are_not_final() {
    let folder = tempfile::tempdir().unwrap();
    let store = finished(folder.path());
    fs::remove_file(folder.path().join("scores/val.mmap")).unwrap();
    let found = regrow::verify(folder.path()).unwrap().findings;
    assert!(found.len() == 1 && found[0].error.help_text().unwrap().contains("`repair`"), "{found:?}");
    assert!(!store.init_experiment(&name("val"), 3, 0, false).unwrap().scores_finalized);
    assert_eq!(records(folder.path())["val"]["scores_finalized"], 0);
    assert_eq!(store.experiment(&name("val"), 3, 0).unwrap().targets.count_done().unwrap(), 3);
}

#[test]
fn arrays_of_a_model_that_are_made_again_are_not_done() {
    for array in TrainArray::ALL {
        for by_repair in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let store = finished(folder.path());
            // A finalized model needs no gradients. In any other model, missing gradients are lost.
            store.write_flags(0, array != TrainArray::Grads).unwrap();
            fs::remove_file(folder.path().join("0").join(array.file_name())).unwrap();
            let found = regrow::verify(folder.path()).unwrap().findings;
            assert!(!found.is_empty(), "{array:?}");
            if matches!(array, TrainArray::Grads | TrainArray::OutToLoss) {
                let text = found[0].error.to_string();
                assert!(text.contains("0/_is_featurized.mmap says that 6 of its rows are done"), "{text}");
            }
            if by_repair {
                assert!(!repair(folder.path(), &Repair::default()).unwrap().is_empty());
            } else {
                store.register(0, false).unwrap();
            }
            let flags = store.flags(0).unwrap();
            let keeps_rows = array == TrainArray::Features;
            assert_eq!((flags.is_featurized, flags.is_finalized), (keeps_rows, false), "{array:?}");
            let done = store.model(0).unwrap().rows.count_done().unwrap();
            assert_eq!(done, if keeps_rows { 6 } else { 0 }, "{array:?}");
            let report = regrow::verify(folder.path()).unwrap();
            assert!(report.is_ok() && report.notes.is_empty(), "{array:?}: {report:?}");
        }
    }
}

#[test]
fn deleted_gradients_are_needed_again_once_nothing_is_final() {
    for by_repair in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = finished(folder.path());
        store.delete_grads(0).unwrap();
        assert!(regrow::verify(folder.path()).unwrap().is_ok());
        fs::remove_file(folder.path().join("0/out_to_loss.mmap")).unwrap();
        if by_repair {
            repair(folder.path(), &Repair::default()).unwrap();
            assert!(repair(folder.path(), &Repair::default()).unwrap().is_empty());
        } else {
            store.register(0, false).unwrap();
        }
        let flags = store.flags(0).unwrap();
        assert!(!flags.is_featurized && !flags.is_finalized);
        let rows = store.model(0).unwrap().rows;
        assert!(rows.array("grads").is_ok());
        assert_eq!(rows.count_done().unwrap(), 0);
        assert!(regrow::verify(folder.path()).unwrap().is_ok());
    }
}
