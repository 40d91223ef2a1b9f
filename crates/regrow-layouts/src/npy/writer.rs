//! Writes an array, an archive, or a folder.

use super::names::SUFFIX;
use super::own;
use super::plan::{Data, Plan, Planned};
use super::sidecar::{self, Pointer, Sidecar};
use super::zip::{Listed, ZipWriter};
use crate::options::SaveOptions;
use crate::options::{Form, NpyOptions};
use crate::stream;
use crate::structure::Structure;
use regrow_base::error::{Result, ResultExt};
use regrow_storage::location::Location;
use regrow_storage::{NewFile, NewFolder};
use regrow_store::FileWriter;
use regrow_tree::tree::{Leaf, LeafData, LeafInfo, Tree};

/// The estimated length of an archive's directory for each member.
const DIRECTORY_LEN_EACH_BYTES: u64 = 256;

/// Writes an array as one file.
pub(super) fn write_array(tree: &Tree<Leaf>, new: &dyn NewFile, save: &SaveOptions) -> Result<()> {
    let (plan, _) = plan(tree, new.target(), Form::Npy, &own(save), save)?;
    plan.arrays.iter().try_for_each(|array| write_npy(new.single_writer(array.len_bytes()?, 0)?, array))
}

/// Plans the whole save at `target`, before the first byte is written: the arrays, and the sidecar
/// beside them.
pub(super) fn plan<'a>(
    tree: &'a Tree<Leaf>,
    target: &Location,
    form: Form,
    options: &NpyOptions,
    save: &SaveOptions,
) -> Result<(Plan<'a>, Option<Vec<u8>>)> {
    let plan = Plan::new(tree, form, options, save).in_file(target)?;
    let has_sidecar = options.structure && form != Form::Npy;
    let sidecar = has_sidecar.then(|| sidecar_json(tree, &plan, save)).transpose()?;
    Ok((plan, sidecar))
}

/// Writes a folder of arrays.
///
/// # Errors
/// As [`Plan::new`]; errors of the disk.
pub(super) fn write_folder(tree: &Tree<Leaf>, staged: &dyn NewFolder, save: &SaveOptions) -> Result<()> {
    let (plan, sidecar) = plan(tree, staged.target(), Form::Folder, &own(save), save)?;
    for array in &plan.arrays {
        let out = staged.writer(&format!("{}{SUFFIX}", array.name), array.len_bytes()?, 0)?;
        write_npy(out, array)?;
    }
    sidecar.map_or(Ok(()), |json| staged.write(sidecar::FILE_NAME, &sidecar::with_sum(&json)))
}

fn write_npy(mut out: FileWriter, array: &Planned<'_>) -> Result<()> {
    match array.data {
        // The writer copies the array directly into its own buffers.
        Data::Array(elements) => {
            out.write(&array.header.to_bytes())?;
            stream::write_array(&mut out, elements)?;
        }
        Data::Text(_) => array.for_each_piece(&mut |piece| out.write(piece))?,
    }
    out.finish().map(|_| ())
}

/// Writes an archive of arrays.
///
/// # Errors
/// As [`Plan::new`]; errors of the disk.
pub(super) fn write_archive(tree: &Tree<Leaf>, new: &dyn NewFile, save: &SaveOptions) -> Result<()> {
    let options = &own(save);
    let (plan, sidecar) = plan(tree, new.target(), Form::Npz, options, save)?;
    let mut expected = DIRECTORY_LEN_EACH_BYTES;
    for array in &plan.arrays {
        // The deflated size of an array is unknown.
        let len_bytes = if options.compress.is_some() { 0 } else { array.len_bytes()? };
        expected = expected.saturating_add(len_bytes).saturating_add(DIRECTORY_LEN_EACH_BYTES);
    }
    let mut zip =
        ZipWriter::new(new.single_writer(if options.compress.is_some() { 0 } else { expected }, 0)?);
    for array in &plan.arrays {
        let name = format!("{}{SUFFIX}", array.name);
        zip.add(&name, Listed::Yes, options.compress, array.len_bytes()?, |each| array.for_each_piece(each))?;
    }
    let mut comment = String::new();
    if let Some(json) = sidecar.as_deref() {
        let added = zip.add(sidecar::FILE_NAME, Listed::No, None, json.len() as u64, |each| each(json))?;
        let len_bytes = json.len() as u64;
        comment = Pointer { offset_bytes: added.offset_bytes, len_bytes, crc32: added.crc32 }.to_comment();
    }
    zip.finish(comment.as_bytes())
}

fn sidecar_json(tree: &Tree<Leaf>, plan: &Plan<'_>, save: &SaveOptions) -> Result<Vec<u8>> {
    let infos: Tree<LeafInfo> = tree.with_leaves(plan.infos.clone())?;
    let text = |leaf: usize| match tree.leaves().get(leaf).map(|leaf| &leaf.data) {
        Some(LeafData::Text(text)) => text.clone(),
        _ => "".into(),
    };
    Sidecar::new(Structure::of(&infos, text)?, save.custom_metadata.clone()).to_json()
}
