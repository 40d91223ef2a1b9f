//! Each attribute in `#[pytree(...)]`: skip, rename, default, flatten, with, bound.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use regrow::Pytree;
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};

use crate::{refused, round_trip, shape_of, tree_of};

fn dict(entries: Vec<(&str, Leaf)>) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (key, leaf) in entries {
        build.leaf(Key::dict(key), leaf).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn int(value: i64) -> Leaf {
    Leaf::scalar(Scalar::Int(value))
}

#[derive(Debug, PartialEq, Default)]
struct NoPytree(u8);

fn nine() -> i64 {
    9
}

#[derive(Pytree, Debug, PartialEq)]
struct Skips {
    kept: i64,
    #[pytree(skip)]
    cache: NoPytree,
    #[pytree(skip, default = "nine")]
    nine: i64,
    phantom: PhantomData<NoPytree>,
}

#[test]
fn skipped_fields_are_made_again() {
    let value = Skips { kept: 1, cache: NoPytree(7), nine: 1, phantom: PhantomData };
    assert_eq!(shape_of(&value), [".:dataclass Skips", "kept:leaf"]);
    let back = Skips::from_tree(tree_of(&value)).unwrap();
    assert_eq!(back, Skips { kept: 1, cache: NoPytree(0), nine: 9, phantom: PhantomData });
}

#[derive(Pytree, Debug, PartialEq)]
#[pytree(rename = "flax.TrainState", rename_all = "camelCase")]
struct Renamed {
    learning_rate: f64,
    #[pytree(rename = "opt/state")]
    optimizer: i64,
}

#[test]
fn names_are_chosen() {
    let value = Renamed { learning_rate: 0.1, optimizer: 2 };
    assert_eq!(shape_of(&value), [".:dataclass flax.TrainState", "learningRate:leaf", "opt/state:leaf"]);
    assert_eq!(tree_of(&value).paths()[1].keys(), [Key::attr("opt/state")]);
    round_trip(&value);
}

#[test]
fn rename_all_changes_the_case_of_fields_and_variants() {
    macro_rules! case {
        ($case:literal, $name:literal) => {{
            #[derive(Pytree, Debug, PartialEq)]
            #[pytree(rename_all = $case)]
            struct Field {
                learning_rate: i64,
            }
            assert_eq!(shape_of(&Field { learning_rate: 1 })[1], concat!($name, ":leaf"));
            #[derive(Pytree, Debug, PartialEq)]
            #[pytree(rename_all = $case)]
            enum Variant {
                LearningRate { b1: i64 },
            }
            let shape = shape_of(&Variant::LearningRate { b1: 1 });
            assert_eq!(shape[1], concat!($name, ":dataclass Variant::", $name));
        }};
    }
    case!("lowercase", "learningrate");
    case!("UPPERCASE", "LEARNINGRATE");
    case!("PascalCase", "LearningRate");
    case!("camelCase", "learningRate");
    case!("snake_case", "learning_rate");
    case!("SCREAMING_SNAKE_CASE", "LEARNING_RATE");
    case!("kebab-case", "learning-rate");
}

#[derive(Pytree, Debug, PartialEq)]
struct Defaults {
    step: i64,
    #[pytree(default)]
    ema: Vec<f32>,
    #[pytree(default = "nine")]
    seed: i64,
    option: Option<i64>,
}

#[test]
fn missing_fields_take_their_default() {
    let old = dict(vec![("step", int(3))]);
    assert_eq!(Defaults::from_tree(old).unwrap(), Defaults { step: 3, ema: vec![], seed: 9, option: None });
    round_trip(&Defaults { step: 1, ema: vec![0.5], seed: 2, option: Some(4) });
    let wrong = refused::<Defaults>(dict(vec![("step", int(3)), ("ema", int(1))]));
    assert!(wrong.contains("dtype     ema: wanted float32, stored int64"), "{wrong}");
}

#[derive(Pytree, Debug, PartialEq)]
struct Shared {
    step: i64,
    lr: f64,
}

#[derive(Pytree, Debug, PartialEq)]
struct Flat {
    name: String,
    #[pytree(flatten)]
    shared: Shared,
    #[pytree(flatten)]
    boxed: Box<Metrics>,
    #[pytree(flatten)]
    rest: BTreeMap<String, Option<f64>>,
}

#[derive(Pytree, Debug, PartialEq)]
struct Metrics {
    loss: f64,
    none: Option<i64>,
}

fn flat() -> Flat {
    Flat {
        name: "n".into(),
        shared: Shared { step: 1, lr: 0.5 },
        boxed: Box::new(Metrics { loss: 0.25, none: None }),
        rest: [("extra".to_owned(), Some(1.0)), ("void".to_owned(), None)].into(),
    }
}

#[test]
fn flattened_fields_lie_beside_their_siblings() {
    assert_eq!(
        shape_of(&flat()),
        [
            ".:dataclass Flat",
            "name:leaf",
            "step:leaf",
            "lr:leaf",
            "loss:leaf",
            "none:none",
            "extra:leaf",
            "void:none",
        ]
    );
    round_trip(&flat());
    let error = refused::<Flat>(dict(vec![("name", Leaf::text("n")), ("step", int(1)), ("x", int(2))]));
    assert!(error.contains("missing   lr") && error.contains("missing   loss"), "{error}");
    assert!(!error.contains("extra     "), "the map takes what is left: {error}");
    let mut loaded = flat();
    loaded.shared.step = 100;
    loaded.rest.insert("extra".into(), Some(9.0));
    loaded.load_tree(&tree_of(&flat()), Default::default()).unwrap();
    assert_eq!(loaded, flat());
}

#[test]
fn what_is_no_struct_cannot_be_flattened() {
    #[derive(Pytree)]
    struct Wrong {
        #[pytree(flatten)]
        list: Vec<i64>,
    }
    let error = Wrong { list: vec![] }.to_tree().unwrap_err().to_string();
    assert!(error.contains("#[pytree(flatten)] is for structs and maps, not for a leaf"), "{error}");
}

mod seconds {
    use std::time::Duration;

    pub fn to_pytree(duration: &Duration) -> f64 {
        duration.as_secs_f64()
    }

    pub fn from_pytree(seconds: f64) -> Result<Duration, String> {
        Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
    }
}

#[derive(Pytree, Debug, PartialEq)]
struct Converted {
    #[pytree(with = "seconds")]
    elapsed: Duration,
    #[pytree(with = "crate::attributes::seconds", default)]
    left: Duration,
}

#[derive(Pytree, Debug, PartialEq)]
struct Wrapped(#[pytree(with = "seconds")] Duration);

#[derive(Pytree, Debug, PartialEq)]
struct Both(i64, #[pytree(with = "seconds")] Duration, #[pytree(skip)] NoPytree, i64);

#[test]
fn modules_convert_foreign_types() {
    let value = Converted { elapsed: Duration::from_millis(1500), left: Duration::from_secs(1) };
    round_trip(&value);
    round_trip(&Wrapped(Duration::from_secs(2)));
    round_trip(&Both(1, Duration::from_secs(2), NoPytree(0), 3));
    assert_eq!(shape_of(&Both(1, Duration::ZERO, NoPytree(0), 3)).len(), 4);
    let one = dict(vec![("elapsed", Leaf::scalar(Scalar::Float(1.0)))]);
    assert_eq!(Converted::from_tree(one).unwrap().left, Duration::ZERO);
    let negative = dict(vec![("elapsed", Leaf::scalar(Scalar::Float(-1.0)))]);
    let mut untouched = Converted { elapsed: Duration::from_secs(8), left: Duration::from_secs(9) };
    let error = untouched.load_tree(&negative, Default::default()).unwrap_err().to_string();
    assert!(error.contains("value     elapsed: wanted what its module takes, stored"), "{error}");
    assert_eq!(untouched.elapsed, Duration::from_secs(8));
    untouched
        .load_tree(&dict(vec![("elapsed", Leaf::scalar(Scalar::Float(2.0)))]), Default::default())
        .unwrap();
    assert_eq!((untouched.elapsed.as_secs(), untouched.left.as_secs()), (2, 9), "a missing one stays");
    let mut wrapped = Wrapped(Duration::ZERO);
    wrapped.load_tree(&tree_of(&Wrapped(Duration::from_secs(5))), Default::default()).unwrap();
    assert_eq!(wrapped, Wrapped(Duration::from_secs(5)));
}

trait Scale {
    type Unit: Pytree + std::fmt::Debug + PartialEq;
}

#[derive(Debug, PartialEq)]
struct Celsius;

impl Scale for Celsius {
    type Unit = f32;
}

#[derive(Pytree, Debug, PartialEq)]
#[pytree(bound = "S: Scale")]
struct Bound<S: Scale> {
    value: S::Unit,
    scale: PhantomData<S>,
}

#[derive(Pytree, Debug, PartialEq)]
struct Recursive<T, const N: usize> {
    tree: Vec<Recursive<T, N>>,
    leaf: [T; N],
}

#[derive(Pytree, Debug, PartialEq)]
struct Generic<T, U>
where
    T: Clone,
{
    leaf: Vec<T>,
    #[pytree(skip)]
    cache: Option<U>,
    phantom: PhantomData<(T, U)>,
}

#[test]
fn generics_are_bounded_by_what_is_stored() {
    round_trip(&Bound::<Celsius> { value: 0.5, scale: PhantomData });
    let leaf = || Recursive { tree: vec![], leaf: [1_i64, 2] };
    round_trip(&Recursive { tree: vec![leaf(), leaf()], ..leaf() });
    // `NoPytree` is named by fields that are not stored.
    round_trip(&Generic::<f32, NoPytree> { leaf: vec![0.5], cache: None, phantom: PhantomData });
}

mod inner {
    pub use ::regrow as renamed;
}

#[derive(Pytree, Debug, PartialEq)]
#[pytree(crate = "inner::renamed")]
struct OtherName {
    a: i64,
}

macro_rules! made_by_a_macro {
    ($name:ident { $($field:ident: $ty:ty),* }) => {
        #[derive(Pytree, Debug, PartialEq)]
        struct $name { $($field: $ty),* }
    };
}
made_by_a_macro!(FromMacro { a: i64, b: Vec<f32> });

#[test]
fn derived_code_stands_anywhere() {
    round_trip(&OtherName { a: 1 });
    round_trip(&FromMacro { a: 1, b: vec![2.0] });
}
