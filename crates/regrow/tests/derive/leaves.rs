//! Every Rust type that is a leaf or a container: numbers, texts, sequences, options, maps, tuples,
//! structs.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};
use regrow::Pytree;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, LeafKind, NodeKind, Scalar, StateDict, Tree, TreeBuilder};

use crate::{round_trip, round_trip_in, shape_of, tree_of};

#[derive(Pytree, Debug, PartialEq)]
struct Numbers {
    bool: bool,
    i8: i8,
    i16: i16,
    i32: i32,
    i64: i64,
    isize: isize,
    u8: u8,
    u16: u16,
    u32: u32,
    u64: u64,
    usize: usize,
    f16: f16,
    bf16: bf16,
    f32: f32,
    f64: f64,
    c64: num_complex::Complex<f32>,
    c128: num_complex::Complex<f64>,
}

#[test]
fn numbers_keep_type_and_value() {
    let numbers = Numbers {
        bool: true,
        i8: i8::MIN,
        i16: i16::MIN,
        i32: i32::MIN,
        i64: i64::MIN,
        isize: isize::MIN,
        u8: u8::MAX,
        u16: u16::MAX,
        u32: u32::MAX,
        u64: u64::MAX,
        usize: 7,
        f16: f16::from_f32(0.1),
        bf16: bf16::from_f32(0.1),
        f32: 0.1,
        f64: 0.1,
        c64: num_complex::Complex::new(0.1, -0.2),
        c128: num_complex::Complex::new(0.1, -0.2),
    };
    round_trip(&numbers);
    let kinds: HashMap<String, (LeafKind, Dtype)> = tree_of(&numbers)
        .iter()
        .map(|(path, leaf)| (path.to_string(), (leaf.kind.clone(), leaf.as_array().unwrap().dtype())))
        .collect();
    assert_eq!(kinds["f64"], (LeafKind::Scalar, Dtype::Float64), "Python's own float");
    assert_eq!(kinds["usize"], (LeafKind::Scalar, Dtype::Int64), "Python's own int");
    assert_eq!(kinds["u64"], (LeafKind::Scalar, Dtype::UInt64), "an int that int64 cannot hold");
    assert_eq!(kinds["f32"], (LeafKind::NumpyScalar, Dtype::Float32));
    assert_eq!(kinds["c128"], (LeafKind::NumpyScalar, Dtype::Complex128));
}

#[derive(Pytree, Debug, PartialEq)]
struct Sequences {
    vector: Vec<f32>,
    empty: Vec<f64>,
    flags: Vec<bool>,
    counts: Vec<usize>,
    phases: Vec<num_complex::Complex<f32>>,
    points: Vec<[f32; 3]>,
    fixed: [u16; 4],
    matrix: [[bf16; 3]; 2],
    cube: Vec<[[i8; 2]; 3]>,
    rows: Vec<Vec<f32>>,
    pairs: Vec<(i64, f64)>,
    no_pairs: Vec<(i64, f64)>,
    words: [String; 2],
    shared: Arc<[f64]>,
}

fn sequences() -> Sequences {
    Sequences {
        vector: vec![1.0, -0.0, f32::INFINITY],
        empty: vec![],
        flags: vec![true, false],
        counts: vec![0, usize::MAX],
        phases: vec![num_complex::Complex::new(1.5, -2.5)],
        points: vec![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        fixed: [1, 2, 3, 4],
        matrix: [[bf16::ONE; 3], [bf16::ZERO; 3]],
        cube: vec![[[1, 2], [3, 4], [5, 6]]],
        rows: vec![vec![1.0], vec![], vec![2.0, 3.0]],
        pairs: vec![(1, 0.5), (2, 0.25)],
        no_pairs: vec![],
        words: ["a".into(), "b".into()],
        shared: Arc::from([1.0, 2.0]),
    }
}

#[test]
fn numbers_pack_into_arrays_and_everything_else_is_a_list() {
    round_trip_in(&sequences(), &[Layout::default()]);
    round_trip(&Sequences { empty: vec![1.0], rows: vec![vec![1.0], vec![2.0, 3.0]], ..sequences() });
    let tree = tree_of(&sequences());
    let shapes: Vec<String> = tree
        .iter()
        .filter_map(|(path, leaf)| {
            leaf.as_array().map(|array| format!("{path} {} {}", array.dtype(), array.shape()))
        })
        .collect();
    assert_eq!(
        shapes,
        [
            "vector float32 [3]",
            "empty float64 [0]",
            "flags bool [2]",
            "counts uint64 [2]",
            "phases complex64 [1]",
            "points float32 [2,3]",
            "fixed uint16 [4]",
            "matrix bfloat16 [2,3]",
            "cube int8 [1,3,2]",
            "rows/0 float32 [1]",
            "rows/1 float32 [0]",
            "rows/2 float32 [2]",
            "pairs/0/0 int64 []",
            "pairs/0/1 float64 []",
            "pairs/1/0 int64 []",
            "pairs/1/1 float64 []",
            "shared float64 [2]",
        ]
    );
    let points = tree.leaves()[5].as_array().unwrap().to_c_order().unwrap();
    let expected: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(points, expected);
    let phases = tree.leaves()[4].as_array().unwrap().to_c_order().unwrap();
    assert_eq!(phases, [1.5_f32.to_le_bytes(), (-2.5_f32).to_le_bytes()].concat());
}

#[derive(Pytree, Debug, PartialEq)]
struct Rest {
    text: String,
    boxed: Box<str>,
    shared: Arc<str>,
    cow: Cow<'static, str>,
    bytes: Bytes,
    some: Option<i64>,
    none: Option<i64>,
    no_array: Option<Vec<f32>>,
    unit: (),
    tuple: (f32, String, (bool,)),
    long: (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64),
    heap: Box<(i64, f64)>,
    counted: Rc<String>,
    atomic: Arc<(i64, i64)>,
    names: HashMap<String, Vec<f32>>,
    sorted: BTreeMap<Arc<str>, Option<bool>>,
    steps: BTreeMap<i32, f64>,
    layers: HashMap<u8, BTreeMap<String, i64>>,
    nothing: HashMap<String, i64>,
}

fn rest() -> Rest {
    Rest {
        text: "text \u{1f331}".into(),
        boxed: "".into(),
        shared: "shared".into(),
        cow: Cow::Borrowed("cow"),
        bytes: Bytes::from_static(b"\0bytes\xff"),
        some: Some(5),
        none: None,
        no_array: None,
        unit: (),
        tuple: (0.5, "x".into(), (true,)),
        long: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
        heap: Box::new((1, 2.0)),
        counted: Rc::new("rc".into()),
        atomic: Arc::new((1, 2)),
        names: [("b".to_owned(), vec![1.0]), ("a".to_owned(), vec![])].into(),
        sorted: [("z".into(), None), ("y".into(), Some(false))].into(),
        steps: [(-3, 0.5), (20, 0.25)].into(),
        layers: [(10, [("k".to_owned(), 1)].into()), (9, BTreeMap::new())].into(),
        nothing: HashMap::new(),
    }
}

#[test]
fn text_bytes_options_pointers_tuples_and_maps_come_back() {
    round_trip_in(&rest(), &[Layout::default()]);
    let Rest { tuple, long, some, none, unit, heap, counted, sorted, steps, .. } = rest();
    round_trip(&(tuple, long, some, none, unit, heap, counted, sorted, steps));
    let tree = tree_of(&rest());
    let keys: Vec<Key> = tree.walk().filter_map(|(path, _)| path.keys().last().cloned()).collect();
    assert!(keys.contains(&Key::DictInt(-3)) && keys.contains(&Key::dict("y")), "{keys:?}");
    let names: Vec<String> = tree.paths().iter().map(ToString::to_string).collect();
    let a = names.iter().position(|name| name == "names/a").unwrap();
    assert_eq!(names[a + 1], "names/b", "a HashMap is stored in the order of its keys");
}

#[test]
fn a_struct_is_a_dataclass_a_tuple_struct_a_tuple_and_a_newtype_what_it_holds() {
    #[derive(Pytree)]
    struct Marker;
    #[derive(Pytree)]
    struct Pair(i64, Vec<f32>);
    #[derive(Pytree)]
    struct Metres(f64);
    #[derive(Pytree)]
    struct All {
        marker: Marker,
        pair: Pair,
        metres: Metres,
        r#type: Option<()>,
    }
    let all = All { marker: Marker, pair: Pair(1, vec![]), metres: Metres(2.0), r#type: None };
    assert_eq!(
        shape_of(&all),
        [
            ".:dataclass All",
            "marker:dataclass Marker",
            "pair:tuple",
            "pair/0:leaf",
            "pair/1:leaf",
            "metres:leaf",
            "type:none",
        ]
    );
    let All { metres: Metres(metres), pair: Pair(one, _), marker: Marker, .. } =
        All::from_tree(tree_of(&all)).unwrap();
    assert_eq!((metres, one), (2.0, 1));
}

#[test]
fn arrays_leaves_and_trees_are_taken_as_they_are() {
    #[derive(Pytree, Debug)]
    struct Whole {
        array: Array,
        leaf: Leaf,
        tree: Tree<Leaf>,
    }
    let array = Array::new(Dtype::Float8E4m3fn, Shape::new(vec![2, 2]).unwrap(), vec![1; 4].into()).unwrap();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::NamedTuple("optax.EmptyState".into())).unwrap();
    build.close().unwrap();
    let whole = Whole { array, leaf: Leaf::scalar(Scalar::Int(1)), tree: build.finish().unwrap() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &whole).unwrap();
    let back: Whole = regrow::load(&path).unwrap();
    assert_eq!(back.array.dtype(), Dtype::Float8E4m3fn);
    assert_eq!(back.leaf.kind, LeafKind::Scalar);
    assert_eq!(back.tree.nodes()[0].kind, NodeKind::NamedTuple("optax.EmptyState".into()));
    // A whole checkpoint is a tree too, and a tree field takes any subtree.
    let tree: Tree<Leaf> = regrow::load(&path).unwrap();
    let all: BTreeMap<String, Tree<Leaf>> = Pytree::from_tree(tree).unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["array", "leaf", "tree"]);
}

#[test]
fn shared_data_is_saved_without_a_copy() {
    let shared: Arc<[f32]> = Arc::from(vec![1.0, 2.0, 3.0]);
    let tree = tree_of(&shared);
    let bytes = tree.leaves()[0].as_array().unwrap().c_order_bytes().unwrap().clone();
    assert_eq!(bytes.as_ptr().cast::<f32>(), shared.as_ptr());
    let buffer = Bytes::from(vec![7; 100]);
    let tree = tree_of(&buffer);
    assert_eq!(tree.leaves()[0].kind, LeafKind::Bytes);
    assert_eq!(tree.leaves()[0].as_array().unwrap().c_order_bytes().unwrap().as_ptr(), buffer.as_ptr());
    let tree = Tree::single(Leaf::text("x"));
    assert!(matches!(tree.to_tree().unwrap(), Cow::Borrowed(_)), "a tree is saved as it is");
    assert!(matches!(Arc::new(tree).to_tree().unwrap(), Cow::Borrowed(_)));
}

#[test]
fn a_state_dict_has_dicts_only_and_regrows_the_value() {
    let state = rest().to_state_dict().unwrap();
    for node in state.nodes() {
        assert!(matches!(node.kind, NodeKind::Dict | NodeKind::Leaf | NodeKind::None), "{node:?}");
    }
    assert!(state.walk().skip(1).all(|(path, _)| path.keys().iter().all(|key| matches!(key, Key::Dict(_)))));
    assert_eq!(Rest::from_state_dict(state).unwrap(), rest());
    assert_eq!(Sequences::from_state_dict(sequences().to_state_dict().unwrap()).unwrap(), sequences());
}

#[test]
fn a_static_text_is_saved_and_compared_but_never_made() {
    let tree = tree_of(&"adam");
    let error = <&'static str>::from_tree(tree.clone()).unwrap_err().to_string();
    assert!(error.contains("Cow<'static, str>") && error.contains("\"adam\""), "{error}");
    let mut text = "adam";
    text.load_tree(&tree, Default::default()).unwrap();
    let error = "sgd".to_owned().to_tree().map(|tree| text.load_tree(&tree, Default::default())).unwrap();
    assert!(error.unwrap_err().to_string().contains("wanted \"adam\", stored \"sgd\""));
}

#[test]
fn types_that_hold_themselves_are_bounded() {
    #[derive(Pytree, Debug)]
    struct Chain {
        next: Option<Box<Chain>>,
    }
    let chain = |len| (0..len).fold(Chain { next: None }, |next, _| Chain { next: Some(Box::new(next)) });
    let tree = tree_of(&chain(200));
    assert!(Chain::from_tree(tree).is_ok());
    let error = chain(300).to_tree().unwrap_err();
    assert_eq!(error.kind(), regrow::ErrorKind::Limit);
    // A file may be as deep as it likes.
    let mut build = TreeBuilder::new();
    for _ in 0..50_000 {
        build.open(Key::attr("next"), NodeKind::Dict).unwrap();
    }
    for _ in 0..50_000 {
        build.close().unwrap();
    }
    let error = crate::refused::<Chain>(build.finish().unwrap());
    assert!(error.contains("at most 256 levels"), "{error}");
}
