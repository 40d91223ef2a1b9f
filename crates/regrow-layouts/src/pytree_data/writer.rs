//! Writes a tree as a data file and a manifest.

use super::PytreeDataOptions;
use super::files::DATA_SUFFIX;
use super::manifest::{BLOCK_LEN_BYTES, Manifest};
use super::paths::about;
use super::plan::Plan;
use regrow_base::bytes::checksum::BlockSums;
use regrow_base::error::{Error, Result};
use regrow_storage::NewSiblings;
use regrow_storage::location::Location;
use regrow_store::FileWriter;
use regrow_tree::array::Array;
use regrow_tree::tree::{Leaf, Tree};

/// Positions among the staged files.
const DATA: usize = 0;
const MANIFEST: usize = 1;

const PIECE_LEN_BYTES: usize = 1 << 20;

pub(super) fn suffixes(options: &PytreeDataOptions) -> Vec<String> {
    let mut suffixes = vec![options.data_suffix.clone()];
    suffixes.extend(options.manifest.then(|| options.manifest_suffix.clone()));
    suffixes
}

pub(super) fn write(tree: &Tree<Leaf>, staged: &dyn NewSiblings, options: &PytreeDataOptions) -> Result<()> {
    let Plan { arrays, extra, len_bytes } = plan(tree, staged.target(), options)?;
    let mut out = staged.sibling_writer(DATA, len_bytes.max(1), 0)?;
    let mut entries = Vec::with_capacity(arrays.len());
    for mut planned in arrays {
        pad_to(&mut out, planned.entry.offset_bytes)?;
        let sums =
            write_array(&mut out, &planned.array).map_err(|error| about(error, &planned.entry.path))?;
        planned.entry.crc32c = extra.is_some().then_some(sums);
        entries.push(planned.entry);
    }
    // No reader can map an empty file. So an empty data file gets one byte, as with NumPy 2.
    pad_to(&mut out, len_bytes.max(1))?;
    out.finish()?;
    if options.manifest {
        // Only the first entry can carry the additions, so a manifest without entries has none.
        let extra = extra.filter(|_| !entries.is_empty());
        let text = Manifest { entries, extra }.to_text();
        let mut out = staged.sibling_writer(MANIFEST, text.len() as u64, 0)?;
        out.write(text.as_bytes())?;
        out.finish()?;
    }
    Ok(())
}

/// Plans the whole save at `target`, before the first byte is written.
pub(super) fn plan(tree: &Tree<Leaf>, target: &Location, options: &PytreeDataOptions) -> Result<Plan> {
    let mut plan = Plan::of(tree, options)?;
    if let (Some(extra), true) = (&mut plan.extra, options.data_suffix != DATA_SUFFIX) {
        extra.data = Some(data_name(target, options)?);
    }
    Ok(plan)
}

fn data_name(target: &Location, options: &PytreeDataOptions) -> Result<String> {
    let stem = target.name().to_str().filter(|stem| !stem.is_empty());
    stem.map(|stem| format!("{stem}{}", options.data_suffix))
        .ok_or_else(|| Error::invalid("the name of the data file must be text").in_file(target))
}

fn pad_to(out: &mut FileWriter, offset_bytes: u64) -> Result<()> {
    let missing = offset_bytes.saturating_sub(out.offset_bytes());
    out.write_with(missing, &mut |_, piece| {
        piece.fill(0);
        Ok(())
    })
}

/// Streams an array, and returns its checksums.
fn write_array(out: &mut FileWriter, array: &Array) -> Result<Vec<u32>> {
    let mut sums = BlockSums::new(BLOCK_LEN_BYTES as usize);
    array.for_each_piece(PIECE_LEN_BYTES, |piece| {
        sums.update(piece);
        out.write(piece)
    })?;
    Ok(sums.finish())
}
