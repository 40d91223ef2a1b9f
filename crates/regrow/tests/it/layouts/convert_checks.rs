//! A dry run of a conversion finds the errors of the target before any write, and gives the same
//! errors as the run.

use std::path::Path;
use std::sync::Arc;

use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{ConvertOptions, Layout, convert, load};
use regrow::tree::{Key, Leaf, LeafKind, NodeKind, Tree, TreeBuilder};
use regrow::{ErrorKind, SaveOptions, save};
use regrow_layouts::LossKind;

fn leaf() -> Leaf {
    Leaf::array(Array::new(Dtype::Float32, Shape::new([2]).unwrap(), vec![0; 8].into()).unwrap())
}

/// A dict of leaves, each at its keys.
fn tree(leaves: &[(&[&str], Leaf)]) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (keys, leaf) in leaves {
        let (last, above) = keys.split_last().unwrap();
        for key in above {
            build.open(Key::dict(*key), NodeKind::Dict).unwrap();
        }
        build.leaf(Key::dict(*last), leaf.clone()).unwrap();
        above.iter().for_each(|_| build.close().unwrap());
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn options(layout: &str, json: &str) -> ConvertOptions {
    let layout = Layout::from_name(layout, serde_json::from_str(json).unwrap()).unwrap();
    let save = SaveOptions { layout, not_durable: true, ..SaveOptions::default() };
    ConvertOptions { save, lossy: true, ..ConvertOptions::default() }
}

fn source(folder: &Path, tree: &Tree<Leaf>) -> std::path::PathBuf {
    let path = folder.join("source");
    let save_options = SaveOptions { overwrite: true, not_durable: true, ..SaveOptions::default() };
    regrow::save_with(&path, tree, &save_options).unwrap();
    path
}

/// Leaves by their keys, and what is said of them.
type Case<'a> = (&'a [(&'a [&'a str], Leaf)], &'a str, &'a str, &'a str, &'a str);

#[test]
fn a_dry_run_gives_the_errors_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let long = "k".repeat(300);
    let dotted: &[(&[&str], Leaf)] = &[(&["a.b"], leaf()), (&["a", "b"], leaf())];
    let slashed: &[(&[&str], Leaf)] = &[(&["a/b"], leaf()), (&["a", "b"], leaf())];
    let cases: &[Case<'_>] = &[
        (&[(&["w"], leaf())], "trak", "new", "{}", "TRAK"),
        (dotted, "safetensors", "new.safetensors", "{}", "also that of a.b"),
        (dotted, "safetensors", "new", "{}", "also that of a.b"),
        (dotted, "orbax", "new", "{}", "its stored name"),
        (slashed, "npy", "new.npz", "{}", "a/b"),
        (&[(&["a\0b"], leaf())], "npy", "new.npz", "{}", "NUL"),
        (&[(&["__metadata__"], leaf())], "safetensors", "new.safetensors", "{}", "__metadata__"),
        (&[(&["__metadata__"], leaf())], "safetensors", "new", "{}", "__metadata__"),
        (&[(&["~"], Leaf::text("x"))], "orbax", "new", "{}", "~"),
        (&[(&[&long], leaf())], "npy", "new", "{}", "too long for the name of a file"),
        (&[(&[&long], leaf())], "orbax", "new", r#"{"ocdbt": false}"#, "longer than 255"),
        (&[(&["__msgpack_chunked_array__"], leaf())], "flax", "new", "{}", "__msgpack_chunked_array__"),
        (&[(&["w"], leaf())], "equinox", "new", r#"{"hyperparameters": 3}"#, "hyperparameters"),
        (&[(&["w"], leaf())], "pytree_data", "new", r#"{"paths": []}"#, "needs one path for each leaf"),
        (&[(&["w"], leaf())], "npy", "new.npy", "{}", "containers"),
        (&[], "npy", "new.npy", "{}", "the tree has none"),
    ];
    for (leaves, layout, name, json, what) in cases {
        let (source, target) = (source(folder.path(), &tree(leaves)), folder.path().join(name));
        let options = options(layout, json);
        let plan = regrow::open(&source).unwrap().plan_convert(&options).unwrap();
        let check = plan.check(&target, &options).unwrap_err();
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "{layout}: only the source is there"
        );
        let run = convert(&source, &target, &options).unwrap_err();
        assert_eq!((check.kind(), check.to_string()), (run.kind(), run.to_string()), "{layout}");
        assert!(check.to_string().contains(what), "{layout} {name}: {check}");
        assert!(!target.exists(), "{layout}");
    }
}

#[test]
fn a_dry_run_checks_the_default_layout() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), &tree(&[(&["w"], Leaf { kind: LeafKind::Bytes, ..leaf_of_bytes() })]));
    let options = options("regrow", r#"{"strict": true}"#);
    let plan = regrow::open(&source).unwrap().plan_convert(&options).unwrap();
    let check = plan.check(folder.path().join("new"), &options).unwrap_err();
    assert!(check.to_string().contains("bytes leaves"), "{check}");
    let error = plan.run(folder.path().join("new"), &options).unwrap_err();
    assert_eq!(check.to_string(), error.to_string());
}

fn leaf_of_bytes() -> Leaf {
    Leaf::array(Array::new(Dtype::UInt8, Shape::new([2]).unwrap(), vec![0; 2].into()).unwrap())
}

#[test]
fn a_dry_run_finds_an_existing_target() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), &tree(&[(&["w"], leaf())]));
    for (layout, name) in [("flax", "a"), ("regrow", "b"), ("pytree_data", "c")] {
        let mut options = options(layout, "{}");
        let target = folder.path().join(name);
        let check = |options: &ConvertOptions| {
            regrow::open(&source).unwrap().plan_convert(options).unwrap().check(&target, options)
        };
        check(&options).unwrap();
        convert(&source, &target, &options).unwrap();
        let error = check(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{layout}");
        assert_eq!(error.to_string(), convert(&source, &target, &options).unwrap_err().to_string());
        options.save.overwrite = true;
        check(&options).unwrap();
    }
    let options = options("regrow", "{}");
    let plan = regrow::open(&source).unwrap().plan_convert(&options).unwrap();
    let error = plan.check(source.join("below"), &options).unwrap_err();
    assert!(error.to_string().contains("inside the source"), "{error}");
}

/// Orbax stores a key's implementation by name; without one its data came back as a plain array,
/// and nothing said so.
#[test]
fn a_key_of_no_known_implementation_is_a_loss_in_orbax() {
    let folder = tempfile::tempdir().unwrap();
    let source = regrow_testkit::fixtures().join("orbax").join("manager_composite").join("ckpt");
    let mut options = options("orbax", "{}");
    options.open.step = Some(300);
    let report = convert(&source, folder.path().join("new"), &options).unwrap();
    let loss = report.losses.iter().find(|loss| loss.path.to_string() == "rng").unwrap();
    assert_eq!(loss.kind, LossKind::Kind);
    assert!(loss.what.contains("array of its key data"), "{loss}");
    let loaded = load(folder.path().join("new")).unwrap();
    let rng = loaded.iter().find(|(path, _)| path.to_string() == "rng").unwrap().1;
    assert_eq!(rng.kind, LeafKind::JaxArray);
}

fn of_numpy(descr: &str, each: u64) -> Leaf {
    let shape = Shape::new([2, each]).unwrap();
    let array = Array::new(Dtype::UInt8, shape, vec![65; 2 * each as usize].into()).unwrap();
    Leaf { kind: LeafKind::NumpyOther(Arc::from(descr)), ..Leaf::array(array) }
}

#[test]
fn losses_of_numpy_dtypes_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let tree = tree(&[(&["name"], of_numpy("<U3", 12)), (&["when"], of_numpy(">m8[s]", 8))]);
    let source = source(folder.path(), &tree);
    let report = convert(&source, folder.path().join("new"), &options("flax", "{}")).unwrap();
    let losses: Vec<String> =
        report.losses.iter().map(|loss| format!("{} {loss}", loss.kind.name())).collect();
    assert_eq!(
        losses,
        [
            "kind name: an array of dtype <U3 (text) becomes an array of uint8: the 12 bytes of each element, in one \
             more axis",
            "note when: >m8[s] comes back in little-endian byte order, with the same values",
        ]
    );
}

/// What is chosen, and what is not, is the same to a load and to a conversion.
#[test]
fn a_conversion_selects_leaves_like_a_load() {
    let folder = tempfile::tempdir().unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for name in ["a", "b"] {
        build.open(Key::dict(name), NodeKind::Dict).unwrap();
        build.open(Key::dict("empty"), NodeKind::List).unwrap();
        build.close().unwrap();
        build.open(Key::dict("none"), NodeKind::None).unwrap();
        build.close().unwrap();
        build.leaf(Key::dict("w"), leaf()).unwrap();
        build.close().unwrap();
    }
    build.close().unwrap();
    let source = folder.path().join("source");
    save(&source, &build.finish().unwrap()).unwrap();
    for (at, only) in ["a/w", "a/**", "*/none", "b/empty", "**"].into_iter().enumerate() {
        let only = vec![regrow::tree::PathPattern::new(only).unwrap()];
        let options = ConvertOptions { only: only.clone(), ..options("regrow", "{}") };
        let target = folder.path().join(at.to_string());
        convert(&source, &target, &options).unwrap();
        let load_options = regrow::LoadOptions { only, ..regrow::LoadOptions::default() };
        let loaded = regrow::engine::load_with(&source, &load_options).unwrap();
        assert_eq!(load(&target).unwrap().nodes(), loaded.nodes());
    }
}

/// A tree of one leaf, or of containers alone.
fn odd_trees() -> Vec<(&'static str, Tree<Leaf>)> {
    let array = |dims: &[u64]| {
        let shape = Shape::new(dims).unwrap();
        let len_bytes = 4 * shape.len_elements() as usize;
        Leaf::array(Array::new(Dtype::Float32, shape, vec![0; len_bytes].into()).unwrap())
    };
    let number = Leaf { kind: LeafKind::Scalar, ..array(&[]) };
    let empty = |kind: NodeKind| {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), kind).unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    };
    vec![
        ("number", Tree::single(number.clone())),
        ("NumPy's number", Tree::single(Leaf { kind: LeafKind::NumpyScalar, ..array(&[]) })),
        ("text", Tree::single(Leaf::text("x"))),
        ("bytes", Tree::single(Leaf { kind: LeafKind::Bytes, ..leaf_of_bytes() })),
        ("array", Tree::single(array(&[3]))),
        ("empty array", Tree::single(array(&[0]))),
        // Of so many axes its npy header is longer than what is looked at first.
        ("array of many axes", Tree::single(array(&[1; 60]))),
        ("large array", Tree::single(array(&[100_000]))),
        ("none", empty(NodeKind::None)),
        ("empty dict", empty(NodeKind::Dict)),
        ("dict of an array", tree(&[(&["w"], leaf())])),
        ("dict of two", tree(&[(&["v"], leaf()), (&["w"], leaf())])),
        ("dict of large arrays", tree(&[(&["v"], array(&[100_000])), (&["w"], array(&[100_000]))])),
        ("dict of a number", tree(&[(&["n"], number)])),
        ("dict of a text", tree(&[(&["t"], Leaf::text("x"))])),
    ]
}

/// That a file would not be found again shows in what is written, which a dry run has not: it let
/// such names pass.
#[test]
fn a_dry_run_refuses_names_that_would_not_open_again() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!(r#"{{"hyperparameters": {{"text": "{}"}}}}"#, "x".repeat(70_000));
    let layouts = [
        ("flax", "{}"),
        ("equinox", "{}"),
        ("equinox", r#"{"trailer": false}"#),
        ("equinox", r#"{"hyperparameters": {"a": 1}}"#),
        ("equinox", r#"{"hyperparameters": [1], "trailer": false}"#),
        ("equinox", long.as_str()),
        ("npy", r#"{"form": "npy"}"#),
        ("npy", r#"{"form": "npz"}"#),
        ("safetensors", r#"{"one_file": true}"#),
    ];
    let names = [
        "plain",
        "x.npy",
        "x.NPZ",
        "x.msgpack",
        "x.eqx",
        "x.safetensors",
        "checkpoint",
        "checkpoint_7",
        "x.data",
        "x.manifest",
        "regrow.json",
    ];
    let (mut refused, mut written) = (0, 0);
    for (what, tree) in odd_trees() {
        let source = source(folder.path(), &tree);
        for (layout, json) in layouts {
            let options = options(layout, json);
            for name in names {
                let case = format!("{what} as {layout} {} in {name}", json.get(..40).unwrap_or(json));
                let target = folder.path().join(name);
                let plan = regrow::open(&source).unwrap().plan_convert(&options).unwrap();
                let check = plan.check(&target, &options).map_err(|error| error.to_string());
                assert!(!target.exists(), "{case}");
                let run = convert(&source, &target, &options).map_err(|error| error.to_string());
                assert_eq!(check, run.map(drop), "{case}");
                if check.is_err_and(|error| error.contains("a file of this name would")) {
                    refused += 1;
                }
                if target.exists() {
                    written += 1;
                    std::fs::remove_file(&target).unwrap();
                }
            }
        }
    }
    assert!(refused > 300 && written > 300, "{refused} refused, {written} written");
}
