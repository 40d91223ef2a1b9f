//! Writing: an array, an archive, or a folder.

use super::names::SUFFIX;
use super::options::{Form, NpyOptions};
use super::plan::{Data, Plan, Planned};
use super::sidecar::{self, Pointer, Sidecar};
use super::zip::{Listed, ZipWriter};
use crate::commit::Staged;
use crate::engine::SaveOptions;
use crate::error::{Result, ResultExt};
use crate::formats::regrow::structure::Structure;
use crate::formats::stream::write_array;
use crate::store::DirectWriter;
use crate::tree::{Leaf, LeafData, LeafInfo, Tree};

/// Room for the directory of an archive, a member.
const DIRECTORY_LEN_EACH_BYTES: u64 = 256;

/// Writes `tree` into the staged folder.
///
/// # Errors
/// As [`Plan::new`]; what the disk says.
pub(super) fn write(
    tree: &Tree<Leaf>,
    staged: &Staged,
    form: Form,
    options: &NpyOptions,
    save: &SaveOptions,
) -> Result<()> {
    let plan = Plan::new(tree, form, options, save).in_file(staged.target())?;
    match form {
        Form::Npy => plan
            .arrays
            .iter()
            .try_for_each(|array| write_npy(staged.single_writer(array.len_bytes()?, 0)?, array)),
        Form::Npz => write_archive(tree, &plan, staged, options, save),
        Form::Folder => write_folder(tree, &plan, staged, options, save),
    }
}

fn write_folder(
    tree: &Tree<Leaf>,
    plan: &Plan<'_>,
    staged: &Staged,
    options: &NpyOptions,
    save: &SaveOptions,
) -> Result<()> {
    for array in &plan.arrays {
        let out = staged.writer(&format!("{}{SUFFIX}", array.name), array.len_bytes()?, 0)?;
        write_npy(out, array)?;
    }
    if options.structure {
        staged.write(sidecar::FILE_NAME, &sidecar_json(tree, plan, save)?)?;
    }
    Ok(())
}

fn write_npy(mut out: DirectWriter, array: &Planned<'_>) -> Result<()> {
    match array.data {
        // The writer reads this straight into its own buffers.
        Data::Array(elements) => {
            out.write(&array.header.to_bytes())?;
            write_array(&mut out, elements)?;
        }
        Data::Text(_) => array.for_each_piece(&mut |piece| out.write(piece))?,
    }
    out.finish().map(|_| ())
}

fn write_archive(
    tree: &Tree<Leaf>,
    plan: &Plan<'_>,
    staged: &Staged,
    options: &NpyOptions,
    save: &SaveOptions,
) -> Result<()> {
    let mut expected = DIRECTORY_LEN_EACH_BYTES;
    for array in &plan.arrays {
        // Nobody knows how much of a deflated array will be left.
        let len_bytes = if options.compress.is_some() { 0 } else { array.len_bytes()? };
        expected = expected.saturating_add(len_bytes).saturating_add(DIRECTORY_LEN_EACH_BYTES);
    }
    let mut zip =
        ZipWriter::new(staged.single_writer(if options.compress.is_some() { 0 } else { expected }, 0)?);
    for array in &plan.arrays {
        let name = format!("{}{SUFFIX}", array.name);
        zip.add(&name, Listed::Yes, options.compress, array.len_bytes()?, |each| array.for_each_piece(each))?;
    }
    let mut comment = String::new();
    if options.structure {
        let json = sidecar_json(tree, plan, save)?;
        let added = zip.add(sidecar::FILE_NAME, Listed::No, None, json.len() as u64, |each| each(&json))?;
        let len_bytes = json.len() as u64;
        comment = Pointer { offset_bytes: added.offset_bytes, len_bytes, crc32: added.crc32 }.to_comment();
    }
    zip.finish(comment.as_bytes(), staged.is_durable())
}

fn sidecar_json(tree: &Tree<Leaf>, plan: &Plan<'_>, save: &SaveOptions) -> Result<Vec<u8>> {
    let infos: Tree<LeafInfo> = tree.with_leaves(plan.infos.clone())?;
    let text = |leaf: usize| match tree.leaves().get(leaf).map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => text.clone(),
        _ => "".into(),
    };
    Sidecar::new(Structure::of(&infos, text)?, save.custom_metadata.clone()).to_json()
}
