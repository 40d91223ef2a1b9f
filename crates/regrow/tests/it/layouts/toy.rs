//! A layout outside the engine: one JSON file. The module shows the code that a new layout needs.
//! The engine, the errors and the commands need no change.
//!
//! ```text
//! {"toy": [{"name": "bias", "dtype": "float32", "shape": [2], "bytes": [0, 0, 128, 63, 0, 0, 0, 64]}]}
//! ```
//! After the first use, no layout can be added to the list of layouts. So this module has one test,
//! which adds the layout first. nextest runs each test in its own process.

use std::ffi::OsStr;
use std::fs;

use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};
use regrow::{ConvertOptions, Error, OpenOptions, RemoveOptions, Result, SaveOptions, VerifyOptions};
use regrow_base::bytes::glance::Language;
use regrow_layouts::{
    Description, Features, Fidelity, FileNames, Format, Loss, Preview, Reader, Rest, Roles, SingleFile,
    Standing, WriteAs, add_format,
};
use regrow_storage::location::Location;
use regrow_store::reads::Source;
use serde_json::{Value, json};
use tempfile::tempdir;

const SUFFIX: &str = ".toy";
const LEN_MAX_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct Toy;

impl Format for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn file_names(&self) -> FileNames {
        FileNames { suffixes: &[SUFFIX], looked_for: &["toy files"], ..FileNames::NONE }
    }

    fn recognise(&self, at: &Location) -> Result<bool> {
        Ok(at.is_file() && self.claims_name(at.name()))
    }

    fn open(&self, at: &Location, _options: &OpenOptions) -> Result<Box<dyn Reader>> {
        Ok(Box::new(ToyReader::open(at)?))
    }

    fn write_as(&self, _at: &Location, _options: &SaveOptions) -> WriteAs {
        WriteAs::File(|tree, new, options| {
            let mut out = new.single_writer(0, 0)?;
            out.write(&text_of(tree, options)?)?;
            out.finish().map(drop)
        })
    }

    fn check(&self, tree: &Tree<Leaf>, _target: &Location, options: &SaveOptions) -> Result<()> {
        text_of(tree, options).map(drop)
    }

    fn roles(&self) -> Roles<'_> {
        Roles { single_file: Some(self), ..Roles::default() }
    }
}

impl Fidelity for Toy {
    fn losses(&self, _tree: &Tree<LeafInfo>, _texts: &[(usize, &str)], _options: &SaveOptions) -> Vec<Loss> {
        Vec::new()
    }

    fn refusal(&self, leaf: &LeafInfo, _options: &SaveOptions) -> Option<Error> {
        (!leaf.kind.is_array()).then(|| Error::unsupported("toy files hold only arrays"))
    }

    fn features<'o>(&self, _options: &'o SaveOptions) -> Features<'o> {
        Features::default()
    }
}

impl SingleFile for Toy {
    fn claims_name(&self, name: &OsStr) -> bool {
        name.to_string_lossy().ends_with(SUFFIX)
    }

    fn recognise_preview(&self, name: &OsStr, _preview: &Preview) -> bool {
        self.claims_name(name)
    }

    fn preview(&self, _tree: &Tree<Leaf>, _options: &SaveOptions) -> Result<Preview> {
        Ok(Preview::default())
    }

    fn suffix(&self) -> Option<&'static str> {
        Some(SUFFIX)
    }
}

/// The text of the file. The option `indent` gives it more lines.
fn text_of(tree: &Tree<Leaf>, options: &SaveOptions) -> Result<Vec<u8>> {
    let leaf = |(path, leaf): (_, &Leaf)| {
        let array = leaf.as_array().ok_or_else(|| Error::unsupported("toy files hold only arrays"))?;
        let path: regrow::tree::KeyPath = path;
        Ok(json!({
            "name": path.to_string(),
            "dtype": array.dtype().name(),
            "shape": array.shape().dims(),
            "bytes": array.to_c_order()?.to_vec(),
        }))
    };
    let text = json!({ "toy": tree.iter().map(leaf).collect::<Result<Vec<Value>>>()? });
    Ok(match &options.layout {
        Layout::Other(_, own) if own["indent"] == true => format!("{text:#}"),
        _ => text.to_string(),
    }
    .into_bytes())
}

#[derive(Debug)]
struct ToyReader {
    description: Description,
    tree: Tree<LeafInfo>,
    arrays: Vec<Array>,
}

impl ToyReader {
    fn open(at: &Location) -> Result<Self> {
        let damaged = || Error::corrupt("the toy file is damaged").in_file(at);
        let text = at.read_document("the file", Language::Json, LEN_MAX_BYTES)?.ok_or_else(damaged)?;
        let value: Value = serde_json::from_slice(&text).map_err(|_| damaged())?;
        let mut build = TreeBuilder::new();
        let mut arrays = Vec::new();
        build.open(Key::Index(0), NodeKind::Dict)?;
        for leaf in value["toy"].as_array().ok_or_else(damaged)? {
            let name = leaf["name"].as_str().ok_or_else(damaged)?;
            let dtype: Dtype = leaf["dtype"].as_str().ok_or_else(damaged)?.parse()?;
            let dims: Vec<u64> = serde_json::from_value(leaf["shape"].clone()).map_err(|_| damaged())?;
            let bytes: Vec<u8> = serde_json::from_value(leaf["bytes"].clone()).map_err(|_| damaged())?;
            let array = Array::new(dtype, Shape::new(dims)?, bytes.into())?;
            let info = LeafInfo {
                dtype,
                shape: array.shape().clone(),
                ..LeafInfo::without_data(LeafKind::NumpyArray, name, "json")
            };
            build.leaf(Key::dict(name), info)?;
            arrays.push(array);
        }
        build.close()?;
        let description = Description { layout: Toy.name().to_owned(), ..Description::default() };
        Ok(Self { description, tree: build.finish()?, arrays })
    }
}

impl Reader for ToyReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        Ok(Source::Memory(self.arrays[leaf].to_c_order()?))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        self.arrays[leaf].copy_region_c_order(region, out)
    }

    fn read_order(&self) -> Vec<usize> {
        (0..self.arrays.len()).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::default())
    }

    fn standing(&self) -> Standing<'_> {
        Standing::default()
    }
}

fn tree() -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (name, numbers) in [("bias", vec![1_f32, 2.0]), ("kernel", vec![3.0, 4.0, 5.0])] {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let shape = Shape::new(vec![numbers.len() as u64]).unwrap();
        let data = LeafData::Array(Array::new(Dtype::Float32, shape, bytes.into()).unwrap());
        build.leaf(Key::dict(name), Leaf { kind: LeafKind::NumpyArray, data, sharding: None }).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

#[test]
fn an_added_layout_is_saved_read_converted_and_listed() {
    add_format(&Toy).unwrap();
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.toy");
    // The suffix chooses the layout; its options are JSON.
    regrow::save(&path, &tree()).unwrap();
    let lines = || fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(lines(), 1);
    let layout = Layout::from_name("toy", json!({ "indent": true })).unwrap();
    let options = SaveOptions { layout, overwrite: true, ..SaveOptions::default() };
    regrow::save_with(&path, &tree(), &options).unwrap();
    assert!(lines() > 10);

    let checkpoint = regrow::open(&path).unwrap();
    assert_eq!(checkpoint.description().layout, "toy");
    assert_eq!(checkpoint.keys(), ["bias", "kernel"]);
    assert!(regrow::verify(&path).unwrap().findings.is_empty());
    let loaded: Tree<Leaf> = regrow::load(&path).unwrap();
    let bytes = |tree: &Tree<Leaf>| tree.leaves()[1].as_array().unwrap().to_c_order().unwrap();
    assert_eq!(bytes(&loaded), bytes(&tree()));

    // To another layout and back; a sealed file; a list; a removal.
    let (plain, back) = (folder.path().join("plain"), folder.path().join("back.toy"));
    regrow::convert(&path, &plain, &ConvertOptions::default()).unwrap();
    let options = SaveOptions { layout: Layout::from_name("toy", Value::Null).unwrap(), ..options };
    regrow::convert(&plain, &back, &ConvertOptions { save: options, ..ConvertOptions::default() }).unwrap();
    regrow::seal(&back, &Default::default()).unwrap();
    assert!(regrow::diff(&path, &back).unwrap().is_equal());
    let layouts: Vec<String> =
        regrow::list(folder.path()).unwrap().into_iter().map(|listed| listed.layout).collect();
    assert_eq!(layouts, ["toy", "toy", "regrow"]);
    regrow::remove(&back, &RemoveOptions::default()).unwrap();
    assert!(!back.exists());

    // Damage, and errors that name the layout.
    fs::write(&path, "{\"toy\": 1}").unwrap();
    assert!(regrow::verify_with(&path, &VerifyOptions::default()).is_err());
    let unused = SaveOptions {
        custom_metadata: Some(json!(1)),
        layout: Layout::from_name("toy", Value::Null).unwrap(),
        ..SaveOptions::default()
    };
    let error = regrow::save_with(folder.path().join("x.toy"), &tree(), &unused).unwrap_err().to_string();
    assert!(error.contains("the layout toy does not support metadata"), "{error}");
    let error = regrow::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("toy files") && error.contains("model.toy"), "{error}");
    // The names of files are known by now.
    assert!(add_format(&Toy).is_err());
}
