//! Scenes with saves of one checkpoint: a new checkpoint, an overwrite, a save with a base, and a
//! save by several processes. In one scene the files of the old checkpoint were removed by hand,
//! but not its side files.

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::Location;
use regrow::tree::{Leaf, Tree};
use regrow::{SaveOptions, SealOptions, load, save_with, seal, verify};
use regrow_storage::local::Staged;
use regrow_store::StoreExt;
use serde_json::{Value, json};

use super::{Scene, check_names, is_nothing, make_room, told};
use crate::common::cuts::{Cut, bytes_of, dict, save_shares};

/// Whether a folder is replaced by two renames: between them its path is empty, until the next save
/// puts the old one back.
pub const TWO_STEPS: bool = cfg!(feature = "portable");

pub const OLD: u8 = 1;
pub const NEW: u8 = 2;

/// What is saved, and over what.
#[derive(Debug, Clone)]
pub struct Save {
    pub layout: &'static str,
    pub options: Value,
    pub file: &'static str,
    pub over: Over,
    pub processes: usize,
    /// Whether all that is saved has a seal and parity.
    pub is_sealed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Nothing,
    /// The old checkpoint is replaced.
    Old,
    /// The old checkpoint is the base of the new one, at another path.
    Base,
    /// The files of the old checkpoint were removed, and its side files were not. The new one
    /// replaces nothing.
    Removed,
}

/// In the error of a load whose checkpoint lies beside the seal of another.
const SAYS_WHAT_TO_DO: &str = "`regrow seal --remove`";

/// Two arrays full of one value, and one that no generation changes; their lengths differ from one
/// generation to the next.
pub fn tree(generation: u8) -> Tree<Leaf> {
    let full = |len: usize, fill: u8| {
        let shape = Shape::new(vec![len as u64]).unwrap();
        Array::new(Dtype::UInt8, shape, vec![fill; len].into()).unwrap()
    };
    dict([
        ("a".to_owned(), full(9000 + usize::from(generation), generation)),
        ("b".to_owned(), full(100, generation)),
        ("frozen".to_owned(), full(8192, 7)),
    ])
}

/// What a process of several holds.
fn share(generation: u8, rank: usize, count: usize) -> Tree<Leaf> {
    let cut = Cut { shape: vec![8 + u64::from(generation), 6], chunk: vec![2, 3], boxes: vec![1, 1] };
    dict([("cut".to_owned(), cut.held_by(rank, count)), ("all".to_owned(), cut.replicated())])
}

impl Save {
    fn target(&self, root: &Location) -> Location {
        root.join("run").join(self.file)
    }

    fn layout(&self) -> Layout {
        Layout::from_name(self.layout, self.options.clone()).unwrap()
    }

    fn save(&self, target: &Location, generation: u8, base: Option<&Location>) -> regrow::Result<()> {
        let options = SaveOptions {
            layout: self.layout(),
            casting: regrow::array::Casting::Lossy,
            overwrite: true,
            base: base.cloned(),
            seal: self.is_sealed,
            parity: self.is_sealed.then(|| "1/1".parse().unwrap()),
            ..SaveOptions::default()
        };
        self.save_as(target, generation, &options)
    }

    fn save_as(&self, target: &Location, generation: u8, options: &SaveOptions) -> regrow::Result<()> {
        if self.processes == 1 {
            return save_with(target, &tree(generation), options).map(drop);
        }
        let trees: Vec<Tree<Leaf>> =
            (0..self.processes).map(|rank| share(generation, rank, self.processes)).collect();
        save_shares(self.processes, target, &trees, options)
    }

    fn expected(&self, generation: u8) -> Tree<Leaf> {
        if self.processes == 1 { tree(generation) } else { share(generation, 0, 1) }
    }

    /// The generation that a path holds.
    fn generation(&self, target: &Location) -> Result<Option<u8>, String> {
        let loaded: Tree<Leaf> = match load(target) {
            Err(error) if is_nothing(target, &error) => return Ok(None),
            other => told("load", other)?,
        };
        let found = bytes_of(&loaded);
        let Some(generation) = [OLD, NEW].into_iter().find(|&each| found == bytes_of(&self.expected(each)))
        else {
            return Err("a checkpoint that no process saved".to_owned());
        };
        let report = told("verify", verify(target))?;
        if !report.is_ok() {
            return Err(format!("generation {generation} does not verify: {:?}", report.findings));
        }
        Ok(Some(generation))
    }
}

impl Scene for Save {
    fn name(&self) -> String {
        let sealed = if self.is_sealed { " sealed" } else { "" };
        let Self { file, layout, options, over, processes, .. } = self;
        format!("{file} {layout} {options}{sealed} over {over:?} by {processes}")
    }

    fn prepare(&self, root: &Location) {
        match self.over {
            Over::Nothing => {}
            Over::Old => self.save(&self.target(root), OLD, None).unwrap(),
            Over::Base => self.save(&root.join("base"), OLD, None).unwrap(),
            Over::Removed => {
                self.save(&self.target(root), OLD, None).unwrap();
                let store = self.target(root).parent().store();
                let names = store.list(b"").unwrap();
                let (beside, files): (Vec<_>, Vec<_>) =
                    names.into_iter().partition(|name| name.starts_with(b"regrow."));
                assert_eq!(beside.len(), 3);
                files.iter().for_each(|file| store.delete(file).unwrap());
            }
        }
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        if self.over == Over::Removed {
            let options = SaveOptions {
                layout: self.layout(),
                casting: regrow::array::Casting::Lossy,
                ..SaveOptions::default()
            };
            return self.save_as(&self.target(root), NEW, &options);
        }
        let base = root.join("base");
        self.save(&self.target(root), NEW, (self.over == Over::Base).then_some(&base))
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let target = self.target(root);
        let before = (self.over == Over::Old).then_some(OLD);
        let found = self.generation(&target);
        let mut found = match found {
            // Between the commit and the look at what lies beside it; the error says what to do.
            Err(wrong) if self.over == Over::Removed && !is_done && wrong.contains(SAYS_WHAT_TO_DO) => {
                told(
                    "seal --remove",
                    seal(&target, &SealOptions { remove: true, ..SealOptions::default() }),
                )?;
                self.generation(&target)?
            }
            found => found?,
        };
        if TWO_STEPS && before.is_some() && found.is_none() && !is_done {
            put_back(&target)?;
            found = self.generation(&target)?;
        }
        if found != Some(NEW) && (is_done || found != before) {
            return Err(format!("the path holds generation {found:?}"));
        }
        if self.over == Over::Base && self.generation(&root.join("base"))? != Some(OLD) {
            return Err("the base is gone".to_owned());
        }
        // The next save works, and leaves nothing beside the checkpoint.
        make_room(&target, self.layout)?;
        told("the next save", self.save(&target, OLD, None))?;
        if self.generation(&target)? != Some(OLD) {
            return Err("the next save is not there".to_owned());
        }
        // What a small file beside single files is first written as stays, if its writer is killed
        // then.
        let is_beside =
            |name: &str| name.starts_with("regrow.") || name.starts_with('.') && name.ends_with(".__lock");
        let is_own = |name: &str| name.starts_with(self.file) || self.is_sealed && is_beside(name);
        check_names(&target.parent(), |name| is_own(name) && !name.contains("tmp"))
    }
}

/// What the next save does before it writes, where a folder is replaced in two steps: it puts the
/// old one back.
pub fn put_back(target: &Location) -> Result<(), String> {
    regrow_layouts::tell_storage();
    told("the place", target.local_path().and_then(|path| Staged::of_folder(path, true))).map(drop)
}

pub fn saves() -> Vec<Save> {
    let layouts = [
        ("regrow", json!({}), "ckpt"),
        ("orbax", json!({}), "ckpt"),
        ("orbax", json!({"ocdbt": false}), "ckpt"),
        ("orbax", json!({"ocdbt": false, "zarr3": true}), "ckpt"),
        ("orbax", json!({"v1": true}), "ckpt"),
        ("flax", json!({}), "ckpt.msgpack"),
        ("equinox", json!({}), "ckpt.eqx"),
        ("pytree_data", json!({}), "ckpt"),
        ("safetensors", json!({}), "ckpt.safetensors"),
        ("safetensors", json!({"max_shard_bytes": 9000}), "ckpt"),
        ("npy", json!({}), "ckpt.npz"),
        ("npy", json!({}), "ckpt"),
    ];
    let mut saves = Vec::new();
    for over in [Over::Nothing, Over::Old] {
        for (layout, options, file) in layouts.clone() {
            saves.push(Save { layout, options, file, over, processes: 1, is_sealed: false });
        }
        for (layout, options) in [("regrow", json!({})), ("orbax", json!({}))] {
            saves.push(Save { layout, options, file: "ckpt", over, processes: 2, is_sealed: false });
        }
    }
    saves.push(Save {
        layout: "regrow",
        options: json!({}),
        file: "ckpt",
        over: Over::Base,
        processes: 1,
        is_sealed: false,
    });
    for (layout, options, file) in layouts {
        if ["ckpt.msgpack", "ckpt"].contains(&file)
            && options.as_object().is_none_or(|options| !options.contains_key("ocdbt"))
        {
            let over: &[Over] = match layout {
                // Single files: what lies in a folder is removed with it.
                "flax" | "pytree_data" => &[Over::Old, Over::Removed],
                _ => &[Over::Old],
            };
            for &over in over {
                let options = options.clone();
                saves.push(Save { layout, options, file, over, processes: 1, is_sealed: true });
            }
        }
    }
    saves
}

pub fn scenes() -> Vec<Box<dyn Scene>> {
    saves().into_iter().map(|save| Box::new(save) as Box<dyn Scene>).collect()
}
