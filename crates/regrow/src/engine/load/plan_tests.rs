//! Tests of load plans. No test here reads a leaf.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::array::{Array, Shape};
use crate::options::{Layout, SaveOptions};
use crate::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

const ROWS: u64 = 1000;

/// A tree of two arrays and a text.
fn tree() -> Tree<Leaf> {
    let array = |dtype: Dtype| {
        let shape = Shape::new(vec![ROWS]).unwrap();
        let bytes = vec![1; shape.len_bytes(dtype).unwrap() as usize];
        Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
    };
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("half"), array(Dtype::Float16)).unwrap();
    build.leaf(Key::dict("note"), Leaf::text("a note")).unwrap();
    build.leaf(Key::dict("single"), array(Dtype::Float32)).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// A checkpoint of the tree, and the folder that contains it.
fn saved(name: &str, layout: Layout) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let options = SaveOptions { layout, casting: crate::array::Casting::Lossy, ..SaveOptions::default() };
    crate::save_with(&path, &tree(), &options).unwrap();
    let checkpoint = crate::open(&path).unwrap();
    (folder, checkpoint)
}

fn plan_all<'r>(checkpoint: &'r Checkpoint, options: &LoadOptions, given: &[usize]) -> Plan<'r> {
    let wanted: Vec<usize> = (0..checkpoint.tree().len()).collect();
    Plan::of(checkpoint, &wanted, options, &|leaf| given.contains(&leaf)).unwrap()
}

/// The leaves in the order of the plan: how each is read, and its destination.
fn shown(plan: &Plan<'_>) -> Vec<(usize, String, Destination)> {
    let how = |how: &How<'_>| match how {
        How::Nothing => "nothing".to_owned(),
        How::Unreadable(_) => "unreadable".to_owned(),
        How::Text(Text::Known(text)) => format!("text {text:?}"),
        How::Text(Text::Stored(extent)) => format!("text of {} bytes", extent.len_bytes),
        How::View(extent, view) => {
            assert_eq!(extent.len_bytes, view.len() as u64);
            format!("view of {} bytes", view.len())
        }
        How::Memory(bytes) => format!("{} bytes in memory", bytes.len()),
        How::Blocks(extent) => format!("blocks of {} bytes", extent.len_bytes),
        How::Bands(working) => format!("bands, {working:?}"),
    };
    plan.steps.iter().map(|step| (step.leaf, how(&step.how), step.to)).collect()
}

fn expected(steps: &[(usize, &str, Destination)]) -> Vec<(usize, String, Destination)> {
    steps.iter().map(|(leaf, how, to)| (*leaf, (*how).to_owned(), *to)).collect()
}

#[test]
fn files_without_writers_come_as_views_in_the_order_of_the_disk() {
    let (_folder, checkpoint) = saved("step", Layout::default());
    let plan = plan_all(&checkpoint, &LoadOptions::default(), &[]);
    let steps = expected(&[
        (2, "view of 4000 bytes", Destination::Stay),
        (0, "view of 2000 bytes", Destination::Stay),
        (1, "text \"a note\"", Destination::Stay),
    ]);
    assert_eq!(shown(&plan), steps);
    assert_eq!((plan.portions.first(), plan.portions.len()), (Some(&(0..3)), 1));
    assert_eq!(plan.wanted_bytes, 6000 + "a note".len() as u64);
}

#[test]
fn what_the_caller_has_a_place_for_is_read_by_its_blocks_and_what_is_cast_in_bands() {
    let (_folder, checkpoint) = saved("step", Layout::default());
    let cast = vec![(crate::tree::PathPattern::new("half").unwrap(), Dtype::Float64)];
    let plan = plan_all(&checkpoint, &LoadOptions { cast, ..LoadOptions::default() }, &[2]);
    let steps = expected(&[
        (2, "blocks of 4000 bytes", Destination::Given),
        (0, "bands, None", Destination::Fresh),
        (1, "text \"a note\"", Destination::Stay),
    ]);
    assert_eq!(shown(&plan), steps);
    assert_eq!(plan.steps[1].dtype, Dtype::Float64);
    // The extent is the range that the layout has recorded, and checksums cover it.
    let How::Blocks(extent) = &plan.steps[0].how else { panic!("{:?}", plan.steps[0]) };
    let checks = extent.checks.unwrap();
    assert_eq!(checks.start_bytes..checks.end_bytes, extent.offset_bytes..extent.offset_bytes + 4000);
    assert!(checks.table.range().start <= extent.offset_bytes && checks.table.is_short());
}

#[test]
fn files_that_others_write_into_are_read_into_memory_unless_maps_are_asked_for() {
    let layout = Layout::PytreeData(serde_json::from_value(json!({})).unwrap());
    let (_folder, checkpoint) = saved("pair", layout);
    let plan = plan_all(&checkpoint, &LoadOptions::default(), &[]);
    let blocks = |leaf, bytes| (leaf, format!("blocks of {bytes} bytes"), Destination::Fresh);
    let found = shown(&plan);
    assert!(found.contains(&blocks(0, 2000)) && found.contains(&blocks(2, 4000)), "{found:?}");
    let mapped = plan_all(&checkpoint, &LoadOptions { mapped: true, ..LoadOptions::default() }, &[]);
    let found = shown(&mapped);
    assert!(found.contains(&(2, "view of 4000 bytes".to_owned(), Destination::Stay)), "{found:?}");
}

#[test]
fn what_has_no_checksums_is_read_in_bands() {
    let (_folder, checkpoint) =
        saved("plain.safetensors", Layout::Safetensors(serde_json::from_value(json!({})).unwrap()));
    let found = shown(&plan_all(&checkpoint, &LoadOptions::default(), &[]));
    assert!(found.contains(&(2, "bands, None".to_owned(), Destination::Fresh)), "{found:?}");
}

#[test]
fn views_that_the_page_cache_lacks_are_read_past_it() {
    let (_folder, checkpoint) = saved("step", Layout::default());
    let mut plan = plan_all(&checkpoint, &LoadOptions::default(), &[]);
    plan.steps.iter_mut().for_each(Step::read_into_memory);
    let steps = expected(&[
        (2, "blocks of 4000 bytes", Destination::Paged),
        (0, "blocks of 2000 bytes", Destination::Paged),
        (1, "text \"a note\"", Destination::Stay),
    ]);
    assert_eq!(shown(&plan), steps);
}

#[test]
fn of_two_leaves_at_the_same_bytes_the_second_is_decoded_alone() {
    let (_folder, checkpoint) = saved("step", Layout::default());
    let step = |leaf: usize| {
        let Source::Raw(extent) = checkpoint.reader().source(leaf).unwrap() else { panic!("{leaf}") };
        let dtype = checkpoint.tree().leaves()[leaf].dtype;
        Step { leaf, dtype, how: How::Blocks(extent), to: Destination::Fresh }
    };
    let mut plan = Plan { steps: vec![step(2), step(2), step(0)], portions: Vec::new(), wanted_bytes: 0 };
    plan.leave_overlaps(checkpoint.tree().leaves());
    let found: Vec<String> = shown(&plan).into_iter().map(|step| step.1).collect();
    assert_eq!(found, ["blocks of 4000 bytes", "bands, None", "blocks of 2000 bytes"]);
}

#[test]
fn portions_end_where_enough_bytes_are_checked_ahead() {
    let info = |len_bytes: u64| LeafInfo {
        kind: LeafKind::NumpyArray,
        dtype: Dtype::UInt8,
        shape: Shape::new(vec![len_bytes]).unwrap(),
        name: Arc::from("x"),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: Arc::from("raw"),
    };
    let infos: Vec<LeafInfo> = [100 << 20, 200 << 20, 1, 300 << 20, 5].map(info).into();
    let step = |leaf| Step { leaf, dtype: Dtype::UInt8, how: How::Nothing, to: Destination::Stay };
    let plan = Plan { steps: (0..5).map(step).collect(), portions: Vec::new(), wanted_bytes: 0 };
    assert_eq!(plan.cut_into_portions(&infos), [0..2, 2..4, 4..5]);
}
