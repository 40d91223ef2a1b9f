//! Checkpoints that Python wrote with Orbax load as Rust types. The files are fixtures of the
//! engine.

use std::collections::{BTreeMap, HashMap};

use half::bf16;
use ndarray::{Array1, Array2};
use regrow::Pytree;

fn load<P: Pytree>(fixture: &str) -> regrow::Result<P> {
    regrow::load(regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt"))
}

/// The sha256 that Orbax' own reading of a leaf had.
fn sha256_of(fixture: &str, name: &str) -> String {
    let expected = regrow_testkit::expected(&format!("orbax/{fixture}"));
    let leaves = expected["items"][""]["leaves"].as_array().unwrap().clone();
    let leaf = leaves.into_iter().find(|leaf| leaf["param_name"] == name).unwrap();
    leaf["sha256"].as_str().unwrap().to_owned()
}

fn sha256<T: Copy, const N: usize>(values: impl IntoIterator<Item = T>, to_le: fn(T) -> [u8; N]) -> String {
    use sha2::Digest;
    let bytes: Vec<u8> = values.into_iter().flat_map(to_le).collect();
    sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Pytree, Debug)]
struct Run {
    loss: f64,
    name: String,
    opt: (Array2<f32>, Vec<i32>),
    params: Params,
    step: u64,
    wide: Array2<f32>,
}

#[derive(Pytree, Debug)]
struct Params {
    dense: Dense,
    embed: Vec<[f32; 8]>,
}

#[derive(Pytree, Debug)]
struct Dense {
    bias: Array1<bf16>,
    kernel: Array2<f32>,
}

#[test]
fn dicts_of_orbax_regrow_structs() {
    for fixture in ["sd_ocdbt_zarr2", "sd_files_zarr2", "sd_files_zarr3"] {
        let run: Run = load(fixture).unwrap();
        assert_eq!((run.loss, run.name.as_str(), run.step), (0.125, "run-a", 41), "{fixture}");
        assert_eq!((run.opt.0.dim(), run.opt.1.len(), run.params.embed.len()), ((6, 4), 5, 33));
        let wanted = |name| sha256_of(fixture, name);
        assert_eq!(sha256(run.params.dense.kernel, f32::to_le_bytes), wanted("params.dense.kernel"));
        assert_eq!(sha256(run.params.dense.bias, bf16::to_le_bytes), wanted("params.dense.bias"));
        assert_eq!(sha256(run.params.embed.into_iter().flatten(), f32::to_le_bytes), wanted("params.embed"));
        assert_eq!(sha256(run.opt.1, i32::to_le_bytes), wanted("opt.1"));
        assert_eq!(sha256(run.wide, f32::to_le_bytes), wanted("wide"));
    }
}

#[derive(Pytree, Debug)]
struct Structures {
    custom_no_keys: (Vec<f32>, i64),
    custom_with_keys: XY,
    dataclass: Dataclass,
    empty_dict: HashMap<String, i64>,
    empty_list: Vec<String>,
    empty_namedtuple: Option<()>,
    empty_tuple: (),
    flax_struct: FlaxStruct,
    list: Mixed,
    long_list: Vec<Option<i16>>,
    namedtuple: Moments,
    none: Option<Vec<f32>>,
    optax: (Adam, Option<()>, Option<()>),
    scalars: Scalars,
    strings: BTreeMap<String, String>,
    tuple: (Array2<f32>, (String, (u8,))),
}

#[derive(Pytree, Debug)]
struct Mixed(i64, f64, bool, String, Option<i64>, BTreeMap<String, i64>, (Vec<f32>,));

#[derive(Pytree, Debug)]
struct XY {
    x: [f32; 2],
    y: i32,
}

#[derive(Pytree, Debug)]
struct Dataclass {
    a: Vec<f32>,
    b: i64,
}

#[derive(Pytree, Debug)]
struct FlaxStruct {
    w: Array2<f32>,
    inner: HashMap<String, i64>,
    n: i64,
}

#[derive(Pytree, Debug)]
struct Moments {
    mu: Vec<f32>,
    nu: BTreeMap<String, Vec<f32>>,
}

#[derive(Pytree, Debug)]
struct Adam {
    count: i32,
    mu: Weights,
    nu: Weights,
}

#[derive(Pytree, Debug)]
struct Weights {
    b: Vec<f32>,
    w: Vec<[f32; 2]>,
}

#[derive(Pytree, Debug)]
struct Scalars {
    big_int: i64,
    bool_f: bool,
    bool_t: bool,
    float: f32,
    int: i8,
    np_c64: num_complex::Complex<f32>,
    np_f32: f32,
    np_i8: i8,
    np_u64: u64,
}

#[test]
fn every_container_of_python_has_a_type() {
    let structures: Structures = load("structures").unwrap();
    assert_eq!((structures.custom_no_keys.1, structures.custom_with_keys.y), (5, 6));
    assert_eq!((structures.list.0, structures.list.1, structures.list.2), (1, 2.5, true));
    assert_eq!((structures.list.3.as_str(), structures.list.4), ("s", None));
    assert_eq!(structures.long_list.len(), 12);
    assert_eq!(structures.scalars.big_int, 4_611_686_018_427_387_904);
    assert_eq!(
        (structures.scalars.float, structures.scalars.int),
        (-0.5, -7),
        "Python's numbers have no width"
    );
    assert_eq!(structures.strings["unicode"], "\u{4e2d}\u{6587} \u{e9} \u{2603}");
    assert_eq!((structures.tuple.1.0.as_str(), structures.tuple.1.1.0), ("deep", 7));
    assert_eq!(structures.namedtuple.nu.len(), 1);
    assert_eq!((structures.optax.0.mu.w.len(), structures.none.is_none()), (3, true));
}

#[test]
fn a_missing_and_an_extra_leaf_of_python_are_named() {
    #[derive(Pytree, Debug)]
    struct Wrong {
        w: Array2<f64>,
        n: BTreeMap<String, f64>,
        bias: Vec<f32>,
    }
    let error = load::<Wrong>("standard_checkpointer").unwrap_err();
    let lines: Vec<&str> = error.what().lines().skip(1).map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "dtype     w: wanted float64, stored float32",
            "shape     n/b: wanted [], stored [2]",
            "missing   bias: in the value, not in the checkpoint",
        ]
    );
}
