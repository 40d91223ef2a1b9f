//! `docs/bounds.md` names every bound on the content of files, with its value, and every place of
//! unsafe code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Constants with `MAX` in their names that bound what regrow itself does or writes, and nothing
/// that a file says.
const OWN: [&str; 117] = [
    "regrow-storage/local/lock.rs: HOLDER_LEN_MAX_BYTES",
    "regrow-tree/array/histogram.rs: BINS_MAX",
    "regrow-base/bytes/pages.rs: LARGE_PAGE_TIME_MAX",
    "regrow-base/bytes/zip/directory.rs: COMMENT_LEN_MAX_BYTES",
    "regrow-base/bytes/zip/directory.rs: HEADER_LEN_MAX_BYTES",
    "regrow-base/bytes/zip/directory.rs: VERSION_MAX",
    "regrow-base/bytes/zip/found.rs: BEHIND_LEN_MAX_BYTES",
    "regrow-zarr/codec/blosc.rs: SPLITS_MAX",
    "regrow-zarr/codec/blosclz.rs: NEAR_DISTANCE_MAX",
    "regrow-zarr/codec/zstd.rs: BLOCK_LEN_MAX_BYTES",
    "regrow-layouts/own_files.rs: DEPTH_MAX",
    "regrow-layouts/orbax/own_files.rs: FILES_LINE_LEN_MAX_BYTES",
    "regrow-storage/local/others.rs: DEPTH_MAX",
    "regrow-storage/local/temporary.rs: NAME_LEN_MAX_BYTES",
    "regrow-storage/local/mod.rs: SYNC_LATER_LEN_MAX_BYTES",
    "regrow-storage/local/files.rs: SYNC_EACH_MAX",
    "regrow-coordination/attempt.rs: NAME_LEN_MAX",
    "regrow-coordination/ranks.rs: RUNS_MAX",
    "regrow/engine/background/mod.rs: QUEUE_LEN_MAX",
    "regrow/engine/convert/shared.rs: CLAIMS_MAX",
    "regrow/engine/names.rs: DEPTH_MAX",
    "regrow/engine/open.rs: SEARCHES_MAX",
    "regrow/engine/overview.rs: COLUMN_WIDTH_MAX",
    "regrow/engine/patterns.rs: LOOKED_AT_MAX",
    "regrow/engine/regions/tiles.rs: SHARD_LEN_MAX_BYTES",
    "regrow/engine/repair/mod.rs: ROUNDS_MAX",
    "regrow/engine/replace.rs: FOLDERS_ABOVE_MAX",
    "regrow-storage/retry.rs: TIME_MAX",
    "regrow/engine/sealed/check.rs: FINDINGS_OF_FILE_MAX",
    "regrow/engine/sealed/reader.rs: ADDED_SHOWN_MAX",
    "regrow/engine/small.rs: LEN_MAX_BYTES",
    "regrow/engine/verify.rs: MISFITS_SHOWN_MAX",
    "regrow/engine/verify.rs: REFUSED_SHOWN_MAX",
    "regrow-layouts/equinox/file.rs: ALONE_LEN_MAX_BYTES",
    "regrow-layouts/flax/encode.rs: INLINE_LEN_MAX_BYTES",
    "regrow-layouts/flax/files.rs: TOKENS_MAX",
    "regrow-layouts/flax/msgpack.rs: TOKEN_LEN_MAX_BYTES",
    "regrow-layouts/flax/steps.rs: PREFIXES_MAX",
    "regrow-layouts/npy/names.rs: FILE_NAME_LEN_MAX_BYTES",
    "regrow-layouts/npy/sidecar.rs: LEN_MAX_BYTES",
    "regrow-layouts/npy/walk.rs: LOOKED_AT_DEPTH_MAX",
    "regrow-layouts/npy/walk.rs: LOOKED_AT_MAX",
    "regrow-layouts/orbax/writer/encode.rs: IN_MEMORY_MAX_BYTES",
    "regrow-layouts/orbax/writer/names.rs: COMPONENT_BYTES_MAX",
    "regrow-layouts/orbax/writer/workers.rs: SMALL_FILE_MAX_BYTES",
    "regrow-layouts/regrow/reader.rs: META_LEN_MAX_BYTES",
    "regrow-layouts/regrow/reader.rs: RUNS_MAX",
    "regrow-layouts/regrow/save/cut.rs: CODED_LEN_MAX_BYTES",
    "regrow-layouts/regrow/save/header.rs: STRUCTURE_IN_HEADER_MAX_BYTES",
    "regrow-layouts/regrow/save/index.rs: INLINE_LEN_MAX_BYTES",
    "regrow-layouts/regrow/save/merge.rs: INDEX_TENSORS_MAX",
    "regrow-layouts/regrow/save/names.rs: NAME_LEN_MAX_BYTES",
    "regrow-layouts/regrow/save/reuse.rs: LINKS_MAX",
    "regrow-layouts/regrow/save/small_files.rs: GATHERED_LEN_MAX_BYTES",
    "regrow-layouts/regrow/save/split.rs: ALIGNMENT_MAX_BYTES",
    "regrow-layouts/regrow/save/split.rs: HEADER_LEN_MAX_BYTES",
    "regrow-layouts/regrow/views.rs: DECODED_LEN_MAX_BYTES",
    "regrow-layouts/safetensors/writer.rs: HEADER_LEN_MAX_BYTES",
    "regrow-layouts/safetensors/writer.rs: STRUCTURE_LEN_MAX_BYTES",
    "regrow-layouts/suggestions.rs: DEPTH_MAX",
    "regrow-layouts/suggestions.rs: ENTRIES_MAX",
    "regrow-layouts/suggestions.rs: FOLDERS_FAR_MAX",
    "regrow-layouts/suggestions.rs: FOLDERS_MAX",
    "regrow-layouts/torch/archive.rs: VERSION_MAX",
    "regrow-layouts/torch/detect.rs: MAGIC_AT_MAX",
    "regrow-layouts/torch/pickle/machine.rs: PROTOCOL_MAX",
    "regrow-layouts/torch/reader.rs: REFUSED_MAX",
    "regrow-layouts/torch/tree.rs: NOTES_MAX",
    "regrow-layouts/trak/layout.rs: FILE_NAME_LEN_MAX_BYTES",
    "regrow-layouts/trak/writer.rs: MEMBER_DEPTH_MAX",
    "regrow-storage/location.rs: LOOKS_AT_ONCE_MAX",
    "regrow/manager/names.rs: WIDTH_MAX",
    "regrow/manager/newest.rs: LISTS_MAX",
    "regrow/manager/steps.rs: LOOKS_MAX",
    "regrow-layouts/options/flax.rs: CHUNK_LEN_MAX_BYTES",
    "regrow-layouts/options/npy.rs: LEVEL_MAX",
    "regrow-layouts/options/safetensors.rs: ALIGN_MAX_BYTES",
    "regrow-protection/parity/ratio.rs: TERM_MAX",
    "regrow-store/reads/table.rs: SHORT_BLOCK_LEN_MAX_BYTES",
    "regrow-tree/sharding/boxes.rs: LEAF_MAX",
    "regrow-tree/sharding/distinct.rs: LOOKED_THROUGH_MAX",
    "regrow-storage/archive/keys.rs: AT_ONCE_LEN_MAX_BYTES",
    "regrow-storage/archive/tar.rs: AFTER_END_LEN_MAX_BYTES",
    "regrow-storage/archive/window.rs: LEN_MAX_BYTES",
    "regrow-storage/cache/bound.rs: TEMPORARY_AGE_MAX",
    "regrow-storage/cache/mod.rs: CACHE_LEN_MAX_DEFAULT_BYTES",
    "regrow-storage/http/server.rs: KEPT_LEN_MAX_BYTES",
    "regrow-storage/http/settings.rs: RETRIES_MAX",
    "regrow-storage/http/settings.rs: TIMEOUT_MAX_SECONDS",
    "regrow-storage/lent.rs: DEPTH_MAX",
    "regrow-storage/object/cached.rs: ONE_REQUEST_LEN_MAX_BYTES",
    "regrow-storage/object/cloud/objects.rs: AHEAD_LEN_MAX_BYTES",
    "regrow-storage/object/cloud/upload.rs: IN_FLIGHT_MAX",
    "regrow-storage/object/cloud/upload.rs: PARTS_MAX",
    "regrow-storage/object/held.rs: WRITES_MAX",
    "regrow-storage/object/keys.rs: LOOK_LEN_MAX_BYTES",
    "regrow-storage/object/listing.rs: LEN_MAX_BYTES",
    "regrow-storage/object/old.rs: CLAIM_TIME_MAX",
    "regrow-storage/object/publish.rs: GATHERED_LEN_MAX_BYTES",
    "regrow-storage/object/run.rs: LOOKS_MAX",
    "regrow-store/blob.rs: FETCH_LEN_MAX_BYTES",
    "regrow-store/buffer.rs: FREE_LEN_MAX",
    "regrow-store/local/direct.rs: ELEMENT_LEN_MAX_BYTES",
    "regrow-store/local/whole.rs: AT_ONCE_LEN_MAX_BYTES",
    "regrow-ocdbt/check.rs: ERRORS_MAX",
    "regrow-ocdbt/files.rs: CACHE_LEN_MAX_BYTES",
    "regrow-ocdbt/manifest.rs: LISTS_MAX",
    "regrow-store/scratch.rs: HEAP_LEN_MAX_BYTES",
    "regrow-base/text.rs: BRIEF_LEN_MAX_CHARS",
    "regrow-base/threads/pool.rs: ITEMS_PER_THREAD_MAX",
    "regrow-base/threads/pool.rs: WAITING_THREADS_MAX",
    "regrow-tree/tree/siblings.rs: PAIRS_MAX",
    "regrow-zarr/zarr/array.rs: SHARD_READ_WHOLE_LEN_MAX_BYTES",
    "regrow-zarr/zarr/array.rs: STREAM_LEN_MAX_BYTES",
    "regrow-zarr/zarr/json.rs: LEN_MAX_CHARS",
    "regrow-zarr/zarr/raw.rs: RAW_OVERREAD_MAX",
    "regrow-zarr/zarr/raw.rs: RAW_PIECE_LEN_MAX_BYTES",
];

/// Names of such constants in any file: how much of a list is shown, how many threads work.
const OWN_ANYWHERE: [&str; 6] =
    ["NAMED_MAX", "SHOWN_MAX", "THREADS_MAX", "REQUESTS_MAX", "OPEN_FILES_MAX", "KEPT_MAX"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files of Rust below a folder, with their paths from it.
fn sources(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
                found.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

/// The crates that the engine is made of.
const CRATES: [&str; 10] = [
    "regrow",
    "regrow-base",
    "regrow-coordination",
    "regrow-layouts",
    "regrow-ocdbt",
    "regrow-protection",
    "regrow-storage",
    "regrow-store",
    "regrow-tree",
    "regrow-zarr",
];

/// All files of Rust of these crates: `regrow-store/blob.rs`.
fn sources_of_crates() -> BTreeMap<String, String> {
    let of = |name: &str| sources(&repository().join("crates").join(name).join("src"));
    let named =
        |name: &'static str| of(name).into_iter().map(move |(file, text)| (format!("{name}/{file}"), text));
    CRATES.into_iter().flat_map(named).collect()
}

/// Rows of the tables of the page, cell by cell.
fn rows() -> Vec<Vec<String>> {
    let page = fs::read_to_string(repository().join("docs/bounds.md")).unwrap();
    let lines = page.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    lines
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// The texts in backquotes of a cell.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The constants of a file whose names have `MAX` in them, with the expressions that they are.
fn constants(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter_map(|line| line.split_once("const ")?.1.split_once(": "));
    let named = lines.filter(|(name, _)| {
        name.split('_').any(|word| word == "MAX")
            && name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'_'))
    });
    named.filter_map(|(name, rest)| Some((name, rest.split_once("= ")?.1.split_once(';')?.0))).collect()
}

/// What an expression of literals is: `1 << 30`, `10_000_000`, `u16::MAX as usize`.
fn value(expression: &str) -> Option<u64> {
    let plain = expression.split(" as ").next()?.trim();
    let limits =
        [("u16::MAX", u16::MAX.into()), ("i32::MAX", i32::MAX as u64), ("u32::MAX", u32::MAX.into())];
    if let Some((_, limit)) = limits.into_iter().find(|(name, _)| *name == plain) {
        return Some(limit);
    }
    if let Some(condition) = plain.strip_prefix("if usize::BITS == 64 { ") {
        return value(condition.split_once(" }")?.0);
    }
    let (number, shift) = plain.split_once(" << ").unwrap_or((plain, "0"));
    let number: u64 = number.replace('_', "").parse().ok()?;
    Some(number << shift.parse::<u32>().ok()?)
}

/// A value as people write it: `64 KiB`, `65,535 bytes`, `1,024`.
fn written(name: &str, value: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let in_bytes = name.contains("BYTES");
    match units.into_iter().find(|(_, shift)| in_bytes && value.is_multiple_of(1 << shift)) {
        Some((unit, shift)) => format!("{} {unit}", value >> shift),
        None => {
            let digits = value.to_string();
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
            groups.join(",") + if in_bytes { " bytes" } else { "" }
        }
    }
}

#[test]
fn the_page_names_every_bound_with_its_value() {
    let sources = sources_of_crates();
    let mut named = BTreeSet::new();
    for row in rows()
        .iter()
        .filter(|row| quoted(&row[2]).len() == 2 && quoted(&row[0]).first() != Some(&row[0].as_str()))
    {
        let place = quoted(&row[2]);
        let text = sources.get(place[0]).unwrap_or_else(|| panic!("there is no {}", place[0]));
        let found = constants(text).into_iter().find(|(name, _)| *name == place[1]);
        let (name, expression) = found.unwrap_or_else(|| panic!("{place:?} is not there"));
        let value = value(expression).unwrap_or_else(|| panic!("{place:?}: {expression}"));
        assert_eq!(row[1], written(name, value), "{place:?}");
        named.insert(place.join(": "));
    }
    assert!(named.len() > 50, "the table was not read");
    let all: BTreeSet<String> = sources
        .iter()
        .flat_map(|(file, text)| constants(text).into_iter().map(move |(name, _)| (file, name)))
        .filter(|(_, name)| !OWN_ANYWHERE.contains(name))
        .map(|(file, name)| format!("{file}: {name}"))
        .collect();
    let own: BTreeSet<String> = OWN.map(str::to_owned).into();
    let unnamed: Vec<&String> = all.difference(&named).filter(|place| !own.contains(*place)).collect();
    assert!(unnamed.is_empty(), "in the table of docs/bounds.md, or in OWN, wants to be: {unnamed:#?}");
    let gone: Vec<&String> =
        own.iter().filter(|place| !all.contains(*place) || named.contains(*place)).collect();
    assert!(gone.is_empty(), "not in the source, or in the table, too: {gone:#?}");
}

#[test]
fn the_page_counts_the_places_of_unsafe_code() {
    // What a comment says of it does not count, nor what tests do.
    let places = |text: &str| {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let signs = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
        code.filter(|line| signs.iter().any(|sign| line.contains(sign))).count()
    };
    let mut found = BTreeMap::new();
    let others = ["regrow-cli", "regrow-report", "regrow-derive"];
    let crates = CRATES.iter().chain(&others).map(|name| format!("crates/{name}/src"));
    for folder in crates.chain(["python/src".to_owned()]) {
        for (file, text) in sources(&repository().join(&folder)) {
            let count = places(&text);
            if count > 0 && !file.contains("/tests/") {
                found.insert(format!("{folder}/{file}"), count.to_string());
            }
        }
    }
    let told: BTreeMap<String, String> = rows()
        .iter()
        .filter(|row| row[0].starts_with('`'))
        .map(|row| (row[0].trim_matches('`').to_owned(), row[1].clone()))
        .collect();
    assert_eq!(told, found);
}
