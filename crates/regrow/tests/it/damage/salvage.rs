//! Salvage in every layout. The test removes, cuts or damages each file in turn. Each leaf comes
//! back as saved, or is listed as lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::common::damage::{checkpoints, contents, files, put, small_tree};
use regrow::array::{Array, Dtype, Shape};
use regrow::tree::{Key, Leaf, LeafData, LeafKind, NodeKind, Tree};
use regrow::{ConvertOptions, ErrorKind, LoadOptions, Salvaged, SealOptions};
use regrow_testkit::{copy_folder, fixtures, memory_folder};

/// What a leaf is, by its key path.
fn leaves(tree: &Tree<Leaf>) -> BTreeMap<String, String> {
    let text = |leaf: &Leaf| match &leaf.data {
        LeafData::Array(array) => {
            format!(
                "{:?} {} {} {:?}",
                leaf.kind,
                array.dtype(),
                array.shape(),
                &array.to_c_order().unwrap()[..]
            )
        }
        other => format!("{:?} {other:?}", leaf.kind),
    };
    tree.iter().map(|(path, leaf)| (path.to_string(), text(leaf))).collect()
}

/// How many leaves are lost; fails unless all others are what was saved: of those that have lost
/// their pytree, their bytes.
fn are_what_was_saved(salvaged: &Salvaged, good: &BTreeMap<String, String>, what: &str) -> usize {
    let lost: BTreeSet<String> =
        salvaged.lost.iter().map(|error| error.place().leaf.as_ref().unwrap().to_string()).collect();
    assert_eq!(lost.len(), salvaged.lost.len(), "{what}");
    for (path, leaf) in leaves(&salvaged.tree) {
        if lost.contains(&path) {
            assert!(leaf.starts_with(&format!("{:?}", LeafKind::Placeholder)), "{what} {path}: {leaf}");
        } else {
            // Opened as arrays only: names and kinds of leaves may be others.
            let data = |leaf: &str| leaf.split_once(' ').map(|(_, data)| data.to_owned());
            let is_bare = !salvaged.damage.is_empty();
            let is_same = good.get(&path).is_none_or(|good| data(good) == data(&leaf));
            assert!(
                good.get(&path) == Some(&leaf) || is_bare && is_same,
                "{what}: {path} is not what was saved: {leaf}, {:?}",
                salvaged.lost
            );
        }
    }
    lost.len()
}

#[test]
fn intact_leaves_come_back_and_lost_leaves_are_listed() {
    let root = memory_folder().unwrap();
    let options = LoadOptions::default();
    let (mut partly, mut nothing) = (0, 0);
    for (name, path) in checkpoints(root.path()) {
        let Ok(whole) = regrow::engine::load_with(&path, &options) else { continue };
        let plain = regrow::salvage(&path, &options).unwrap();
        assert!(plain.is_whole() && contents(&plain.tree) == contents(&whole), "{name}");
        regrow::seal(&path, &SealOptions::default()).unwrap();
        let good = leaves(&whole);
        let folder = path.parent().unwrap();
        let (mut here, mut none_here) = (0, 0);
        for (file, bytes) in files(folder) {
            for kind in 0..3 {
                let what = format!("{name}, {} {kind}", file.display());
                match kind {
                    0 => fs::remove_file(&file).unwrap(),
                    1 => put(&file, &bytes[..bytes.len() * 2 / 3]),
                    _ if bytes.is_empty() => {}
                    _ => {
                        let mut bytes = bytes.clone();
                        let at = bytes.len() * 3 / 4;
                        bytes[at] ^= 16;
                        put(&file, &bytes);
                    }
                }
                match regrow::salvage(&path, &options) {
                    Ok(salvaged) => here += usize::from(are_what_was_saved(&salvaged, &good, &what) > 0),
                    Err(error) => {
                        none_here += 1;
                        println!("{what}: {}", error.to_string().replace('\n', " | "));
                        assert!(regrow::engine::load_with(&path, &options).is_err(), "{what}: {error}");
                    }
                }
                let _ = fs::write(&file, b"");
                put(&file, &bytes);
            }
        }
        println!("{name}: {here} partly, {none_here} not at all");
        partly += here;
        nothing += none_here;
        assert!(regrow::salvage(&path, &options).unwrap().is_whole(), "{name}");
    }
    println!("{partly} partly, {nothing} not at all");
    assert!(partly > 50, "of {partly} something is lost and something given");
}

/// Damage that leaves nothing: all data were in the file, or all metadata; the few arrays of a
/// small one are in one block, and nothing is known of it when its checksum fails.
const NOTHING_LEFT: &str = "\
    equinox .eqx (regrow)  gone
    equinox/model_and_opt.eqx  gone
    flax .msgpack (regrow)  gone
    flax/all_dtypes.msgpack  gone
    flax/chunked.msgpack  cut by a third
    flax/chunked.msgpack  cut to a third
    flax/chunked.msgpack  gone
    npy .npz (regrow)  gone
    npy/deflated.npz  gone
    npy/fortran_big.npy  cut by a byte
    npy/fortran_big.npy  cut by a third
    npy/fortran_big.npy  cut to a third
    npy/fortran_big.npy  gone
    items in four layouts _CHECKPOINT_METADATA gone
    orbax  (regrow) d/ cut by a byte
    orbax  (regrow) d/ cut by a third
    orbax  (regrow) d/ cut to a third
    orbax  (regrow) d/ gone
    orbax  (regrow) state/d/ cut by a byte
    orbax  (regrow) state/d/ cut by a third
    orbax  (regrow) state/d/ cut to a third
    orbax  (regrow) state/d/ gone
    orbax/sd_ocdbt_zarr3_chunked/ckpt d/ cut by a byte
    orbax/sd_ocdbt_zarr3_chunked/ckpt d/ cut by a third
    orbax/sd_ocdbt_zarr3_chunked/ckpt d/ cut to a third
    orbax/sd_ocdbt_zarr3_chunked/ckpt d/ gone
    pytree_data  (regrow)  cut by a third
    pytree_data  (regrow)  cut to a third
    pytree_data  (regrow)  gone
    regrow  (regrow) model.safetensors cut by a byte
    regrow  (regrow) model.safetensors cut by a third
    regrow  (regrow) model.safetensors cut to a third
    regrow  (regrow) model.safetensors gone
    safetensors  (regrow) model.safetensors gone
    safetensors .safetensors (regrow)  gone
    safetensors/every_dtype.safetensors  cut by a third
    safetensors/every_dtype.safetensors  cut to a third
    safetensors/every_dtype.safetensors  gone
    safetensors/sharded model.safetensors.index.json cut by a third
    safetensors/sharded model.safetensors.index.json cut to a third
    safetensors/sharded model.safetensors.index.json gone
    torch/dcp_sharded .metadata cut by a byte
    torch/dcp_sharded .metadata cut by a third
    torch/dcp_sharded .metadata cut to a third
    torch/dcp_sharded .metadata gone
    torch/legacy_training.pt  cut by a third
    torch/legacy_training.pt  cut to a third
    torch/legacy_training.pt  gone
    torch/training.pt  cut to a third
    torch/training.pt  gone";

/// The same without a seal, of damage that shows without one: files that are gone, and files that
/// are cut.
#[test]
fn missing_or_cut_files_cost_only_their_leaves() {
    let root = memory_folder().unwrap();
    let options = LoadOptions::default();
    let (mut nothing, mut tried, mut sound) = (BTreeSet::new(), 0, 0);
    let mut all = checkpoints(root.path());
    let steps = root.path().join("steps").join("ckpt");
    copy_folder(&fixtures().join("orbax/manager_composite/ckpt"), &steps).unwrap();
    all.push(("items in steps".to_owned(), steps));
    let own = root.path().join("own_items").join("x");
    for (item, layout) in [("a", "regrow"), ("b", "orbax"), ("c", "npy"), ("d", "safetensors")] {
        let layout = regrow::engine::Layout::from_name(layout, serde_json::json!({})).unwrap();
        regrow::save_with(own.join(item), &small_tree(), &crate::common::damage::options(&layout)).unwrap();
    }
    let document = r#"{"item_handlers": {"a": null, "b": null, "c": null, "d": null}, "metrics": {}, "performance_metrics": {},
        "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2, "custom_metadata": {}}"#;
    fs::write(own.join("_CHECKPOINT_METADATA"), document).unwrap();
    all.push(("items in four layouts".to_owned(), own));
    for (name, path) in all {
        let Ok(whole) = regrow::engine::load_with(&path, &options) else { continue };
        let good = leaves(&whole);
        let folder = path.parent().unwrap();
        for (file, bytes) in files(folder) {
            let len = bytes.len();
            let cuts = [
                ("cut by a byte", len.saturating_sub(1)),
                ("cut by a third", len * 2 / 3),
                ("cut to a third", len / 3),
            ];
            let cuts = cuts.into_iter().map(|(say, cut)| (say, Some(cut)));
            for (say, cut) in [("gone", None)].into_iter().chain(cuts).filter(|(_, cut)| *cut != Some(len)) {
                let below = file.strip_prefix(&path).ok().filter(|below| below.components().next().is_some());
                let below = below.map_or_else(String::new, |below| below.to_string_lossy().into_owned());
                // What is in the folder of a database has a name of its own each time.
                let below = below.split_once("d/").map_or(below.clone(), |(above, _)| format!("{above}d/"));
                let what = format!("{name} {below} {say}");
                match cut {
                    None => fs::remove_file(&file).unwrap(),
                    Some(cut) => put(&file, &bytes[..cut]),
                }
                // Where nothing says that there was more, that is how it is: another pytree, chunks
                // of zeros.
                let loaded = regrow::engine::load_with(&path, &options);
                let is_sound = loaded.is_ok();
                tried += 1;
                sound += usize::from(is_sound);
                let good = loaded.map_or_else(|_| good.clone(), |tree| leaves(&tree));
                match regrow::salvage(&path, &options) {
                    Ok(salvaged) => {
                        let lost = are_what_was_saved(&salvaged, &good, &what);
                        let there = leaves(&salvaged.tree).len() - lost;
                        let is_told = is_sound || !salvaged.is_whole();
                        assert!(is_told, "{what}: {there} of {}", good.len());
                    }
                    Err(_) => drop(nothing.insert(what)),
                }
                let _ = fs::write(&file, b"");
                put(&file, &bytes);
            }
        }
    }
    println!("{tried} files gone or cut: {sound} as sound as before, {} nothing left", nothing.len());
    let expected = BTreeSet::from_iter(NOTHING_LEFT.lines().map(str::trim).map(str::to_owned));
    let unexpected: Vec<&String> = nothing.difference(&expected).collect();
    assert!(unexpected.is_empty(), "nothing comes back of {unexpected:#?}");
    let better: Vec<&String> = expected.difference(&nothing).collect();
    assert!(better.is_empty(), "something comes back of {better:#?}");
}

#[test]
fn an_unverified_or_missing_checkpoint_is_an_error() {
    let root = memory_folder().unwrap();
    let (_, path) = checkpoints(root.path()).remove(0);
    let unverified = LoadOptions { unverified: true, ..LoadOptions::default() };
    assert_eq!(regrow::salvage(&path, &unverified).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let nowhere = regrow::salvage(root.path().join("nowhere"), &LoadOptions::default()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
}

/// In which only what is intact is read, and placeholders stand for the rest.
#[test]
fn a_conversion_writes_the_salvaged_leaves() {
    let root = memory_folder().unwrap();
    let options = LoadOptions::default();
    let target = root.path().join("target");
    let (mut converted, mut lossy) = (0, 0);
    for (name, path) in checkpoints(root.path()) {
        if regrow::engine::load_with(&path, &options).is_err() {
            continue;
        }
        regrow::seal(&path, &SealOptions::default()).unwrap();
        let is_data = |(file, _): &(PathBuf, Vec<u8>)| !file.to_string_lossy().contains("regrow.seal");
        let all = files(path.parent().unwrap());
        let (file, bytes) = all.into_iter().filter(is_data).max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let mut damaged = bytes.clone();
        let at = damaged.len() / 2;
        damaged[at] ^= 16;
        put(&file, &damaged);
        let convert = ConvertOptions { salvage: true, lossy: true, ..ConvertOptions::default() };
        match (regrow::salvage(&path, &options), regrow::convert(&path, &target, &convert)) {
            (Ok(salvaged), Ok(report)) => {
                let told = |errors: &[regrow::Error]| {
                    let leaves = errors.iter().filter_map(|error| error.place().leaf.as_ref());
                    leaves.map(ToString::to_string).collect::<BTreeSet<String>>()
                };
                assert_eq!(told(&salvaged.lost), told(&report.damage), "{name}");
                assert!(regrow::verify(&target).unwrap().is_ok(), "{name}");
                let written = leaves(&regrow::engine::load_with(&target, &options).unwrap());
                for (path, leaf) in leaves(&salvaged.tree) {
                    if report.losses.iter().any(|loss| loss.path.to_string() == path) {
                        lossy += 1;
                    } else {
                        assert_eq!(written.get(&path), Some(&leaf), "{name}: {path}");
                    }
                }
                converted += 1;
                fs::remove_dir_all(&target).unwrap();
            }
            (Err(_), Err(_)) => assert!(!target.exists(), "{name}"),
            (salvaged, report) => panic!("{name}: {:?} {:?}", salvaged.map(|_| ()), report.map(|_| ())),
        }
    }
    println!("{converted} converted, {lossy} leaves as something else");
    assert!(converted >= 8);
}

#[test]
fn lists_keep_their_places_and_other_layouts_omit_lost_leaves() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    let mut build = regrow::tree::TreeBuilder::new();
    let array = |bytes: &[u8]| {
        let shape = Shape::new([bytes.len() as u64]).unwrap();
        Leaf::array(Array::new(Dtype::UInt8, shape, bytes.to_vec().into()).unwrap())
    };
    build.open(Key::Index(0), NodeKind::List).unwrap();
    for (at, byte) in [1_u8, 2, 3].into_iter().enumerate() {
        build.leaf(Key::Index(at), array(&[byte; 70_000])).unwrap();
    }
    build.close().unwrap();
    regrow::save(&path, &build.finish().unwrap()).unwrap();
    let (file, mut bytes) = files(&path).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let lost = bytes.windows(16).position(|window| window == [2; 16]).unwrap();
    bytes[lost + 35_000] = 9;
    put(&file, &bytes);
    for (layout, has_places) in
        [("regrow", true), ("orbax", true), ("flax", false), ("npy", false), ("equinox", false)]
    {
        let target = root.path().join(format!("{layout}.out"));
        let layout = regrow::engine::Layout::from_name(layout, serde_json::json!({})).unwrap();
        let save = regrow::SaveOptions { layout, ..regrow::SaveOptions::default() };
        let options = ConvertOptions { salvage: true, save, ..ConvertOptions::default() };
        let report = regrow::convert(&path, &target, &options);
        let Ok(report) = report else {
            assert!(!has_places, "{report:?}");
            println!("{target:?}: {}", report.unwrap_err());
            continue;
        };
        assert_eq!(report.damage.len(), 1, "{target:?}");
        let tree = regrow::engine::load_with(&target, &LoadOptions::default()).unwrap();
        let bytes: Vec<Option<u8>> = tree
            .leaves()
            .iter()
            .map(|leaf| leaf.as_array().map(|array| array.to_c_order().unwrap()[0]))
            .collect();
        println!("{target:?}: {bytes:?} {:?}", report.losses);
        match has_places {
            true => assert_eq!(bytes, [Some(1), None, Some(3)], "{target:?}"),
            false => assert_eq!(bytes.iter().flatten().collect::<Vec<_>>(), [&1, &3], "{target:?}"),
        }
    }
}

/// A copy that was not finished, and a file to which something was added: each block still says
/// what it is.
#[test]
fn a_data_file_of_another_length_gives_its_intact_leaves() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    let names = ["a", "b", "c"];
    let mut build = regrow::tree::TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (name, byte) in names.into_iter().zip(1_u8..) {
        let shape = Shape::new([1_u64 << 20]).unwrap();
        let array = Array::new(Dtype::UInt8, shape, vec![byte; 1 << 20].into()).unwrap();
        build.leaf(Key::dict(name), Leaf::array(array)).unwrap();
    }
    build.close().unwrap();
    regrow::save(&path, &build.finish().unwrap()).unwrap();
    let (file, bytes) = files(&path).into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let cut = bytes.len() - (1 << 19);
    let longer = [&bytes[..], b"more"].concat();
    for (bytes, is_lost) in [(&bytes[..cut], ["c"].as_slice()), (&longer, &[])] {
        put(&file, bytes);
        assert_eq!(
            regrow::engine::load_with(&path, &LoadOptions::default()).map(|_| ()).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
        let salvaged = regrow::salvage(&path, &LoadOptions::default()).unwrap();
        let lost: Vec<String> =
            salvaged.lost.iter().map(|error| error.place().leaf.as_ref().unwrap().to_string()).collect();
        assert_eq!(lost, is_lost, "{:?}", salvaged.lost);
        assert!(!salvaged.is_whole());
        for (path, leaf) in salvaged.tree.iter() {
            let byte = names.iter().position(|name| *name == path.to_string()).unwrap() as u8 + 1;
            let is_whole =
                leaf.as_array().is_none_or(|array| array.to_c_order().unwrap().iter().all(|it| *it == byte));
            assert!(is_whole && leaf.as_array().is_none() == lost.contains(&path.to_string()), "{path}");
        }
    }
}

/// One damage keeps the checkpoint from being opened, and hides no other one.
#[test]
fn losses_besides_leaves_are_listed() {
    let root = memory_folder().unwrap();
    let path = root.path().join("ckpt");
    copy_folder(&fixtures().join("orbax/manager_composite/ckpt"), &path).unwrap();
    for file in ["_CHECKPOINT_METADATA", "metrics/metrics"] {
        put(&path.join("ckpt_000300").join(file), b"{");
    }
    let salvaged = regrow::salvage(&path, &LoadOptions::default()).unwrap();
    let told = |text: &str| salvaged.damage.iter().any(|error| error.to_string().contains(text));
    assert!(told("_CHECKPOINT_METADATA") && told("metrics"), "{:?}", salvaged.damage);

    let path = root.path().join("sharded");
    let sharded =
        regrow::engine::Layout::from_name("safetensors", serde_json::json!({"max_shard_bytes": 64})).unwrap();
    regrow::save_with(&path, &small_tree(), &crate::common::damage::options(&sharded)).unwrap();
    let shards: Vec<PathBuf> = files(&path)
        .into_keys()
        .filter(|file| file.extension().is_some_and(|it| it == "safetensors"))
        .collect();
    assert!(shards.len() > 1);
    for (at, shard) in shards.iter().enumerate() {
        let bytes = fs::read(shard).unwrap();
        fs::remove_file(shard).unwrap();
        let salvaged = regrow::salvage(&path, &LoadOptions::default()).unwrap();
        // The first has the pytree.
        assert!(salvaged.is_bare == (at == 0) && !salvaged.lost.is_empty(), "{shard:?}");
        fs::write(shard, bytes).unwrap();
    }
}
