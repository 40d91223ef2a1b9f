//! Statistics of all leaves: equal in every layout, from a sample, with damaged leaves, and for
//! leaves without numbers.

use std::fs;
use std::sync::Arc;

use crate::common::dict;
use regrow::array::{Array, Dtype, Shape, Stats};
use regrow::engine::LeafReading;
use regrow::tree::{Leaf, LeafKind, PathPattern};
use regrow::{ErrorKind, SaveOptions, StatisticsOptions, save, save_with, statistics, statistics_with};

fn array(dtype: Dtype, dims: &[u64], bytes: Vec<u8>) -> Leaf {
    Leaf::array(Array::new(dtype, Shape::new(dims).unwrap(), bytes.into()).unwrap())
}

fn floats(values: impl IntoIterator<Item = f32>) -> Leaf {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    array(Dtype::Float32, &[bytes.len() as u64 / 4], bytes)
}

#[test]
fn every_layout_has_the_same_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let tree = crate::common::tree(0);
    let expected = |leaf: &Leaf| {
        let array = leaf.as_array().unwrap();
        let mut stats = Stats::with_histogram(array.dtype());
        stats.update(&array.to_c_order().unwrap()).unwrap();
        stats
    };
    for (at, (layout, suffix)) in crate::common::layouts().into_iter().enumerate() {
        let path = folder.path().join(format!("{at}{suffix}"));
        let options = SaveOptions { layout, not_durable: true, ..SaveOptions::default() };
        save_with(&path, &tree, &options).unwrap();
        let report = statistics(&path).unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
        let opened = regrow::open(&path).unwrap();
        let mut read_bytes = 0;
        for (path, own) in opened.paths().iter().zip(&report.leaves) {
            let (_, leaf) = tree.iter().find(|(other, _)| other.to_string() == path.to_string()).unwrap();
            read_bytes += leaf.as_array().unwrap().len_bytes();
            let (found, said) = (own.stats.as_ref().unwrap(), expected(leaf));
            assert_eq!(own.reading, LeafReading::Whole, "{path}");
            assert_eq!((found.count(), found.zero_count()), (said.count(), said.zero_count()), "{path}");
            assert_eq!((found.min(), found.max()), (said.min(), said.max()), "{path}");
            assert_eq!(found.histogram(), said.histogram(), "{path}");
            let (norm, said) = (found.l2_norm().unwrap(), said.l2_norm().unwrap());
            assert!((norm - said).abs() <= 1e-9 * said, "{path}: {norm} {said}");
        }
        assert_eq!(report.read_bytes, read_bytes);
    }
}

#[test]
fn a_sample_is_spread_and_gives_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    save(&path, &dict([("long", floats((0..100_000).map(|i| i as f32))), ("short", floats([1.0; 10]))]))
        .unwrap();
    let options = StatisticsOptions { sample_bytes: Some(4000), ..StatisticsOptions::default() };
    let report = statistics_with(&path, &options).unwrap();
    let [long, short] = &report.leaves[..] else { panic!("{report:?}") };
    assert_eq!((long.reading, short.reading), (LeafReading::Sample, LeafReading::Whole));
    let stats = long.stats.as_ref().unwrap();
    // 16 blocks of 62 elements; the first and the last element are in them.
    assert_eq!(stats.count(), 992);
    assert_eq!((stats.min(), stats.histogram().unwrap().counts().iter().sum::<u64>()), (Some(0.0), 992));
    assert!((stats.mean().unwrap() - 50_000.0).abs() < 100.0, "{stats:?}");
    assert_eq!(report.read_bytes, 992 * 4 + 40);
    // Every length of a sample, up to all of it.
    for sample_bytes in [0, 1, 4, 40, 63, 64, 68, 399_992, 399_996, 400_000, u64::MAX] {
        let options = StatisticsOptions { sample_bytes: Some(sample_bytes), ..StatisticsOptions::default() };
        let report = statistics_with(&path, &options).unwrap();
        let count = report.leaves[0].stats.as_ref().unwrap().count();
        let wanted = (sample_bytes / 4).clamp(1, 100_000);
        assert!(count <= wanted && count >= wanted - wanted.min(15), "{sample_bytes}: {count}");
    }
}

#[test]
fn patterns_select_leaves_and_histograms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let leaves =
        [("a", floats([1.0; 5])), ("b", floats([2.0; 9])), ("c", floats([3.0; 9])), ("d", floats([]))];
    save(&path, &dict(leaves)).unwrap();
    let report = statistics_with(
        &path,
        &StatisticsOptions { only: vec![PathPattern::new("[ad]").unwrap()], ..StatisticsOptions::default() },
    )
    .unwrap();
    let counts: Vec<Option<u64>> =
        report.leaves.iter().map(|leaf| leaf.stats.as_ref().map(|stats| stats.count())).collect();
    assert_eq!(counts, [Some(5), None, None, Some(0)]);
    let histograms = |most| {
        let options = StatisticsOptions { histogram_leaves_max: Some(most), ..StatisticsOptions::default() };
        let report = statistics_with(&path, &options).unwrap();
        let has = |stats: &Stats| stats.histogram().is_some();
        report.leaves.iter().map(|leaf| leaf.stats.as_deref().is_some_and(has)).collect::<Vec<_>>()
    };
    assert_eq!(histograms(2), [false, true, true, false]);
    // Of two that are as long as each other, both or none.
    assert_eq!(histograms(1), [false; 4]);
    assert_eq!(histograms(0), [false; 4]);
    assert_eq!(histograms(4), [true; 4]);
    let options =
        StatisticsOptions { only: vec![PathPattern::new("x").unwrap()], ..StatisticsOptions::default() };
    assert_eq!(statistics_with(&path, &options).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn leaves_without_numbers_have_no_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let of_kind = |kind, leaf: Leaf| Leaf { kind, ..leaf };
    let tree = dict([
        ("bytes", of_kind(LeafKind::Bytes, array(Dtype::UInt8, &[3], vec![1, 2, 3]))),
        (
            "key",
            of_kind(
                LeafKind::PrngKey(Some(Arc::from("threefry2x32"))),
                array(Dtype::UInt32, &[2], vec![9; 8]),
            ),
        ),
        ("text", Leaf::text("abc")),
    ]);
    save(&path, &tree).unwrap();
    let report = statistics(&path).unwrap();
    assert!(report.leaves.iter().all(|leaf| leaf.stats.is_none() && leaf.reading == LeafReading::Whole));
    let empty = folder.path().join("empty");
    save(&empty, &dict::<&str>([])).unwrap();
    assert_eq!(statistics(&empty).unwrap().leaves, []);
}

#[test]
fn damage_is_a_finding_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let long = || floats((0..300_000).map(|i| i as f32));
    save(&path, &dict([("a", floats([1.0; 1000])), ("b", long()), ("c", floats([2.0; 1000]))])).unwrap();
    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let report = statistics(&path).unwrap();
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    let place = finding.error.place();
    assert_eq!((finding.error.kind(), place.file.as_deref()), (ErrorKind::Corrupt, Some(&*file)));
    assert_eq!(place.leaf.as_ref().unwrap().to_string(), "b");
    let offset = place.offset_bytes.unwrap();
    assert!((offset..offset + (1 << 20)).contains(&(at as u64)), "{offset}");
    let readings: Vec<LeafReading> = report.leaves.iter().map(|leaf| leaf.reading).collect();
    assert_eq!(readings, [LeafReading::Whole, LeafReading::Failed, LeafReading::Whole]);
    assert!(report.leaves[1].stats.is_none() && report.leaves[2].stats.is_some());
}
