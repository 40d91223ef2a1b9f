//! Repair without parity. A file comes back if other files contain the same data. A file with
//! checksums comes back from a replica or another step. A repair does not change files that nothing
//! proves, and reports them.

mod attacks;
mod replicas;
mod verdicts;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::cuts::{dict, rows, save_by};
use crate::common::damage::{checkpoints, contents, files, options, put, small_tree};
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Compression, Layout};
use regrow::location::Location;
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{LoadOptions, RepairOptions, RepairReport, SaveOptions, SealOptions};
use regrow_testkit::{copy_folder, fixtures, memory_folder};

fn repair(path: &Path) -> RepairReport {
    regrow::repair(path, &RepairOptions::default()).unwrap()
}

fn repair_from(path: &Path, from: &Path) -> RepairReport {
    let options = RepairOptions { from: Some(Location::local(from)), ..RepairOptions::default() };
    regrow::repair(path, &options).unwrap()
}

fn loaded(path: &Path) -> String {
    contents(&regrow::load(path).unwrap())
}

fn layout(name: &str, options: &str) -> Layout {
    Layout::from_name(name, serde_json::from_str(options).unwrap()).unwrap()
}

fn array(dtype: Dtype, dims: &[u64], step: u8) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at as u8 & 0x3f) ^ step).collect();
    Leaf::array(Array::new(dtype, shape, bytes.into()).unwrap())
}

/// Containers of several kinds, a text, numbers, a name that Orbax cannot say.
fn rich_tree() -> Tree<Leaf> {
    tree_with(array(Dtype::BFloat16, &[8, 4], 0))
}

fn tree_with(leaf: Leaf) -> Tree<Leaf> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    build.leaf(Key::dict("a.b"), array(Dtype::Int16, &[3, 5], 0)).unwrap();
    build.open(Key::dict("layers"), NodeKind::Tuple).unwrap();
    build.leaf(Key::Index(0), array(Dtype::Float32, &[64, 33], 1)).unwrap();
    build.leaf(Key::Index(1), leaf).unwrap();
    build.close().unwrap();
    build.leaf(Key::dict("name"), Leaf::text("regrown")).unwrap();
    build.leaf(Key::dict("step"), Leaf::scalar(Scalar::Int(7))).unwrap();
    build.close().unwrap();
    build.finish().unwrap()
}

/// Checkpoints of the default layout in each of its forms.
fn forms(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let plain = layout("regrow", "null");
    let cut = layout("regrow", r#"{"chunk_byte_size": 4096}"#);
    let mut forms = Vec::new();
    let mut save = |name: &'static str, options: SaveOptions| {
        let path = root.join(name);
        // An empty array is one that Orbax does not have.
        regrow::save_with(&path, &tree_with(array(Dtype::BFloat16, &[0, 4], 0)), &options).unwrap();
        forms.push((name, path));
    };
    let own = serde_json::json!({"epoch": 3});
    save("plain", SaveOptions { custom_metadata: Some(own), ..options(&plain) });
    let base = Some(Location::local(root.join("plain")));
    save("on_a_base", SaveOptions { base, ..options(&plain) });
    save("in_parts", options(&cut));
    let zstd = Some(Compression::Zstd(3));
    save("compressed", SaveOptions { compression: zstd, ..options(&plain) });
    let cut_of = |dims: &[u64]| array(Dtype::Float32, dims, 2).as_array().unwrap().clone();
    let held = |rank: usize| {
        let cut = rows(2).held_by(rank, 2);
        dict([("cut".to_owned(), cut), ("whole".to_owned(), cut_of(&[900]))])
    };
    for (name, compression) in [("two_processes", None), ("two_processes_compressed", zstd)] {
        let path = root.join(name);
        save_by(2, &path, &[held(0), held(1)], &SaveOptions { compression, ..options(&plain) }).unwrap();
        forms.push((name, path));
    }
    forms
}

/// Whether a file has array data: it says nothing that another one says too.
fn has_data(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name.ends_with(".safetensors") || name.ends_with(".zstd")
}

/// Whether the database of compressed leaves is lost with a file: only the database has the places
/// of their chunks.
fn is_only_one_to_know(form: &str, path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let is_record = name.starts_with("regrow.process_");
    let in_database = name == "manifest.ocdbt" || path.parent().unwrap().ends_with("d");
    has_data(path) || is_record || form == "compressed" && in_database
}

fn assert_sound(path: &Path, good: &str, what: &str) {
    let report = regrow::verify(path).unwrap();
    assert!(report.is_ok(), "{what}: {:?}", report.findings);
    assert_eq!(loaded(path), good, "{what}");
    let orbax = regrow::Checkpoint::open_by(path, |at| {
        use regrow_layouts::Format;
        regrow_layouts::orbax::Orbax.open(at, &regrow::OpenOptions::default())
    });
    assert!(orbax.is_ok(), "{what}: {orbax:?}");
}

#[test]
fn every_file_without_data_of_the_default_layout_comes_back() {
    let root = memory_folder().unwrap();
    for (form, path) in forms(root.path()) {
        let (before, good) = (files(&path), loaded(&path));
        let metadata = regrow::open(&path).unwrap().description().custom_metadata.clone();
        let lost: Vec<&PathBuf> = before.keys().filter(|file| !is_only_one_to_know(form, file)).collect();
        assert!(lost.len() >= 4, "{form}: {lost:?}");
        let restore = || {
            fs::remove_dir_all(&path).unwrap();
            for (file, bytes) in &before {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, bytes).unwrap();
            }
        };
        let record = path.join("regrow.json");
        for file in &lost {
            for also in [None, Some(&record)] {
                let what = format!("{form} {} {also:?}", file.display());
                restore();
                fs::remove_file(file).unwrap();
                if let Some(also) = also.filter(|also| also != file) {
                    fs::remove_file(also).unwrap();
                }
                let report = repair(&path);
                assert!(
                    report.is_sound() && !report.recovered.is_empty(),
                    "{what}: {report} {:?} {:?}",
                    report.findings,
                    report.lost
                );
                assert_sound(&path, &good, &what);
                // Orbax' tree has them, too.
                let are_gone = also.is_some() && file.ends_with("_METADATA");
                let now = regrow::open(&path).unwrap().description().custom_metadata.clone();
                assert!(
                    now == metadata
                        || are_gone && report.recovered.iter().any(|it| it.how.contains("is lost")),
                    "{what}"
                );
                let again = repair(&path);
                assert!(again.recovered.is_empty() && again.is_sound(), "{what}: {again}");
            }
            // A flipped bit is as good as a lost file.
            restore();
            let mut bytes = before[*file].clone();
            let at = bytes.len() / 2;
            bytes[at] ^= 4;
            put(file, &bytes);
            let report = repair(&path);
            assert!(report.is_sound(), "{form} {}: {report} {:?}", file.display(), report.findings);
            assert_sound(&path, &good, form);
        }
        // All of them but for what the tree is known from.
        restore();
        lost.iter().filter(|file| ***file != record).for_each(|file| fs::remove_file(file).unwrap());
        let check =
            regrow::repair(&path, &RepairOptions { check: true, ..RepairOptions::default() }).unwrap();
        assert!(!check.is_sound() && !check.recovered.is_empty(), "{form}: {check}");
        let report = repair(&path);
        assert!(report.is_sound(), "{form}: {report} {:?}", report.findings);
        assert_sound(&path, &good, form);
    }
}

/// The data file of a process has the pytree of its pieces, which is not that of the checkpoint.
#[test]
fn a_repair_makes_no_record_of_the_pieces_of_one_process() {
    let root = memory_folder().unwrap();
    for (form, path) in forms(root.path()).into_iter().filter(|(form, _)| form.starts_with("two_")) {
        let (before, good) = (files(&path), loaded(&path));
        for lost in ["regrow.process_0.json", "regrow.process_1.json"] {
            for name in [lost, "regrow.json"] {
                fs::remove_file(path.join(name)).unwrap();
            }
            let repaired = regrow::repair(&path, &RepairOptions::default());
            let is_right = || regrow::open(&path).is_ok() && loaded(&path) == good;
            assert!(!path.join("regrow.json").exists() || is_right(), "{form} {lost}: {repaired:?}");
            fs::remove_dir_all(&path).unwrap();
            for (file, bytes) in &before {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, bytes).unwrap();
            }
        }
    }
}

#[test]
fn leaves_that_only_the_lost_file_describes_are_named() {
    let root = memory_folder().unwrap();
    for (form, path) in forms(root.path()) {
        let before = files(&path);
        for file in before.keys().filter(|file| is_only_one_to_know(form, file)) {
            fs::remove_file(file).unwrap();
            let now = files(&path);
            let report = repair(&path);
            let what = format!("{form} {}: {report}", file.display());
            assert!(!report.is_sound(), "{what}");
            let has_leaf = report.findings.iter().any(|error| error.place().leaf.is_some());
            let has_file =
                report.findings.iter().chain(&report.lost).all(|error| error.place().file.is_some());
            assert!(
                has_file && (has_leaf || file.extension().unwrap() != "safetensors"),
                "{what} {:?}",
                report.findings
            );
            assert!(now.keys().all(|file| file.exists()), "{what}");
            fs::write(file, &before[file]).unwrap();
            assert!(regrow::verify(&path).unwrap().is_ok() || repair(&path).is_sound(), "{what}");
        }
    }
}

/// What Orbax itself wrote by two processes, and what regrow writes: the root record is lost with
/// its nodes.
#[test]
fn the_root_database_of_orbax_is_rebuilt_from_the_databases_of_processes() {
    let root = memory_folder().unwrap();
    let own = root.path().join("own");
    regrow::save_with(&own, &rich_tree(), &options(&layout("orbax", "null"))).unwrap();
    let v1 = root.path().join("v1");
    regrow::save_with(&v1, &rich_tree(), &options(&layout("orbax", r#"{"v1": true}"#))).unwrap();
    let mut all = vec![(own.clone(), own), (v1.clone(), v1.join("state"))];
    for fixture in
        ["mp2_ocdbt_zarr3", "mp2_ocdbt_zarr2", "sd_ocdbt_zarr2", "sd_ocdbt_zarr3_chunked", "v1_default"]
    {
        let path = root.path().join(fixture);
        copy_folder(&fixtures().join("orbax").join(fixture).join("ckpt"), &path).unwrap();
        let item = ["", "state", "pytree"].map(|item| path.join(item));
        let item = item.into_iter().find(|item| item.join("manifest.ocdbt").exists()).unwrap();
        all.push((path, item));
    }
    for (path, item) in all {
        let good = loaded(&path);
        for cut in [false, true] {
            let manifest = item.join("manifest.ocdbt");
            if cut {
                put(&manifest, &fs::read(&manifest).unwrap()[..20]);
            } else {
                fs::remove_file(&manifest).unwrap();
                let _ = fs::remove_dir_all(item.join("d"));
            }
            let report = repair(&path);
            assert!(
                report.is_sound() && !report.recovered.is_empty(),
                "{}: {report} {:?}",
                path.display(),
                report.findings
            );
            assert_eq!(loaded(&path), good, "{}", path.display());
            assert!(repair(&path).recovered.is_empty());
        }
    }
}

#[test]
fn a_lost_tree_is_guessed_from_names_or_taken_from_another_step() {
    let root = memory_folder().unwrap();
    for own in ["null", r#"{"ocdbt": false}"#, r#"{"ocdbt": false, "zarr3": true}"#] {
        let folder = tempfile::tempdir_in(root.path()).unwrap();
        let [path, other] = ["5", "6"].map(|name| folder.path().join(name));
        for (path, tree) in [(&path, small_tree()), (&other, small_tree())] {
            regrow::save_with(path, &tree, &options(&layout("orbax", own))).unwrap();
        }
        let good = loaded(&path);
        fs::remove_file(path.join("_METADATA")).unwrap();
        let report = repair_from(&path, &other);
        assert!(report.is_sound() && report.recovered.len() == 1, "{own}: {report} {:?}", report.findings);
        assert_eq!(loaded(&path), good, "{own}: from the other step it is all there");
        fs::remove_file(path.join("_METADATA")).unwrap();
        // One of other names says nothing of this tree.
        let stranger = folder.path().join("7");
        regrow::save_with(&stranger, &rich_tree(), &options(&layout("orbax", own))).unwrap();
        let report = repair_from(&path, &stranger);
        assert!(
            report.is_sound() && report.recovered[0].how.contains("rebuilt from the names"),
            "{own}: {:?}",
            report.recovered
        );
        let (now, then): (Tree<Leaf>, _) = (regrow::load(&path).unwrap(), small_tree());
        for ((path, now), (_, then)) in now.iter().zip(then.iter()) {
            let bytes = |leaf: &Leaf| leaf.as_array().unwrap().to_c_order().unwrap();
            assert_eq!(bytes(now), bytes(then), "{own}: {path}");
        }
    }
}

#[test]
fn a_lost_index_of_safetensors_files_is_made_of_their_headers() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    regrow::save_with(
        &path,
        &small_tree(),
        &options(&layout("safetensors", r#"{"max_shard_bytes": 50000}"#)),
    )
    .unwrap();
    let foreign = root.path().join("sharded");
    copy_folder(&fixtures().join("safetensors/sharded"), &foreign).unwrap();
    for path in [path, foreign] {
        let index = path.join("model.safetensors.index.json");
        let (good, before) = (loaded(&path), fs::read(&index).unwrap());
        for damage in [None, Some(&before[..before.len() / 2])] {
            fs::remove_file(&index).unwrap();
            if let Some(bytes) = damage {
                fs::write(&index, bytes).unwrap();
            }
            let report = repair(&path);
            assert!(report.is_sound() && report.recovered.len() == 1, "{report} {:?}", report.findings);
            assert_eq!(loaded(&path), good);
            let map = |bytes: &[u8]| {
                serde_json::from_slice::<serde_json::Value>(bytes).unwrap()["weight_map"].clone()
            };
            assert_eq!(map(&fs::read(&index).unwrap()), map(&before), "every tensor in its file");
        }
    }
}

/// The checkpoints that have checksums: the default layout of itself, all others by a seal.
fn summed(root: &Path) -> Vec<(String, PathBuf)> {
    let all = checkpoints(root);
    for (_, path) in &all {
        regrow::seal(path, &SealOptions::default()).unwrap();
    }
    all
}

fn is_seal(path: &Path) -> bool {
    path.file_name().unwrap().to_string_lossy().starts_with("regrow.seal.")
}

#[test]
fn files_with_checksums_come_back_from_a_replica() {
    let root = memory_folder().unwrap();
    for (name, path) in summed(root.path()) {
        let folder = path.parent().unwrap();
        let before = files(folder);
        let beside = root.path().join("replica").join(folder.file_name().unwrap());
        copy_folder(folder, &beside).unwrap();
        let from = beside.join(path.file_name().unwrap());
        let own: BTreeMap<_, _> = before.iter().filter(|(file, _)| !is_seal(file)).collect();
        for (at, (file, good)) in own.iter().enumerate() {
            match at % 4 {
                0 => fs::remove_file(file).unwrap(),
                1 => put(file, &good[..good.len() / 2]),
                2 => put(file, &[&good[..], b"more"].concat()),
                _ => put(file, &good.iter().map(|byte| !byte).collect::<Vec<_>>()),
            }
            // `regrow.json` is what the others are known by.
            let report = repair_from(&path, &from);
            assert!(
                report.is_sound(),
                "{name} {}: {report} {:?} {:?}",
                file.display(),
                report.lost,
                report.findings
            );
            assert!(files(folder) == before, "{name} {}: it is what it was", file.display());
        }
        // Damaged in both, at different places.
        let (largest, good) = own.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let replica = beside.join(largest.strip_prefix(folder).unwrap());
        let half = good.len() / 2;
        let mut bytes = good.to_vec();
        bytes[0] ^= 1;
        put(largest, &bytes);
        put(&replica, &good[..half.max(1)]);
        let report = repair_from(&path, &from);
        let is_one_block = good.len() < 40_000;
        assert!(report.is_sound() || is_one_block, "{name}: {report} {:?}", report.lost);
        if !report.is_sound() && report.recovered.is_empty() {
            assert!(fs::read(largest).unwrap() == bytes, "{name}: what cannot be healed stays as it is");
        }
    }
}

#[test]
fn leaves_that_are_the_same_come_from_another_step() {
    let root = memory_folder().unwrap();
    let tree = |step: u8| {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        // What is new in each step comes first, and is of another length: all else lies elsewhere.
        build.leaf(Key::dict("a_new"), array(Dtype::UInt8, &[u64::from(step) * 1000], step)).unwrap();
        build.leaf(Key::dict("frozen"), array(Dtype::Float32, &[90_000], 1)).unwrap();
        build.leaf(Key::dict("trained"), array(Dtype::Float32, &[90_000], step)).unwrap();
        build.close().unwrap();
        build.finish().unwrap()
    };
    let [path, other] = ["5", "6"].map(|step| root.path().join(step));
    regrow::save_with(&path, &tree(5), &options(&Layout::default())).unwrap();
    regrow::save_with(&other, &tree(6), &options(&Layout::default())).unwrap();
    let (before, good) = (files(&path), loaded(&path));
    let model = path.join("model.safetensors");
    let checkpoint = regrow::open(&path).unwrap();
    let span = |leaf: &str| {
        use regrow_layouts::ReaderExt;
        let leaf = checkpoint.find(leaf).unwrap();
        let extent = checkpoint.reader().span(leaf).unwrap().unwrap();
        extent.offset_bytes as usize..(extent.offset_bytes + extent.len_bytes) as usize
    };
    let damage = |range: std::ops::Range<usize>| {
        let mut bytes = before[&model].clone();
        let middle = (range.start + range.end) / 2;
        bytes[middle..middle + 100].fill(0xee);
        put(&model, &bytes);
        bytes
    };
    damage(span("frozen"));
    let report = repair_from(&path, &other);
    assert!(report.is_sound() && report.healed.len() == 1, "{report} {:?}", report.lost);
    assert!(files(&path) == before && loaded(&path) == good);
    let damaged = damage(span("trained"));
    let report = repair_from(&path, &other);
    assert!(!report.is_sound() && report.lost.len() == 1 && report.healed.is_empty(), "{report}");
    let finding = report.findings.iter().find_map(|error| error.place().leaf.clone());
    assert_eq!(finding.map(|leaf| leaf.to_string()).as_deref(), Some("trained"));
    assert!(
        fs::read(&model).unwrap() == damaged,
        "the bytes of another step are no better than damaged ones"
    );
}

#[test]
fn without_checksums_nothing_is_taken_from_anywhere() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()).into_iter().filter(|(name, _)| !name.starts_with("regrow "))
    {
        let folder = path.parent().unwrap();
        let beside = root.path().join("replica").join(folder.file_name().unwrap());
        copy_folder(folder, &beside).unwrap();
        let all = files(folder);
        let (largest, good) = all.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let mut bytes = good.clone();
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
        put(largest, &bytes);
        let report = repair_from(&path, &beside.join(path.file_name().unwrap()));
        assert!(report.healed.is_empty() && !report.notes.is_empty(), "{name}: {report}");
        // What others say, too, is made of these, and not of the replica.
        assert!(fs::read(largest).unwrap() == bytes || !report.recovered.is_empty(), "{name}");
    }
}

#[test]
fn repair_removes_temporary_files() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    regrow::save_with(&path, &small_tree(), &options(&Layout::default())).unwrap();
    let good = loaded(&path);
    let left = root.path().join("x.orbax-checkpoint-tmp-12");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("model.safetensors"), [0; 100]).unwrap();
    let report = repair(&path);
    assert!(left.exists() && report.is_sound() && report.notes.len() == 1, "its writer may live: {report}");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for at in [left.join("model.safetensors"), left.clone()] {
        fs::File::open(at).unwrap().set_modified(long_ago).unwrap();
    }
    let check = regrow::repair(&path, &RepairOptions { check: true, ..RepairOptions::default() }).unwrap();
    assert!(left.exists() && check.is_sound());
    let report = repair(&path);
    assert!(!left.exists() && report.is_sound() && report.notes.len() == 1, "{report}");
    assert_eq!(contents(&regrow::load_with(&path, &LoadOptions::default()).unwrap()), good);
}

/// More is lost than the parity can restore, and the other files repeat it all the same: the parity
/// is made from them again.
#[test]
fn files_beyond_the_parity_are_rebuilt_from_other_files() {
    let root = memory_folder().unwrap();
    let path = root.path().join("x");
    let parity = Some("1/64".parse().unwrap());
    regrow::save_with(&path, &rich_tree(), &SaveOptions { parity, ..options(&Layout::default()) }).unwrap();
    let good = loaded(&path);
    for name in ["_METADATA", "_sharding", "manifest.ocdbt", "_CHECKPOINT_METADATA"] {
        let _ = fs::remove_file(path.join(name));
    }
    fs::remove_dir_all(path.join("d")).unwrap();
    let report = repair(&path);
    assert!(
        report.is_sound() && report.recovered.len() >= 4,
        "{report} {:?} {:?}",
        report.lost,
        report.findings
    );
    assert_sound(&path, &good, "beyond");
    let again = repair(&path);
    assert!(again.to_string().contains("nothing to do"), "{again}");
    // And it is parity of what is there now.
    fs::write(path.join("commit_success.txt"), "").unwrap();
    assert!(repair(&path).healed.len() == 1 && regrow::verify(&path).unwrap().is_ok());
}

#[test]
fn a_sound_checkpoint_is_not_touched() {
    let root = memory_folder().unwrap();
    for (name, path) in checkpoints(root.path()) {
        let folder = path.parent().unwrap();
        let before = files(folder);
        let report = repair(&path);
        assert!(
            report.is_sound() && report.recovered.is_empty() && report.notes.is_empty(),
            "{name}: {report}"
        );
        assert!(report.to_string().contains("nothing to do"), "{name}: {report}");
        assert!(files(folder) == before, "{name}");
    }
    let nothing = root.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    fs::write(nothing.join("notes.txt"), "no checkpoint").unwrap();
    assert_eq!(
        regrow::repair(&nothing, &RepairOptions::default()).unwrap_err().kind(),
        regrow::ErrorKind::NotACheckpoint
    );
    let model = nothing.join("model.safetensors");
    fs::copy(fixtures().join("safetensors/every_dtype.safetensors"), model).unwrap();
    let before = files(&nothing);
    assert!(
        repair(&nothing).recovered.is_empty() && files(&nothing) == before,
        "safetensors of other programs are not ours"
    );
}
