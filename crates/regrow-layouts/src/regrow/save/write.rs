//! The fourth stage of a save: the bytes.
//!
//! 1. raw leaves are streamed into the safetensors files, copied and checksummed in one pass; a
//!    file that the base has is linked instead; at the same time another thread writes Orbax'
//!    documents;
//! 2. compressed leaves, if any, go into a data file of their own;
//! 3. the database is written, with entries that refer to the raw and the compressed leaves;
//! 4. `regrow.json` is last, with a checksum for every byte of the other files.

use super::super::manifest::{self, DataFile, LeafPlace};
use super::chunks::write_chunks;
use super::data_file::data_file;
use super::database::Index;
use super::digest::Digest;
use super::new_manifest::NewManifest;
use super::orbax_documents::orbax_documents;
use super::place::{Placed, PlacedFile};
use super::plan::Plan;
use super::reuse::Origin;
use super::small_files::SmallFiles;
use crate::options::{Compression, SaveOptions};
use crate::safetensors::index::{INDEX_FILE_NAME, Index as SafetensorsIndex};
use crate::stream::{write_array, write_array_shown};
use regrow_base::bytes::checksum::crc32c;
use regrow_base::error::{Error, Result};
use regrow_base::threads::Task;
use regrow_storage::NewFolder;
use regrow_store::FileWriter;

pub(super) fn write(placed: Placed<'_>, staged: &dyn NewFolder, options: &SaveOptions) -> Result<()> {
    let Placed { plan, files } = placed;
    let plan = &plan;
    // With many leaves the index and the documents take as long as the data, so other threads make
    // them during the write.
    let (mut data_files, index, mut small) = std::thread::scope(|scope| {
        let index = Task::begin(scope, "regrow-index", || Index::new(plan, &files, options));
        let documents = Task::begin(scope, "regrow-documents", || {
            let mut small = SmallFiles::new(staged);
            orbax_documents(plan, false, options, &mut small).map(|()| small)
        });
        let data_files: Result<Vec<DataFile>> =
            files.iter().map(|file| write_file(plan, file, staged)).collect();
        Ok::<_, Error>((data_files?, index.join()?, documents.join()?))
    })?;
    drop(files);
    if data_files.len() > 1 {
        small.write_whole(INDEX_FILE_NAME, &safetensors_index(plan, &data_files)?)?;
    }
    let index = match (index, options.compression) {
        (Index::Entries(mut entries), Some(Compression::Zstd(level))) => {
            data_files.extend(write_chunks(plan, level, staged, options, &mut entries)?);
            Index::of_all(entries)?
        }
        (index, _) => index,
    };
    let database_uuid = index.write(&mut small)?;
    let manifest = NewManifest {
        structure: plan.structure()?,
        custom_metadata: options.custom_metadata.as_ref(),
        data_files: &data_files,
        files: &small.files,
        database_uuid: database_uuid.as_deref(),
        parts: &[],
        chunks: None,
        pieces: None,
        whole: None,
    };
    let json = manifest.to_json(plan.leaves.iter().map(|leaf| leaf.place))?;
    staged.write(manifest::FILE_NAME, &json)
}

/// Writes only the data files, and returns their records.
pub(super) fn write_files(placed: &Placed<'_>, staged: &dyn NewFolder) -> Result<Vec<DataFile>> {
    placed.files.iter().map(|file| write_file(&placed.plan, file, staged)).collect()
}

/// Links the file if the base has it; otherwise writes the file.
fn write_file(plan: &Plan<'_>, file: &PlacedFile, staged: &dyn NewFolder) -> Result<DataFile> {
    match &file.origin {
        Origin::Written => return write_safetensors(plan, file, staged, None),
        Origin::Gathered => {}
        Origin::Linked(link) => {
            if let Some(linked) = link.place(&file.name, staged)? {
                return Ok(linked);
            }
        }
    }
    let keeps = |&leaf: &u32| {
        plan.stored_array(leaf as usize).is_some_and(|array| array.is_ok_and(|it| it.kept_len_bytes() > 0))
    };
    if file.leaves.iter().any(keeps) {
        let mut hasher = blake3::Hasher::new();
        let mut written = write_safetensors(plan, file, staged, Some(&mut hasher))?;
        written.blake3 = Some(hasher.finalize().to_hex().to_string());
        return Ok(written);
    }
    std::thread::scope(|scope| {
        let block_len_bytes = FileWriter::BLOCK_LEN_BYTES as usize;
        let digest = Task::begin(scope, "regrow-digest", move || {
            Digest::of(plan, &file.leaves, block_len_bytes, staged.monitor())
        });
        let mut written = write_safetensors(plan, file, staged, None)?;
        digest.join()?.record_in(&mut written);
        Ok(written)
    })
}

/// Writes the file, and passes the bytes of its leaves to `hasher` on their way.
fn write_safetensors(
    plan: &Plan<'_>,
    file: &PlacedFile,
    staged: &dyn NewFolder,
    mut hasher: Option<&mut blake3::Hasher>,
) -> Result<DataFile> {
    let data_offset = file.head.len() as u64;
    let mut out = staged.writer(&file.name, file.len_bytes, data_offset)?;
    out.write(&file.head)?;
    for &leaf in &file.leaves {
        let leaf = leaf as usize;
        if let Some(array) = plan.stored_array(leaf) {
            let written = array.and_then(|array| match &mut hasher {
                None => write_array(&mut out, &array),
                Some(hasher) => write_array_shown(&mut out, &array, |piece| {
                    hasher.update(piece);
                }),
            });
            written.map_err(|error| error.at_leaf(&plan.path(leaf)))?;
        }
    }
    Ok(data_file(file.name.clone(), data_offset, crc32c(&file.head), out.finish()?))
}

/// `model.safetensors.index.json` of raw leaves.
pub(super) fn safetensors_index(plan: &Plan<'_>, files: &[DataFile]) -> Result<Vec<u8>> {
    let mut index = SafetensorsIndex::default();
    for (leaf, planned) in plan.leaves.iter().enumerate() {
        if let LeafPlace::Raw { file, .. } = planned.place
            && let Some(file) = files.get(file)
        {
            index.insert(plan.name(leaf), &file.name, planned.len_bytes);
        }
    }
    index.to_json()
}
