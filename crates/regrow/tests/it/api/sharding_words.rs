//! Shardings in words: for each leaf, and in the overview.

use regrow::engine::overview;
use regrow::sharding::Sharding;
use regrow::tree::LeafInfo;

fn open(fixture: &str) -> regrow::Checkpoint {
    regrow::open(regrow_testkit::fixtures().join("orbax").join(fixture).join("ckpt")).unwrap()
}

fn leaf<'a>(checkpoint: &'a regrow::Checkpoint, name: &str) -> &'a LeafInfo {
    checkpoint.tree().leaves().iter().find(|leaf| &*leaf.name == name).unwrap()
}

#[test]
fn leaves_of_eight_devices_name_their_shard() {
    let expected = [
        ("big", "P('x', 'y') over x=4,y=2", [16, 48]),
        ("big_half", "P('y') over x=4,y=2", [20, 60]),
        ("big_rep", "P() over x=4,y=2", [32, 84]),
    ];
    for fixture in [
        "md8_ocdbt_zarr2",
        "md8_files_zarr2",
        "md8_ocdbt_zarr3",
        "mp2_ocdbt_zarr2",
        "md8_no_replica_parallel",
    ] {
        let checkpoint = open(fixture);
        for (name, words, shard) in expected {
            let leaf = leaf(&checkpoint, name);
            assert_eq!(leaf.sharding.as_ref().unwrap().to_string(), words, "{fixture} {name}");
            assert_eq!(leaf.shard_shape().unwrap().dims(), shard, "{fixture} {name}");
        }
        // Where each part was written by one device alone, what was written is the part.
        let sharded = leaf(&checkpoint, "big");
        assert_eq!(sharded.write_shape, sharded.shard_shape(), "{fixture}");
    }
    // The devices of a second process have labels of their own.
    let second = open("mp2_ocdbt_zarr2");
    let layout = leaf(&second, "big").sharding.as_ref().unwrap().layout(&leaf(&second, "big").shape).unwrap();
    let devices: Vec<u64> = layout.placements().map(|placed| placed.device).collect();
    assert_eq!(devices, [0, 1, 2, 3, 2048, 2049, 2050, 2051]);
}

#[test]
fn older_forms_give_the_known_sharding() {
    let checkpoint = open("legacy_sharding_variants");
    let words = |name: &str| leaf(&checkpoint, name).sharding.as_ref().map(|sharding| sharding.to_string());
    let shard = |name: &str| leaf(&checkpoint, name).shard_shape().map(|shape| shape.to_string());
    for (name, told) in [
        ("no_axis_types", Some("P('x', None) over x=2,y=2")),
        ("no_device_mesh", Some("P(('x', 'y')) over x=2,y=2")),
        ("positional", Some("grid of 2x2 devices")),
        ("old_cpu_name", Some("one device (TFRT_CPU_0)")),
        ("unknown_type", Some("GSPMDSharding")),
        ("empty_string", None),
    ] {
        assert_eq!(words(name).as_deref(), told, "{name}");
        // The part is known where the kind is, and cuts the array as it is said to.
        let sharding = leaf(&checkpoint, name).sharding.as_deref();
        let is_known = sharding.is_some_and(|sharding| !matches!(sharding, Sharding::Other(_)));
        assert_eq!(shard(name).is_some(), is_known, "{name} {:?}", leaf(&checkpoint, name).shape);
    }
}

#[test]
fn the_overview_counts_leaves_by_sharding() {
    let text = overview(&open("md8_ocdbt_zarr2"));
    let line = |name: &str| {
        // The leaves are the last table.
        text.lines().rfind(|line| line.trim_start().starts_with(&format!("{name} "))).unwrap().trim()
    };
    assert!(line("big").ends_with("[64,96] in shards of [16,48]  24.0 KiB"), "{text}");
    assert!(line("P('x', 'y') over x=4,y=2").contains("2 leaves"), "{text}");
    let text = overview(&open("sd_ocdbt_zarr2"));
    assert_eq!(text.matches("one device (cpu:0)").count(), 1, "{text}");
    // Without recorded shardings there is no table.
    assert!(!overview(&open("no_arrays")).contains("device"));
}
