//! Golden checkpoints with damage in each file: every read ends with a value or an error.

use std::path::Path;

use regrow::tree::LeafKind;
use regrow_layouts::ReaderExt;
use regrow_testkit::files_below;

use super::{checkpoint, fixture_names, open, read_whole};

/// A leaf that a damaged shape makes larger than this is not read: its destination is the caller's
/// to bound.
const READ_MAX_BYTES: u64 = 16 << 20;

/// Opens and reads everything possible; any outcome is fine, but there must be one.
fn use_it(path: &Path) -> usize {
    let Ok(reader) = open(path) else { return 1 };
    let mut errors = 0;
    for (leaf, info) in reader.tree().leaves().iter().enumerate() {
        if info.kind == LeafKind::Str {
            errors += usize::from(reader.read_text(leaf).is_err());
        } else if info.len_bytes() <= READ_MAX_BYTES {
            errors += usize::from(read_whole(&*reader, leaf).is_err());
        }
        errors += usize::from(reader.view(leaf).is_err());
    }
    reader.read_order();
    errors + reader.check_rest().map_or(1, |rest| rest.findings.len())
}

/// A new file under the same name: cutting the old one short would make some file systems wait for
/// the disk.
fn replace(file: &Path, bytes: &[u8]) {
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn damaged_fixtures_load_or_are_an_error() {
    let (mut noticed, mut tried) = (0, 0);
    for fixture in fixture_names() {
        let files = files_below(&checkpoint(&fixture)).unwrap();
        let total: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
        if total > 40_000 || files.len() > 40 {
            continue;
        }
        let copy = tempfile::tempdir().unwrap();
        regrow_testkit::copy_folder(&checkpoint(&fixture), copy.path()).unwrap();
        for file in files_below(copy.path()).unwrap() {
            let bytes = std::fs::read(&file).unwrap();
            let mut forms: Vec<Vec<u8>> = [0, 1, bytes.len() / 2, bytes.len().saturating_sub(1)]
                .map(|len| bytes[..len.min(bytes.len())].to_vec())
                .to_vec();
            for step in 0..6 {
                let Some(last) = bytes.len().checked_sub(1) else { break };
                let mut flipped = bytes.clone();
                flipped[(last * step / 5).min(last)] ^= 1 << (step + 1);
                forms.push(flipped);
            }
            for form in forms {
                replace(&file, &form);
                tried += 1;
                noticed += usize::from(use_it(copy.path()) > 0);
            }
            replace(&file, &bytes);
        }
    }
    assert!(tried > 500 && noticed * 3 > tried, "{noticed} of {tried} were noticed");
}
