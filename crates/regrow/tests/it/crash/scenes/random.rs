//! Scenes with random trees in random layouts, saved over each other.

use proptest::prelude::*;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::location::Location;
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{ErrorKind, SaveOptions, load, save_with, verify};
use regrow_testkit::memory_folder;
use serde_json::{Map, Value, json};

use super::saves::{TWO_STEPS, put_back};
use super::{Scene, check_names, is_nothing, make_room, told};
use crate::common::damage::contents;
use crate::common::layouts;

/// One tree saved in the place of another, beside it as its base, or where there was nothing. JSON,
/// so that the child is given it as it is and a failure can be read.
#[derive(Debug, Clone)]
pub struct Random {
    pub layout: usize,
    pub over: &'static str,
    /// Dicts are objects, lists are arrays, numbers are scalars, and `uint8:3,5:7` is an array
    /// whose bytes follow from 7.
    pub trees: [Value; 2],
}

const OVERS: [&str; 3] = ["nothing", "old", "base"];

/// Any scene that there is.
pub fn any_scene() -> impl Strategy<Value = Random> {
    let kinds = (0..layouts().len(), prop::sample::select(OVERS.to_vec()), [any_tree(), any_tree()]);
    kinds.prop_map(|(layout, over, trees)| {
        // Other layouts have no base.
        let layout = if over == "base" { 0 } else { layout };
        Random { layout, over, trees }
    })
}

fn any_tree() -> impl Strategy<Value = Value> {
    let dtype = prop::sample::select(vec!["uint8", "int16", "float32", "int64"]);
    let dims = prop_oneof![
        4 => prop::collection::vec(0_u64..12, 0..3),
        1 => prop::collection::vec(100_u64..3000, 1..2),
    ];
    let array = (dtype, dims, 0..100_u8).prop_map(|(dtype, dims, fill)| {
        let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
        Value::from(format!("{dtype}:{}:{fill}", dims.join(",")))
    });
    let leaf = prop_oneof![9 => array, 1 => (-1000..1000_i64).prop_map(Value::from)];
    let name = "[a-z]{1,6}";
    let inner = leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 1..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    });
    prop::collection::btree_map(name, inner, 1..5)
        .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>()))
}

fn tree(value: &Value) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    add(&mut build, Key::Index(0), value);
    build.finish().unwrap()
}

fn add(build: &mut TreeBuilder<Leaf>, key: Key, value: &Value) {
    match value {
        Value::Object(entries) => {
            build.open(key, NodeKind::Dict).unwrap();
            entries.iter().for_each(|(name, value)| add(build, Key::dict(name.as_str()), value));
            build.close().unwrap();
        }
        Value::Array(items) => {
            build.open(key, NodeKind::List).unwrap();
            items.iter().enumerate().for_each(|(at, value)| add(build, Key::Index(at), value));
            build.close().unwrap();
        }
        Value::String(text) => {
            let mut parts = text.split(':');
            let mut part = || parts.next().unwrap();
            let dtype: Dtype = part().parse().unwrap();
            let dims = part().split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap());
            let (shape, fill) =
                (Shape::new(dims.collect::<Vec<u64>>()).unwrap(), part().parse::<u8>().unwrap());
            let len = shape.len_bytes(dtype).unwrap() as usize;
            let bytes: Vec<u8> = (0..len).map(|at| (at as u8 & 0x1f) ^ fill).collect();
            build.leaf(key, Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())).unwrap();
        }
        number => build.leaf(key, Leaf::scalar(Scalar::Int(number.as_i64().unwrap()))).unwrap(),
    }
}

impl Random {
    /// The scene that a child is to do, by its name.
    pub fn named(name: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(name).ok()?;
        Some(Self {
            layout: value["layout"].as_u64()? as usize,
            over: OVERS.into_iter().find(|over| value["over"] == *over)?,
            trees: [value["trees"][0].clone(), value["trees"][1].clone()],
        })
    }

    /// Whether the layout can hold both trees; the others are no scenes.
    pub fn can_be_saved(&self) -> bool {
        let folder = memory_folder().unwrap();
        let is_refusal = |kind| matches!(kind, ErrorKind::Unsupported | ErrorKind::InvalidArgument);
        (0..2).all(|at| match self.save(&self.target(&Location::local(folder.path())), at, None) {
            Err(error) if is_refusal(error.kind()) => false,
            saved => saved.map(|()| true).unwrap(),
        })
    }

    fn layout(&self) -> Layout {
        layouts()[self.layout].0.clone()
    }

    /// Whether it is files beside each other that are replaced, which buckets refuse.
    pub fn replaces_a_pair(&self) -> bool {
        self.over == "old" && self.layout().name() == "pytree_data"
    }

    fn file(&self) -> String {
        format!("ckpt{}", layouts()[self.layout].1)
    }

    fn target(&self, root: &Location) -> Location {
        root.join("run").join(self.file())
    }

    fn save(&self, target: &Location, at: usize, base: Option<Location>) -> regrow::Result<()> {
        let options = SaveOptions {
            layout: self.layout(),
            casting: regrow::array::Casting::Lossy,
            base,
            overwrite: true,
            ..SaveOptions::default()
        };
        save_with(target, &tree(&self.trees[at]), &options).map(drop)
    }

    /// What a reader is to find of a tree: what a save that nothing happens to leaves of it.
    fn expected(&self, at: usize) -> String {
        let folder = memory_folder().unwrap();
        let target = self.target(&Location::local(folder.path()));
        self.save(&target, at, None).unwrap();
        contents(&load(&target).unwrap())
    }

    /// Which of the two trees is stored, by equality; both, if the trees are equal.
    fn found(&self, target: &Location) -> Result<Option<[bool; 2]>, String> {
        let loaded: Tree<Leaf> = match load(target) {
            Err(error) if is_nothing(target, &error) => return Ok(None),
            other => told("load", other)?,
        };
        let found = contents(&loaded);
        let is = [0, 1].map(|at| self.expected(at) == found);
        let report = told("verify", verify(target))?;
        match is.contains(&true) {
            _ if !report.is_ok() => Err(format!("it does not verify: {:?}", report.findings)),
            true => Ok(Some(is)),
            false => Err(format!("a checkpoint that no process saved: {found}")),
        }
    }
}

impl Scene for Random {
    fn name(&self) -> String {
        json!({ "layout": self.layout, "over": self.over, "trees": self.trees }).to_string()
    }

    fn prepare(&self, root: &Location) {
        match self.over {
            "old" => self.save(&self.target(root), 0, None).unwrap(),
            "base" => self.save(&root.join("base"), 0, None).unwrap(),
            _ => {}
        }
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        self.save(&self.target(root), 1, (self.over == "base").then(|| root.join("base")))
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        let target = self.target(root);
        let mut found = self.found(&target)?;
        if TWO_STEPS && self.over == "old" && found.is_none() && !is_done {
            put_back(&target)?;
            found = self.found(&target)?;
        }
        let is_as_it_may_be = match found {
            None => !is_done && self.over != "old",
            Some([is_old, is_new]) => is_new || !is_done && is_old && self.over == "old",
        };
        if !is_as_it_may_be {
            return Err(format!("the path holds the old and the new one: {found:?}"));
        }
        if self.over == "base" && self.found(&root.join("base"))?.is_none_or(|[is_old, _]| !is_old) {
            return Err("the base is gone".to_owned());
        }
        make_room(&target, self.layout().name())?;
        told("the next save", self.save(&target, 0, None))?;
        if self.found(&target)?.is_none_or(|[is_old, _]| !is_old) {
            return Err("the next save is not there".to_owned());
        }
        check_names(&target.parent(), |name| name.starts_with(&self.file()) && !name.contains("tmp"))
    }
}
