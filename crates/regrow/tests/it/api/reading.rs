//! Reads of the default layout, with and without the page cache, and into memory of the caller. A
//! read takes only the requested bytes, and checks them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use regrow::array::{Array, Dtype, Region, Shape};
use regrow::engine::TemplateLeaf;
use regrow::tree::{Key, Leaf, LeafData, NodeKind, PathPattern, Tree, TreeBuilder};
use regrow::{Checkpoint, ErrorKind, LoadOptions};
use regrow_store::DirectWriter;

const BLOCK: u64 = DirectWriter::BLOCK_LEN_BYTES;

fn bytes_of(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8 ^ seed).collect()
}

fn leaf(dtype: Dtype, dims: &[u64], seed: u8) -> Leaf {
    let shape = Shape::new(dims).unwrap();
    let len = shape.len_bytes(dtype).unwrap();
    Leaf::array(Array::new(dtype, shape, bytes_of(len, seed).into()).unwrap())
}

fn dict<T>(leaves: Vec<(&str, T)>) -> Tree<T> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for (key, leaf) in leaves {
        build.leaf(Key::dict(key), leaf).unwrap();
    }
    build.close().unwrap();
    build.finish().unwrap()
}

fn c_order(leaf: &Leaf) -> Vec<u8> {
    leaf.as_array().unwrap().to_c_order().unwrap().to_vec()
}

/// Large and small leaves, one without elements, odd lengths: blocks that one leaf has alone, and
/// that many share.
fn mixture() -> Tree<Leaf> {
    let names: Vec<String> = (0..60).map(|i| format!("small_{i:02}")).collect();
    let mut leaves: Vec<(&str, Leaf)> = names
        .iter()
        .zip(0..)
        .map(|(name, i)| (name.as_str(), leaf(Dtype::Int16, &[u64::from(i) * 7], i)))
        .collect();
    leaves.push(("a_large", leaf(Dtype::Float32, &[1000, 1531], 3)));
    leaves.push(("odd", leaf(Dtype::UInt8, &[40 * BLOCK + 12_345], 4)));
    leaves.push(("z_large", leaf(Dtype::Float64, &[700, 1000], 5)));
    leaves.sort_by_key(|leaf| leaf.0);
    dict(leaves)
}

fn saved(tree: &Tree<Leaf>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, tree).unwrap();
    (folder, path)
}

/// Drops the page cache of all files of a checkpoint, as far as the file system has one.
fn make_cold(path: &Path) {
    for entry in std::fs::read_dir(path).unwrap() {
        let file = entry.unwrap().path();
        if file.is_file() {
            let file = File::open(file).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

fn flip(path: &Path, at: u64) {
    let mut file = File::options().read(true).write(true).open(path.join("model.safetensors")).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 4]).unwrap();
}

/// Where the data of the only leaf begins.
fn data_offset(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path.join("regrow.json")).unwrap();
    let from = text.find("\"data_offset\":").unwrap() + "\"data_offset\":".len();
    text[from..].split(',').next().unwrap().parse().unwrap()
}

/// Bytes that this thread has had read from disk.
fn read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().parse().unwrap()
}

fn rows(start: u64, len: u64) -> Region {
    Region::new([start], [len]).unwrap()
}

fn template(tree: &Tree<Leaf>) -> Tree<TemplateLeaf> {
    let want = |leaf: &Leaf| {
        let array = leaf.as_array().unwrap();
        TemplateLeaf { dtype: Some(array.dtype()), shape: Some(array.shape().clone()), skip: false }
    };
    tree.with_leaves(tree.leaves().iter().map(want).collect()).unwrap()
}

fn load_into(checkpoint: &Checkpoint, tree: &Tree<Leaf>, unverified: bool) -> regrow::Result<Vec<Vec<u8>>> {
    let mut outs: Vec<Vec<u8>> =
        tree.leaves().iter().map(|leaf| vec![0; leaf.as_array().unwrap().len_bytes() as usize]).collect();
    let options = LoadOptions { template: Some(template(tree)), unverified, ..LoadOptions::default() };
    let places = outs.iter_mut().map(|out| Some(out.as_mut_slice())).collect();
    let loaded = checkpoint.load_into_memory(&options, places)?;
    assert!(loaded.leaves().iter().all(|leaf| matches!(leaf.data, LeafData::Absent)));
    Ok(outs)
}

#[test]
fn warm_and_cold_reads_are_the_same() {
    let tree = mixture();
    let (_folder, path) = saved(&tree);
    for cold in [true, false] {
        for way in 0..4 {
            if cold {
                make_cold(&path);
            }
            let checkpoint = regrow::open(&path).unwrap();
            match way {
                0 => {
                    let loaded = checkpoint.load(&LoadOptions::default()).unwrap();
                    for (want, found) in tree.leaves().iter().zip(loaded.leaves()) {
                        assert!(c_order(want) == c_order(found));
                    }
                }
                1 | 2 => {
                    let found = load_into(&checkpoint, &tree, way == 2).unwrap();
                    for (want, found) in tree.leaves().iter().zip(found) {
                        assert!(c_order(want) == found);
                    }
                }
                _ => assert!(checkpoint.verify().unwrap().is_ok()),
            }
        }
    }
}

#[test]
fn memory_file_systems_are_read_as_well() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let (tree, path) = (mixture(), folder.path().join("step"));
    regrow::save(&path, &tree).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let found = load_into(&checkpoint, &tree, false).unwrap();
    assert!(tree.leaves().iter().map(c_order).eq(found));
    assert!(regrow::verify(&path).unwrap().is_ok());
}

/// A slice touches the blocks that its runs lie in: damage in the block before, after or between is
/// not seen.
#[test]
fn a_slice_beside_damage_is_read_and_a_slice_in_it_is_not() {
    let whole = leaf(Dtype::UInt8, &[20 * BLOCK + 5], 1);
    let (_folder, path) = saved(&Tree::single(whole.clone()));
    let expected = c_order(&whole);
    let offset = data_offset(&path);
    flip(&path, offset + 5 * BLOCK);
    flip(&path, offset + 8 * BLOCK - 1);
    flip(&path, offset + 20 * BLOCK + 4);
    make_cold(&path);
    let checkpoint = regrow::open(&path).unwrap();
    for (start, len) in
        [(0, 5 * BLOCK), (4 * BLOCK + 7, BLOCK - 7), (6 * BLOCK, BLOCK), (8 * BLOCK, 12 * BLOCK), (3, 1)]
    {
        let found = checkpoint.region(0, &rows(start, len)).unwrap().to_c_order().unwrap();
        assert!(found == expected[start as usize..(start + len) as usize], "{start} {len}");
    }
    for (start, at) in [(4 * BLOCK + 7, 5), (5 * BLOCK + 1, 5), (7 * BLOCK, 7), (20 * BLOCK, 20)] {
        let len = BLOCK.min(20 * BLOCK + 5 - start);
        let error = checkpoint.region(0, &rows(start, len)).unwrap_err();
        assert_eq!(
            (error.kind(), error.place().offset_bytes),
            (ErrorKind::Corrupt, Some(offset + at * BLOCK))
        );
    }
    // Rows that jump over the damaged blocks: a column of every row, of rows of four blocks.
    let matrix = leaf(Dtype::UInt8, &[16, 4 * BLOCK], 2);
    let (_folder, path) = saved(&Tree::single(matrix.clone()));
    let offset = data_offset(&path);
    for row in 0..16 {
        flip(&path, offset + (4 * row + 2) * BLOCK + 9);
    }
    let checkpoint = regrow::open(&path).unwrap();
    let column = Region::new([0, 10], [16, 3]).unwrap();
    let mut expected = vec![0; 48];
    matrix.as_array().unwrap().copy_region_c_order(&column, &mut expected).unwrap();
    assert_eq!(checkpoint.region(0, &column).unwrap().to_c_order().unwrap(), expected);
    let damaged = Region::new([0, 2 * BLOCK], [16, 3]).unwrap();
    assert_eq!(checkpoint.region(0, &damaged).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_cold_slice_reads_at_most_twice_its_bytes() {
    // The system's folder for temporary files may be in memory, where nothing is read from disk.
    let tree = Tree::single(leaf(Dtype::UInt8, &[24 << 20], 1));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("step");
    regrow::save(&path, &tree).unwrap();
    let checkpoint = regrow::open(&path).unwrap();
    let asked = 64 << 10;
    for start in [10 << 20, (3 << 20) + 777, (24 << 20) - asked] {
        make_cold(&path);
        let before = read_bytes();
        checkpoint.region(0, &rows(start, asked)).unwrap();
        let read = read_bytes() - before;
        assert!(read <= 2 * asked, "{read} bytes for {asked}");
    }
}

#[test]
fn each_read_checks_its_bytes() {
    let (_folder, path) = saved(&Tree::single(leaf(Dtype::UInt8, &[4 * BLOCK], 1)));
    let checkpoint = regrow::open(&path).unwrap();
    let loaded = checkpoint.load(&LoadOptions::default()).unwrap();
    let mut out = vec![0; 4 * BLOCK as usize];
    let options =
        LoadOptions { template: Some(Tree::single(TemplateLeaf::default())), ..LoadOptions::default() };
    checkpoint.load_into_memory(&options, vec![Some(&mut out)]).unwrap();
    assert!(checkpoint.verify().unwrap().is_ok());
    drop(loaded);
    let at = data_offset(&path) + BLOCK - 1;
    flip(&path, at);
    assert!(checkpoint.region(0, &rows(0, 10)).is_err());
    assert!(checkpoint.load_into_memory(&options, vec![Some(&mut out)]).is_err());
    assert!(!checkpoint.verify().unwrap().is_ok());
    assert!(checkpoint.load(&LoadOptions::default()).is_err());
    assert!(checkpoint.region(0, &rows(BLOCK, 10)).is_ok());
    flip(&path, at);
    assert!(checkpoint.verify().unwrap().is_ok());
    assert!(checkpoint.load(&LoadOptions::default()).is_ok());
}

#[test]
fn damage_stops_a_load_into_memory_and_names_the_leaf() {
    let tree = mixture();
    let (_folder, path) = saved(&tree);
    let first = data_offset(&path);
    let len = std::fs::metadata(path.join("model.safetensors")).unwrap().len();
    for at in (first..len).step_by(((len - first) / 19) as usize) {
        flip(&path, at);
        for cold in [true, false] {
            if cold {
                make_cold(&path);
            }
            let error = load_into(&regrow::open(&path).unwrap(), &tree, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let block = first + (at - first) / BLOCK * BLOCK;
            assert_eq!(error.place().offset_bytes, Some(block));
            assert!(error.place().leaf.is_some(), "{error}");
            let report = regrow::verify(&path).unwrap();
            assert!(report.findings.iter().all(|found| found.error.place().offset_bytes == Some(block)));
            assert!(!report.is_ok());
        }
        load_into(&regrow::open(&path).unwrap(), &tree, true).unwrap();
        flip(&path, at);
    }
    assert!(load_into(&regrow::open(&path).unwrap(), &tree, false).is_ok());
}

#[test]
fn a_truncated_file_is_named_when_memory_is_filled() {
    let tree = mixture();
    let (_folder, path) = saved(&tree);
    let data = path.join("model.safetensors");
    let len = std::fs::metadata(&data).unwrap().len();
    let checkpoint = regrow::open(&path).unwrap();
    for len in [len - 1, len / 2, 10] {
        File::options().write(true).open(&data).unwrap().set_len(len).unwrap();
        for unverified in [false, true] {
            let error = load_into(&checkpoint, &tree, unverified).unwrap_err();
            assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&data)));
            assert!(load_into(&regrow::open(&path).unwrap(), &tree, unverified).is_err());
        }
    }
}

/// A map of a file that became shorter faults: the reader must detect that in another way.
#[test]
fn a_file_truncated_after_a_read_is_an_error_of_every_later_read() {
    let tree = mixture();
    let (_folder, path) = saved(&tree);
    let data = path.join("model.safetensors");
    let len = std::fs::metadata(&data).unwrap().len();
    let checkpoint = regrow::open(&path).unwrap();
    // Maps the file, opens it for reading, and leaves most blocks unchecked.
    checkpoint.region(1, &Region::new([0], [7]).unwrap()).unwrap();
    assert!(checkpoint.region(0, &Region::new([0, 0], [1, 1531]).unwrap()).is_ok());
    File::options().write(true).open(&data).unwrap().set_len(len / 3).unwrap();
    for unverified in [false, true] {
        let error = load_into(&checkpoint, &tree, unverified).unwrap_err();
        assert_eq!((error.kind(), error.place().file.as_ref()), (ErrorKind::Corrupt, Some(&data)));
        assert!(error.place().leaf.is_some());
    }
    assert!(!checkpoint.verify().unwrap().is_ok());
    assert_eq!(checkpoint.load(&LoadOptions::default()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let tree = dict(vec![("a", leaf(Dtype::Float32, &[10], 1)), ("b", leaf(Dtype::Float32, &[10], 2))]);
    let (_folder, path) = saved(&tree);
    let checkpoint = regrow::open(&path).unwrap();
    let options = |template| LoadOptions { template, ..LoadOptions::default() };
    let (mut right, mut short) = ([0; 40], [0; 39]);
    let error = checkpoint
        .load_into_memory(&options(Some(template(&tree))), vec![Some(&mut right), Some(&mut short)])
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.place().leaf.as_ref().unwrap().to_string()),
        (ErrorKind::Mismatch, "b".to_owned())
    );
    for (template, outs) in [(None, vec![]), (Some(template(&tree)), vec![None])] {
        let error = checkpoint.load_into_memory(&options(template), outs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    // A leaf without a place comes back as from a load.
    let loaded =
        checkpoint.load_into_memory(&options(Some(template(&tree))), vec![None, Some(&mut right)]).unwrap();
    assert_eq!(c_order(&loaded.leaves()[0]), c_order(&tree.leaves()[0]));
    assert_eq!(right.to_vec(), c_order(&tree.leaves()[1]));
}

#[test]
fn casts_and_compressed_leaves_go_into_memory_as_well() {
    let source = leaf(Dtype::Int8, &[300, 40_000], 1);
    let folder = tempfile::tempdir().unwrap();
    for compression in [None, Some(regrow::engine::Compression::Zstd(1))] {
        let path = folder.path().join(format!("step {compression:?}"));
        let options = regrow::SaveOptions { compression, ..regrow::SaveOptions::default() };
        regrow::save_with(&path, &Tree::single(source.clone()), &options).unwrap();
        let shape = source.as_array().unwrap().shape().clone();
        for dtype in [Dtype::Int8, Dtype::Int16] {
            let want = TemplateLeaf { dtype: Some(dtype), shape: Some(shape.clone()), skip: false };
            let options = LoadOptions {
                template: Some(Tree::single(want)),
                cast: vec![(PathPattern::new("**").unwrap(), dtype)],
                ..LoadOptions::default()
            };
            let mut out = vec![0; shape.len_bytes(dtype).unwrap() as usize];
            regrow::open(&path).unwrap().load_into_memory(&options, vec![Some(&mut out)]).unwrap();
            let expected: Vec<u8> = match dtype {
                Dtype::Int8 => c_order(&source),
                _ => c_order(&source).iter().flat_map(|&v| i16::from(v as i8).to_le_bytes()).collect(),
            };
            assert!(out == expected);
        }
    }
}

/// Any rest for the last block of a file, beside a piece that is full or nearly so: a short last
/// block was once put into a piece without space for it, and the cut never ended.
#[test]
fn files_end_anywhere_in_their_last_block() {
    for blocks in [126, 127, 128] {
        for rest in [1, BLOCK / 2, BLOCK - 5000, BLOCK - 1] {
            let tree = Tree::single(leaf(Dtype::UInt8, &[blocks * BLOCK + rest], 1));
            let (_folder, path) = saved(&tree);
            for cold in [true, false] {
                if cold {
                    make_cold(&path);
                }
                let checkpoint = regrow::open(&path).unwrap();
                assert!(tree.leaves().iter().map(c_order).eq(load_into(&checkpoint, &tree, false).unwrap()));
                assert!(checkpoint.verify().unwrap().is_ok());
                let loaded = checkpoint.load(&LoadOptions::default()).unwrap();
                assert!(c_order(&loaded.leaves()[0]) == c_order(&tree.leaves()[0]));
            }
        }
    }
}

/// Checkpoints of before had blocks of 1 MiB, and any length may be recorded.
#[test]
fn blocks_of_any_length_are_read() {
    let tree = mixture();
    let (_folder, path) = saved(&tree);
    let file = path.join("regrow.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let data = std::fs::read(path.join("model.safetensors")).unwrap();
    let data = &data[data_offset(&path) as usize..];
    for block in [1000, 4096, 1 << 20, (1 << 20) + 1, 1 << 30] {
        let sums: String = data
            .chunks(block)
            .map(|block| format!("{:08x}", regrow_base::bytes::checksum::crc32c(block)))
            .collect();
        let from = text.find("\"block_len_bytes\":").unwrap();
        let to = from + text[from..].find('}').unwrap();
        let new = format!("\"block_len_bytes\":{block},\"block_crc32c\":\"{sums}\"");
        let body = format!("{}{new}{}", &text[21..from], &text[to..]);
        let crc = regrow_base::bytes::checksum::crc32c(body.as_bytes());
        std::fs::write(&file, format!("{{\"crc32c\":\"{crc:08x}\",{body}")).unwrap();
        make_cold(&path);
        for _ in 0..2 {
            assert!(
                tree.leaves()
                    .iter()
                    .map(c_order)
                    .eq(load_into(&regrow::open(&path).unwrap(), &tree, false).unwrap())
            );
            assert!(regrow::verify(&path).unwrap().is_ok());
        }
        let at = data_offset(&path) + 3_000_000;
        flip(&path, at);
        assert!(load_into(&regrow::open(&path).unwrap(), &tree, false).is_err(), "{block}");
        assert_eq!(regrow::engine::load(&path).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(!regrow::verify(&path).unwrap().is_ok());
        flip(&path, at);
    }
}

#[test]
fn a_writable_file_is_checked_again_on_each_load() {
    use std::os::unix::fs::FileExt;

    use regrow::engine::{Layout, save_with};
    use regrow::{SaveOptions, open};

    for (layout, name, file) in [("pytree_data", "x", "x.data"), ("npy", "x.npz", "x.npz")] {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape::new(vec![500_u64, 1000]).unwrap();
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 251) as u8).collect();
        let tree = Tree::single(Leaf::array(Array::new(Dtype::Float32, shape, bytes.into()).unwrap()));
        let layout = Layout::from_name(layout, serde_json::Value::Null).unwrap();
        let options = SaveOptions { layout, ..SaveOptions::default() };
        save_with(folder.path().join(name), &tree, &options).unwrap();
        let checkpoint = open(folder.path().join(name)).unwrap();
        checkpoint.load(&LoadOptions::default()).unwrap();
        let file = std::fs::File::options().write(true).read(true).open(folder.path().join(file)).unwrap();
        let (mut byte, at) = ([0], file.metadata().unwrap().len() / 2);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let region = Region::new(vec![0, 0], vec![500, 1000]).unwrap();
        let error = checkpoint.region(0, &region).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
}
