//! Scenes with several items in one checkpoint: a new checkpoint, and an overwrite.

use regrow::engine::{ItemsOptions, ItemsSave, Layout, load_with};
use regrow::location::Location;
use regrow::{LoadOptions, OpenOptions, SaveOptions, open, verify};
use serde_json::json;

use super::saves::{NEW, OLD, TWO_STEPS, put_back, tree};
use super::{Scene, check_names, is_nothing, told};
use crate::common::cuts::bytes_of;

/// Trees of several layouts, JSON, metrics and a file of a handler, published as one.
struct Items {
    over_old: bool,
}

/// The items that are trees, and their layouts.
const TREES: [(&str, &str); 3] = [("state", "regrow"), ("average", "orbax"), ("lora", "safetensors")];

fn save(target: &Location, generation: u8) -> regrow::Result<()> {
    let items = ItemsSave::begin(target, ItemsOptions { overwrite: true, ..ItemsOptions::default() })?;
    for (item, layout) in TREES {
        let layout = Layout::from_name(layout, json!({}))?;
        items.tree(
            item,
            &tree(generation),
            &SaveOptions { layout, casting: regrow::array::Casting::Lossy, ..SaveOptions::default() },
        )?;
    }
    items.json("config", &json!({ "generation": generation }))?;
    items.file("iterator", "process_0.json", &[b'0' + generation])?;
    items.metrics(&json!({ "loss": generation }))?;
    items.commit().map(drop)
}

/// The generation that all items are of; `None` if nothing is there.
fn generation(target: &Location) -> Result<Option<u8>, String> {
    let checkpoint = match open(target) {
        Err(error) if is_nothing(target, &error) => return Ok(None),
        other => told("open", other)?,
    };
    let files = told("the iterator", checkpoint.item_files("iterator"))?;
    let [(name, bytes)] = files.as_slice() else { return Err(format!("the iterator is {files:?}")) };
    let Some(generation) = [OLD, NEW].into_iter().find(|generation| bytes[..] == [b'0' + generation]) else {
        return Err(format!("{name} is {bytes:?}"));
    };
    for (item, _) in TREES {
        let open = OpenOptions { item: Some(item.to_owned()), ..OpenOptions::default() };
        let loaded = told(item, load_with(target, &LoadOptions { open, ..LoadOptions::default() }))?;
        if bytes_of(&loaded) != bytes_of(&tree(generation)) {
            return Err(format!("{item} is not of generation {generation}, as the iterator is"));
        }
    }
    for (item, text) in [("config", "\"generation\""), ("metrics", "\"loss\"")] {
        let files = told(item, checkpoint.item_files(item))?;
        let documents: Vec<_> = files.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect();
        let value = format!("{text}:{generation}");
        if !documents.iter().any(|document| document.replace([' ', '\n'], "").contains(&value)) {
            return Err(format!("{item} is not of generation {generation}: {documents:?}"));
        }
    }
    let report = told("verify", verify(target))?;
    if !report.is_ok() {
        return Err(format!("generation {generation} does not verify: {:?}", report.findings));
    }
    Ok(Some(generation))
}

fn target(root: &Location) -> Location {
    root.join("run").join("ckpt")
}

impl Scene for Items {
    fn name(&self) -> String {
        format!("several items{}", if self.over_old { " over others" } else { "" })
    }

    fn prepare(&self, root: &Location) {
        if self.over_old {
            save(&target(root), OLD).unwrap();
        }
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        save(&target(root), NEW)
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let target = target(root);
        let before = self.over_old.then_some(OLD);
        let mut found = generation(&target)?;
        if TWO_STEPS && before.is_some() && found.is_none() && !is_done {
            put_back(&target)?;
            found = generation(&target)?;
        }
        if found != Some(NEW) && (is_done || found != before) {
            return Err(format!("the path holds generation {found:?}"));
        }
        told("the next save", save(&target, OLD))?;
        if generation(&target)? != Some(OLD) {
            return Err("the next save is not there".to_owned());
        }
        check_names(&target.parent(), |name| name == "ckpt")
    }
}

pub fn scenes() -> Vec<Box<dyn Scene>> {
    [false, true].into_iter().map(|over_old| Box::new(Items { over_old }) as Box<dyn Scene>).collect()
}
