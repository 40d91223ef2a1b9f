//! Tests with files of PyTorch: `fixtures/torch/README.md`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use regrow::{Checkpoint, OpenOptions, RegionOptions};
use regrow_base::bytes::checksum::Crc32;
use regrow_base::error::ErrorKind;
use regrow_layouts::ReaderExt;
use regrow_store::reads::{MappedPlace, Source};
use regrow_tree::array::Region;
use regrow_tree::tree::{Key, KeyPath, LeafKind, NodeKind};

fn fixture(name: &str) -> PathBuf {
    regrow_testkit::fixtures().join("torch").join(name)
}

fn open(path: &Path) -> Checkpoint {
    let opened = regrow::open_with(path, &OpenOptions { mapped: true, ..OpenOptions::default() }).unwrap();
    assert_eq!(opened.description().layout, "torch");
    opened
}

/// The nodes of a tree, in the form of `expected.json`.
fn rows(checkpoint: &Checkpoint) -> Vec<Value> {
    let mut leaf = 0;
    let row = |(path, node): (KeyPath, &regrow_tree::tree::Node)| {
        if node.kind != NodeKind::Leaf {
            return json!({"path": plain_path(&path), "kind": node.kind.name()});
        }
        leaf += 1;
        leaf_row(checkpoint, leaf - 1, &path)
    };
    checkpoint.tree().walk().map(row).collect()
}

fn plain_path(path: &KeyPath) -> Value {
    let key = |key: &Key| match key {
        Key::Index(index) => json!({"index": index}),
        Key::DictInt(number) => json!({"int": number}),
        other => json!(other.text()),
    };
    path.keys().iter().map(key).collect()
}

fn leaf_row(checkpoint: &Checkpoint, leaf: usize, path: &KeyPath) -> Value {
    let info = checkpoint.info(leaf).unwrap();
    let (kind, path) = (info.kind.name(), plain_path(path));
    match info.kind {
        LeafKind::Str => {
            json!({"path": path, "kind": kind, "text": *checkpoint.reader().read_text(leaf).unwrap()})
        }
        LeafKind::Unknown(_) | LeafKind::Placeholder => json!({"path": path, "kind": kind}),
        _ => {
            let read = checkpoint.read(leaf).unwrap();
            let bytes = read.as_array().unwrap().to_c_order().unwrap();
            // Read the same leaf by regions, one row at a time.
            let mut by_rows = Vec::new();
            let (dims, size) = (info.shape.dims(), info.dtype.size_bytes());
            let first = dims.first().copied().unwrap_or(1);
            for at in 0..first {
                let (mut starts, mut lens) = (vec![0; dims.len()], dims.to_vec());
                if let (Some(start), Some(len)) = (starts.first_mut(), lens.first_mut()) {
                    (*start, *len) = (at, 1);
                }
                let region = Region::new(starts, lens).unwrap();
                let mut row = vec![0xee; region.len_elements() as usize * size];
                checkpoint.reader().read_region(leaf, &region, &mut row).unwrap();
                by_rows.extend(row);
            }
            assert_eq!(by_rows, bytes, "{path}");
            json!({
                "path": path, "kind": kind, "dtype": info.dtype.name(), "shape": dims,
                "crc32": Crc32::of(&bytes), "len": bytes.len(),
            })
        }
    }
}

#[test]
fn every_object_comes_back() {
    let expected = regrow_testkit::expected("torch");
    for (name, expected) in expected.as_object().unwrap() {
        let found = rows(&open(&fixture(name)));
        for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(found.len(), expected.as_array().unwrap().len(), "{name}");
    }
    assert!(!Path::new("harm-was-done").exists());
}

#[test]
fn folders_of_pieces_come_back() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixture("expected_dcp.json")).unwrap()).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let checkpoint = open(&fixture(name));
        let mut found = rows(&checkpoint);
        let mut expected = expected.as_array().unwrap().clone();
        // The order of the leaves depends on the planner that wrote the checkpoint. Compare without
        // the order.
        let by_path = |row: &Value| row["path"].to_string();
        found.sort_by_key(by_path);
        expected.sort_by_key(by_path);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(found.len(), expected.len(), "{name}");
        assert!(checkpoint.verify().unwrap().is_ok());
    }
    let checkpoint = open(&fixture("dcp_sharded"));
    assert!(
        checkpoint.description().variant.starts_with("dcp, 10 pieces in 4 files"),
        "{:?}",
        checkpoint.description()
    );
    let leaf = checkpoint.find("model/w").unwrap();
    // A region across all four pieces, and a region within one piece.
    for (starts, lens, first) in [([2, 2], [2, 2], 14.0_f32), ([3, 4], [2, 1], 22.0)] {
        let region = checkpoint.region(leaf, &Region::new(starts, lens).unwrap()).unwrap();
        assert_eq!(region.to_c_order().unwrap()[..4], first.to_le_bytes());
    }
    // The record of objects has the key paths of the whole tree, not of each object's own pickle.
    let objects = open(&fixture("dcp_objects")).description().objects.clone().unwrap();
    let objects: Value = serde_json::from_str(&objects).unwrap();
    assert_eq!(
        objects["at"],
        json!({
            "/things/seen": {"is": "set"}, "/things/at/0/shape": {"is": "size"},
            "/things/dtype": {"is": "dtype"}, "/big": {"is": "int"},
        })
    );
    let whole = checkpoint.reader().source(checkpoint.find("optimizer/state/w/exp_avg").unwrap()).unwrap();
    assert!(matches!(whole, Source::Raw(_)), "{whole:?}");
}

#[test]
fn damage_to_pieces_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = |name: &str, file: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = folder.path().join(name);
        regrow_testkit::copy_folder(&fixture("dcp_sharded"), &path).unwrap();
        let file = path.join(file);
        let mut bytes = std::fs::read(&file).unwrap();
        change(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        path
    };
    let whole = std::fs::read(fixture("dcp_sharded/__3_0.distcp")).unwrap();
    let number = 21.0_f32.to_le_bytes();
    let at = whole.windows(4).position(|window| window == number).unwrap();
    let path = damaged("flipped", "__3_0.distcp", &|bytes| bytes[at] ^= 1);
    let checkpoint = open(&path);
    let error = checkpoint.read(checkpoint.find("model/w").unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("CRC-32") && error.contains("__3_0.distcp") && error.contains("model/w"),
        "{error}"
    );
    assert_eq!(checkpoint.verify().unwrap().findings.len(), 1);
    let path = damaged("cut", "__3_0.distcp", &|bytes| bytes.truncate(bytes.len() - 1));
    let error = regrow::open(&path).unwrap_err().to_string();
    assert!(error.contains("__3_0.distcp") && error.contains("too short"), "{error}");
    let path = damaged("missing", "__3_0.distcp", &|_| {});
    std::fs::remove_file(path.join("__3_0.distcp")).unwrap();
    assert!(regrow::open(&path).unwrap_err().to_string().contains("__3_0.distcp"));
    // Put another tensor in the place of a piece.
    let first = std::fs::read(fixture("dcp_sharded/__0_0.distcp")).unwrap();
    let path = damaged("swapped", "__3_0.distcp", &|bytes| bytes[..first.len()].copy_from_slice(&first));
    let checkpoint = open(&path);
    let error = checkpoint.read(checkpoint.find("model/w").unwrap()).unwrap_err().to_string();
    assert!(error.contains("differs from the index"), "{error}");
}

#[test]
fn contiguous_tensors_are_slices_of_the_map() {
    // Storages of the legacy form are not aligned. A tensor at an unaligned offset has no view.
    let raw = |name: &str| -> Vec<String> {
        let checkpoint = open(&fixture(name));
        let is_raw = |&leaf: &usize| match checkpoint.reader().source(leaf).unwrap() {
            Source::Raw(extent) => {
                let size = checkpoint.info(leaf).unwrap().dtype.size_bytes() as u64;
                assert_eq!(extent.view().unwrap().is_some(), extent.offset_bytes % size == 0);
                true
            }
            _ => false,
        };
        (0..checkpoint.tree().len()).filter(is_raw).map(|leaf| checkpoint.paths()[leaf].to_string()).collect()
    };
    let expected = [
        "whole",
        "row",
        "number",
        "tied/0",
        "tied/1",
        "tied/2/again",
        "parameter",
        "frozen",
        "buffer",
        "storage",
        "bytes",
    ];
    assert_eq!(raw("views.pt"), expected);
    assert_eq!(raw("legacy_views.pt"), expected);
    assert_eq!(raw("big_endian.pt"), ["b"]);
    let checkpoint = open(&fixture("views.pt"));
    let notes = checkpoint.description().notes.join("\n");
    assert!(notes.contains("tied/0 = tied/1 = tied/2/again"), "{notes}");
    assert!(notes.contains("whole = transposed = slice"), "{notes}");
    assert_eq!(checkpoint.info(1).unwrap().coding.as_ref(), "raw, strided");
    assert!(checkpoint.verify().unwrap().is_ok());
}

#[test]
fn leaves_lie_in_private_maps_also_with_gaps_and_in_other_orders() {
    type Mapped = (Checkpoint, usize, HashMap<String, MappedPlace>);
    let places = |path: &Path, unverified: bool| -> regrow_base::error::Result<Mapped> {
        let checkpoint = open(path);
        let leaves: Vec<usize> = (0..checkpoint.tree().len()).collect();
        let options = RegionOptions { unverified, ..RegionOptions::default() };
        let maps = checkpoint.map_private(&leaves, &options)?;
        let place = |(leaf, place): (usize, &Option<MappedPlace>)| {
            place.map(|place| (checkpoint.paths()[leaf].to_string(), place))
        };
        let places: HashMap<String, MappedPlace> = maps.places.iter().enumerate().filter_map(place).collect();
        Ok((checkpoint, maps.files.len(), places))
    };
    let (checkpoint, files, found) = places(&fixture("views.pt"), false).unwrap();
    assert_eq!(files, 1);
    for (path, place) in &found {
        let leaf = checkpoint.find(path).unwrap();
        if let Source::Raw(extent) = checkpoint.reader().source(leaf).unwrap() {
            assert_eq!((place.offset_bytes, place.len_bytes), (extent.offset_bytes, extent.len_bytes));
        }
    }
    assert_eq!(found["whole"], found["transposed"]);
    assert!(found["slice"].len_bytes < found["whole"].len_bytes);
    // `places` omits tensors in the other byte order.
    assert_eq!(places(&fixture("big_endian.pt"), false).unwrap().2.into_keys().collect::<Vec<_>>(), ["b"]);
    // `places` omits tensors in several pieces, and tensors at unaligned offsets.
    let (checkpoint, _, found) = places(&fixture("dcp_sharded"), false).unwrap();
    for (leaf, path) in checkpoint.paths().iter().enumerate() {
        let is_shown = match checkpoint.reader().source(leaf).unwrap() {
            Source::Raw(extent) => extent.len_bytes > 0 && extent.view().unwrap().is_some(),
            _ => false,
        };
        assert_eq!(found.contains_key(&path.to_string()), is_shown, "{path}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    let mut bytes = std::fs::read(fixture("views.pt")).unwrap();
    let at = places(&fixture("views.pt"), false).unwrap().2["transposed"].offset_bytes as usize;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = places(&path, false).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.place().leaf.is_some(), "{error}");
    assert!(places(&path, true).is_ok());
}

#[test]
fn what_is_refused_is_named_and_the_rest_is_read() {
    let checkpoint = open(&fixture("refused.pt"));
    let unknown = |path: &str| match &checkpoint.info(checkpoint.find(path).unwrap()).unwrap().kind {
        LeafKind::Unknown(name) => name.to_string(),
        kind => panic!("{path} is {}", kind.name()),
    };
    for (path, name) in [
        ("args", "argparse.Namespace"),
        ("own", "__main__.Own"),
        ("harm/1", "posix.system"),
        ("path", "pathlib.PurePosixPath"),
        ("sparse", "torch._utils._rebuild_sparse_tensor"),
        ("quantized", "torch._utils._rebuild_qtensor"),
        ("nested", "torch._utils._rebuild_nested_tensor"),
        ("conj", "torch.Tensor"),
        ("keys", "dict"),
        ("objects", "numpy._core.multiarray._reconstruct"),
    ] {
        assert_eq!(unknown(path), name);
        let error = checkpoint.read(checkpoint.find(path).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let place = error.place();
        assert_eq!(place.leaf.as_ref().unwrap().to_string(), path);
        assert!(place.offset_bytes.is_some() && place.file.is_some(), "{error}");
    }
    let harm = checkpoint.read(checkpoint.find("harm/1").unwrap()).unwrap_err().to_string();
    assert!(harm.contains("posix.system") && harm.contains("args, own, path"), "{harm}");
    let at =
        harm.split("at byte ").nth(1).unwrap().split_whitespace().next().unwrap().parse::<usize>().unwrap();
    let file = std::fs::read(fixture("refused.pt")).unwrap();
    assert!(file[at..].starts_with(b"cposix\nsystem\n"), "{harm}");
    let notes = checkpoint.description().notes.join("\n");
    assert!(
        notes.contains("11 leaves are not read") && notes.contains("args (argparse.Namespace, byte "),
        "{notes}"
    );
    // The file is not damaged, but the report of `verify` notes the refused leaves.
    let report = checkpoint.verify().unwrap();
    assert!(report.is_ok(), "{:?}", report.findings);
    let notes = report.notes.join("\n");
    assert!(
        notes.contains(
            "11 leaves are refused, and not damaged: args (regrow does not read argparse.Namespace"
        ),
        "{notes}"
    );
    assert_eq!(checkpoint.read(checkpoint.find("w").unwrap()).unwrap().as_array().unwrap().len_bytes(), 8);
    assert!(!Path::new("harm-was-done").exists());
}

#[test]
fn what_cannot_be_read_at_all_says_why() {
    for (name, kind, what) in [
        ("bad_script.pt", ErrorKind::Unsupported, "TorchScript"),
        ("bad_deflated.pt", ErrorKind::Unsupported, "compressed"),
        ("bad_no_storage.pt", ErrorKind::Corrupt, "the storage \"0\" is not in the file"),
        ("bad_no_pickle.pt", ErrorKind::Unsupported, "no data.pkl"),
        ("bad_short_storage.pt", ErrorKind::Corrupt, "differs from its tensors"),
        ("bad_version.pt", ErrorKind::Unsupported, "\"99\\n\""),
        ("bad_order.pt", ErrorKind::Corrupt, "middle"),
        ("bad_loop.pt", ErrorKind::Limit, "nested deeper"),
        ("bad_bomb.pt", ErrorKind::Limit, "too often"),
        ("bad_tar.pt", ErrorKind::Unsupported, "tar archive"),
    ] {
        let error = regrow::open(fixture(name)).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(what), "{name}: {error}");
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}

#[test]
fn damage_to_data_is_found_where_there_are_checksums() {
    let folder = tempfile::tempdir().unwrap();
    for (name, is_noticed) in [("pytorch_model.bin", true), ("no_checksums.pt", false)] {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        let checkpoint = open(&fixture(name));
        let Source::Raw(extent) = checkpoint.reader().source(0).unwrap() else { panic!("{name}") };
        let at = extent.offset_bytes as usize;
        bytes[at] ^= 1;
        let path = folder.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(checkpoint.reader().standing().has_data_checksums, is_noticed);
        let found = open(&path).verify().unwrap().findings;
        assert_eq!(found.len(), usize::from(is_noticed), "{name}");
        if let [finding] = found.as_slice() {
            let text = finding.error.to_string();
            assert!(text.contains("CRC-32") && text.contains(&format!("at byte {at}")), "{text}");
            assert!(open(&path).read(0).is_err() && open(&path).read(1).is_ok());
        }
    }
}

#[test]
fn a_folder_of_them_is_listed_and_named() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["training.pt", "protocol5.pth", "bad_script.pt"] {
        std::fs::copy(fixture(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    regrow_testkit::copy_folder(&fixture("dcp_one"), &folder.path().join("step-10")).unwrap();
    let listed = regrow::engine::list(folder.path()).unwrap();
    let found: Vec<_> =
        listed.iter().map(|each| (each.name.as_str(), each.layout.as_str(), each.state.name())).collect();
    assert_eq!(
        found,
        [
            ("bad_script.pt", "", "damaged"),
            ("protocol5.pth", "torch", "committed"),
            ("step-10", "torch", "committed"),
            ("training.pt", "torch", "committed"),
        ]
    );
    let error = regrow::open(folder.path()).unwrap_err();
    assert!(error.help_text().unwrap().contains("\"training.pt\", \"step-10\""), "{error}");
}

#[test]
fn nothing_is_written() {
    let tree = Tree::single(Leaf::text("x"));
    let at = Location::local("x.pt");
    assert_eq!(Torch.check(&tree, &at, &SaveOptions::default()).unwrap_err().kind(), ErrorKind::Unsupported);
}
