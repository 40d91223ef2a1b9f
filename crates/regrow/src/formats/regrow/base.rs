//! Saving again: data files of an earlier checkpoint, the base, in which nothing changed are linked, not written.
//!
//! ```text
//! save 1                 model.safetensors                          everything
//! save 2, base = 1       model-00001-of-00002  model-00002-of-00002
//!                        what changed          what did not, with a digest
//! save 3, base = 2       model-00001-of-00002  model-00002-of-00002
//!                        what changed          another name of save 2's file: not a byte is written
//! ```
//!
//! Nobody is trusted to say what changed. A leaf is unchanged if the base has one of its name, dtype and shape with
//! the same bytes: they are compared piece by piece, up to the first that differs, so a leaf that changed costs one
//! piece. Where the base knows a [digest](super::manifest::DataFile::blake3) of a file, the tree's own leaves are
//! hashed instead, and the base is not read at all.
//!
//! All leaves are compared before one is written, for whether a file is linked hangs on the last of its leaves. What
//! is read on demand, as in a conversion, is thus read twice unless its file is linked.
//!
//! A file is linked if all its leaves are unchanged and its header is, byte for byte, the one that would be written
//! now: names, offsets and, in the first file, the structure. The other unchanged leaves are gathered in files of
//! their own, so that the next save can link those. Where the system cannot link, the file is written.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::digest::for_each_piece;
use super::manifest::{self, DataFile, LeafPlace};
use super::plan::Plan;
use super::reader::RegrowReader;
use super::writer::{header_bytes, structure_in_header};
use crate::array::Array;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::{Reader, refuse_uncommitted};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::storage::Publication;
use crate::store::{Blob, ReadPath};
use crate::threads::pool;

/// Bytes compared at a time.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// Leaves are compared in batches of about this size, each by one thread.
const BATCH_LEN_BYTES: u64 = 8 << 20;

/// What reading a leaf costs beside its bytes.
const LEAF_COST_BYTES: u64 = 4096;

/// Unchanged leaves below and from this size are gathered apart: a counter that stood still for once is not to cost
/// the large leaves their file when it goes on.
const SMALL_LEAF_LEN_BYTES: u64 = 64 << 10;

/// Less than this is no file of its own.
const GATHERED_LEN_MIN_BYTES: u64 = 1 << 10;

/// More files than this are not linked: the leaves of the smallest are gathered anew.
const LINKS_MAX: usize = 64;

/// The earlier checkpoint, opened: its `regrow.json`.
pub(super) struct Base {
    folder: Location,
    reader: RegrowReader,
}

/// Where the bytes of a planned file come from.
pub(super) enum Origin {
    /// They are written.
    Written,
    /// They are written, and hashed for the next save.
    Gathered,
    /// A file of the base has them.
    Linked(Link),
}

/// A file of the base that can stand for a planned one.
pub(super) struct Link {
    source: Location,
    /// What was looked at, whatever the location leads to later.
    opened: Arc<dyn Blob>,
    record: DataFile,
}

impl Base {
    /// Opens the checkpoint at a location.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` if it is none of the default layout; `Uncommitted`, `Corrupt`, `Unsupported` as
    /// any opening.
    pub fn open(at: &Location) -> Result<Self> {
        refuse_uncommitted(at)?;
        let cannot_open = |source| Error::io("cannot open the base of this save", at, source);
        if at.look()?.is_none() {
            return Err(cannot_open(std::io::ErrorKind::NotFound.into()));
        }
        if !at.join(manifest::FILE_NAME).is_file() {
            return Err(Error::invalid("the base of this save is no checkpoint of the layout regrow")
                .in_file(at)
                .help("name a single checkpoint (of a folder of steps: the step) that was saved in the default layout, \
                       or save without a base"));
        }
        Ok(Self { reader: RegrowReader::open(at)?, folder: at.clone() })
    }

    /// Splits the raw leaves of `plan` anew over files; says where the bytes of each file come from. The monitor's
    /// total grows by the bytes that are compared. What leaves [keep](Array::kept_len_bytes) while they are read is
    /// at most `budget_bytes`, or that of one of them.
    ///
    /// # Errors
    /// `Cancelled`; what reading the tree's own leaves says.
    pub fn reuse(
        self,
        plan: &mut Plan<'_>,
        structure: &str,
        header_len_max_bytes: usize,
        budget_bytes: u64,
        monitor: &Monitor,
    ) -> Result<Vec<Origin>> {
        let began = Instant::now();
        monitor.enter(Stage::Compare);
        let mut old_files = self.match_leaves(plan);
        monitor.expect(old_files.iter().map(OldFile::leaves_len_bytes).fold(0, u64::saturating_add));
        let unchanged: Vec<AtomicBool> = plan.leaves.iter().map(|_| AtomicBool::new(false)).collect();
        let mut to_compare = Vec::new();
        for old in &old_files {
            match old.has_digest_of_leaves(plan, monitor)? {
                Some(true) => old.leaves.iter().for_each(|leaf| set(&unchanged, leaf.leaf)),
                Some(false) => {
                    // Hashed in vain, and gone through once more.
                    monitor.expect(old.leaves_len_bytes());
                    to_compare.push(old);
                }
                None => to_compare.push(old),
            }
        }
        compare(plan, &to_compare, &unchanged, budget_bytes, monitor)?;
        monitor.add(Stage::Compare, began.elapsed(), 0);
        monitor.enter(Stage::Prepare);
        let is_unchanged = |leaf: u32| get(&unchanged, leaf);
        old_files.retain(|old| old.is_whole && old.leaves.iter().all(|leaf| is_unchanged(leaf.leaf)));
        Ok(arrange(plan, old_files, &is_unchanged, structure, header_len_max_bytes))
    }

    /// The raw leaves of the base, a list for each of its files, with those of the tree that may be the same.
    fn match_leaves(self, plan: &Plan<'_>) -> Vec<OldFile> {
        let Self { folder, reader } = self;
        let open = |(at, record): (usize, &DataFile)| {
            Some(OldFile {
                at,
                source: folder.join(&record.name),
                opened: reader.data_file(record)?,
                record: record.clone(),
                leaves: Vec::new(),
                is_whole: true,
            })
        };
        let mut files: Vec<Option<OldFile>> = reader.data_files().enumerate().map(open).collect();
        for (info, place) in reader.tree().leaves().iter().zip(reader.places()) {
            let &LeafPlace::Raw { file, offset_bytes } = place else { continue };
            let Some(Some(old)) = files.get_mut(file) else { continue };
            let by_name = |&leaf: &u32| plan.name(leaf as usize).cmp(&info.name);
            let found = plan.by_name().binary_search_by(by_name).ok().and_then(|rank| {
                let leaf = *plan.by_name().get(rank)?;
                let (planned, source) = plan.leaf(leaf as usize)?;
                let is_alike = matches!(planned.place, LeafPlace::Raw { .. })
                    && planned.dtype == info.dtype
                    && source.as_array()?.shape() == &info.shape;
                is_alike.then_some(OldLeaf { leaf, rank, offset_bytes, len_bytes: planned.len_bytes })
            });
            match found {
                Some(leaf) => old.leaves.push(leaf),
                None => old.is_whole = false,
            }
        }
        let mut files: Vec<OldFile> = files.into_iter().flatten().collect();
        for file in &mut files {
            // Empty leaves begin where others do.
            file.leaves.sort_by_key(|leaf| (leaf.offset_bytes, leaf.len_bytes, leaf.rank));
        }
        files
    }
}

/// A data file of the base.
struct OldFile {
    at: usize,
    source: Location,
    opened: Arc<dyn Blob>,
    record: DataFile,
    /// Those that the tree has too, in the order of their bytes.
    leaves: Vec<OldLeaf>,
    /// Whether the tree has all of them.
    is_whole: bool,
}

/// A leaf of the base with that of the tree which has its name, dtype and shape.
struct OldLeaf {
    leaf: u32,
    rank: usize,
    offset_bytes: u64,
    len_bytes: u64,
}

impl OldFile {
    /// Bytes of the leaves that the tree has too.
    fn leaves_len_bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.len_bytes).fold(0, u64::saturating_add)
    }

    /// Whether the digest of the file is that of the tree's leaves, in their order; `None` where there is none to
    /// compare with.
    fn has_digest_of_leaves(&self, plan: &Plan<'_>, monitor: &Monitor) -> Result<Option<bool>> {
        let Some(expected) = self.record.blake3.as_ref().filter(|_| self.is_whole) else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        for_each_piece(plan, self.leaves.iter().map(|leaf| leaf.leaf), |piece| {
            hasher.update(piece);
            monitor.done(Stage::Compare, piece.len() as u64)
        })?;
        Ok(Some(hasher.finalize().to_hex().as_str() == expected.as_str()))
    }

    /// Whether the file begins with `header`, and its leaves follow as they would in a file that is written now.
    fn is_laid_out_as(&self, header: &[u8]) -> bool {
        let mut end = header.len() as u64;
        for leaf in &self.leaves {
            if leaf.offset_bytes != end {
                return false;
            }
            end = end.saturating_add(leaf.len_bytes);
        }
        if header.len() as u64 != self.record.data_offset || end != self.record.len_bytes {
            return false;
        }
        let mut theirs = vec![0; header.len()];
        self.opened.read(0, &mut theirs, ReadPath::Cached).is_ok() && theirs == header
    }

    /// Whether writing its leaves now would make the very same file.
    fn would_be_written(&self, plan: &Plan<'_>, structure: Option<&str>) -> bool {
        header_bytes(plan, &self.order(), structure).is_ok_and(|header| self.is_laid_out_as(&header))
    }

    fn order(&self) -> Vec<u32> {
        self.leaves.iter().map(|leaf| leaf.leaf).collect()
    }

    fn linked(self) -> (Vec<u32>, Origin) {
        let order = self.order();
        (order, Origin::Linked(Link { source: self.source, opened: self.opened, record: self.record }))
    }
}

fn set(flags: &[AtomicBool], leaf: u32) {
    if let Some(flag) = flags.get(leaf as usize) {
        flag.store(true, Ordering::Relaxed);
    }
}

fn get(flags: &[AtomicBool], leaf: u32) -> bool {
    flags.get(leaf as usize).is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Marks the leaves whose bytes are those of the base.
fn compare(
    plan: &Plan<'_>,
    files: &[&OldFile],
    unchanged: &[AtomicBool],
    budget_bytes: u64,
    monitor: &Monitor,
) -> Result<()> {
    let batches = files.iter().flat_map(|old| {
        let mut len_bytes = 0_u64;
        let batches = old.leaves.chunk_by(move |leaf, _| {
            len_bytes = len_bytes.saturating_add(leaf.len_bytes).saturating_add(LEAF_COST_BYTES);
            let is_full = len_bytes >= BATCH_LEN_BYTES;
            len_bytes = if is_full { 0 } else { len_bytes };
            !is_full
        });
        batches.map(|batch| (&*old.opened, batch))
    });
    // Each thread holds two pieces, and what the one leaf keeps that it is at.
    let cost_bytes = |batch: &[OldLeaf]| {
        let arrays = batch.iter().filter_map(|leaf| plan.stored_array(leaf.leaf as usize)?.ok());
        arrays.map(|array| array.kept_len_bytes()).max().unwrap_or(0)
    };
    pool::for_each_parallel(
        pool::thread_count(),
        batches,
        budget_bytes,
        |(_, batch)| cost_bytes(batch),
        |(file, batch)| {
            for leaf in batch {
                let Some(array) = plan.stored_array(leaf.leaf as usize) else { continue };
                let same = array.and_then(|array| same_len_bytes(&array, file, leaf.offset_bytes, monitor));
                let same_bytes = same.map_err(|error| error.at_leaf(&plan.path(leaf.leaf as usize)))?;
                if same_bytes == leaf.len_bytes {
                    set(unchanged, leaf.leaf);
                }
                // Nobody looks at what is behind a difference.
                if same_bytes < leaf.len_bytes {
                    monitor.advance(leaf.len_bytes - same_bytes)?;
                }
            }
            Ok(())
        },
    )
}

/// ReadOptions many bytes at an offset of the file are the array's, up to the first piece that differs; what cannot be read
/// there is not the same.
fn same_len_bytes(array: &Array, file: &dyn Blob, offset_bytes: u64, monitor: &Monitor) -> Result<u64> {
    let len_bytes = array.len_bytes();
    let piece_len = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(PIECE_LEN_BYTES);
    let mut theirs = work_space(piece_len as u64)?;
    let mut copied = work_space(if array.c_order_bytes().is_some() { 0 } else { piece_len as u64 })?;
    let mut done = 0_u64;
    while done < len_bytes {
        let len = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(piece_len);
        let ours = match array.c_order_bytes() {
            Some(bytes) => bytes.get(done as usize..done as usize + len).unwrap_or_default(),
            None => {
                let piece = copied.get_mut(..len).unwrap_or_default();
                array.copy_c_order(done, piece)?;
                piece
            }
        };
        let theirs = theirs.get_mut(..len).unwrap_or_default();
        if file.read(offset_bytes.saturating_add(done), theirs, ReadPath::Cached).is_err() || theirs != ours {
            // Until it is written, others are read.
            array.release();
            break;
        }
        done += len as u64;
        monitor.done(Stage::Compare, len as u64)?;
    }
    Ok(done)
}

/// Gives the plan its files: what changed first, unless the first file of the base is linked; then other links; then
/// what is gathered. `old_files` are those in which nothing changed.
fn arrange(
    plan: &mut Plan<'_>,
    old_files: Vec<OldFile>,
    is_unchanged: &dyn Fn(u32) -> bool,
    structure: &str,
    header_len_max_bytes: usize,
) -> Vec<Origin> {
    let (first, mut links): (Vec<_>, Vec<_>) = old_files
        .into_iter()
        .partition(|old| old.at == 0 && old.would_be_written(plan, structure_in_header(structure)));
    links.retain(|old| !old.leaves.is_empty() && old.would_be_written(plan, None));
    links.sort_by_key(|old| (Reverse(old.record.len_bytes), old.at));
    links.truncate(LINKS_MAX);
    links.sort_by_key(|old| old.at);

    let mut is_linked = vec![false; plan.leaves.len()];
    for leaf in first.iter().chain(&links).flat_map(|old| &old.leaves) {
        if let Some(is_linked) = is_linked.get_mut(leaf.leaf as usize) {
            *is_linked = true;
        }
    }
    let mut to_write = plan.raw_order();
    to_write.retain(|&leaf| is_linked.get(leaf as usize) == Some(&false));
    let len_bytes = |leaf: u32| plan.leaves.get(leaf as usize).map_or(0, |leaf| leaf.len_bytes);
    let is_small = |leaf: u32| len_bytes(leaf) < SMALL_LEAF_LEN_BYTES;
    let unchanged = to_write.iter().copied().filter(|&leaf| is_unchanged(leaf));
    let gathers_small =
        unchanged.filter(|&leaf| is_small(leaf)).map(len_bytes).sum::<u64>() >= GATHERED_LEN_MIN_BYTES;
    let is_gathered = |leaf: u32| is_unchanged(leaf) && (gathers_small || !is_small(leaf));
    let those = |which: &dyn Fn(u32) -> bool| -> Vec<Vec<u32>> {
        let leaves: Vec<u32> = to_write.iter().copied().filter(|&leaf| which(leaf)).collect();
        plan.split_by_header(&leaves, header_len_max_bytes)
    };
    let changed = those(&|leaf| !is_gathered(leaf));
    let gathered = [
        those(&|leaf| is_gathered(leaf) && !is_small(leaf)),
        those(&|leaf| is_gathered(leaf) && is_small(leaf)),
    ];

    // The first file has the structure: it is there even if it has nothing else.
    let needs_changed = first.is_empty();
    let files = first
        .into_iter()
        .map(OldFile::linked)
        .chain(
            changed
                .into_iter()
                .filter(|file| needs_changed || !file.is_empty())
                .map(|file| (file, Origin::Written)),
        )
        .chain(links.into_iter().map(OldFile::linked))
        .chain(
            gathered
                .into_iter()
                .flatten()
                .filter(|file| !file.is_empty())
                .map(|file| (file, Origin::Gathered)),
        );
    let (raw_files, origins) = files.unzip();
    plan.raw_files = raw_files;
    origins
}

impl Link {
    /// Gives the file its other name, as `name` of the new checkpoint; its record there. `None` where that cannot be
    /// done, or where something else is at its path by now.
    ///
    /// # Errors
    /// `Cancelled`; `InvalidArgument` for a name that leads out of the folder.
    pub fn place(&self, name: &str, staged: &dyn Publication) -> Result<Option<DataFile>> {
        let is_linked = staged.reuse(name, &self.source, &*self.opened)?;
        Ok(is_linked.then(|| DataFile { name: name.to_owned(), ..self.record.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::writer::write_split;
    use super::*;
    use crate::array::{Dtype, Shape};
    use crate::commit::Staged;
    use crate::engine::SaveOptions;
    use crate::store::{LocalStore, Store};
    use crate::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};

    fn tree(fills: &[u8]) -> Tree<Leaf> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for (at, &fill) in fills.iter().enumerate() {
            let shape = Shape::new(vec![200]).unwrap();
            let array = Array::new(Dtype::UInt8, shape, vec![fill; 200].into()).unwrap();
            build.leaf(Key::dict(format!("leaf_{at:03}")), Leaf::array(array)).unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    }

    /// Saves with headers of about a dozen leaves; the names of files and whether they are linked.
    fn save(folder: &Path, step: usize, fills: &[u8]) -> Vec<(String, bool)> {
        use std::os::unix::fs::MetadataExt;
        let path = folder.join(step.to_string());
        let base = step.checked_sub(1).map(|step| Location::local(folder.join(step.to_string())));
        let options = SaveOptions { base, ..SaveOptions::default() };
        let staged = Staged::create(&path, false).unwrap();
        write_split(&tree(fills), &staged, &options, 2000).unwrap();
        staged.commit().unwrap();
        assert!(crate::verify(&path).unwrap().is_ok());
        let loaded: Tree<Leaf> = crate::load(&path).unwrap();
        for (leaf, &fill) in loaded.leaves().iter().zip(fills) {
            assert!(leaf.as_array().unwrap().to_c_order().unwrap().iter().all(|&byte| byte == fill));
        }
        let mut files: Vec<(String, bool)> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "safetensors"))
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().nlink() > 1))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn files_that_were_split_are_linked_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut fills: Vec<u8> = (0..40).collect();
        assert_eq!(save(folder.path(), 0, &fills).len(), 4);
        let all = save(folder.path(), 1, &fills);
        assert!(all.len() == 4 && all.iter().all(|(_, is_linked)| *is_linked), "{all:?}");
        // In the second file: the first with the structure and two others are linked, one leaf is written, and what
        // else was in its file is gathered.
        fills[15] += 100;
        let most = save(folder.path(), 2, &fills);
        let linked: Vec<bool> = most.iter().map(|(_, is_linked)| *is_linked).collect();
        assert_eq!(linked, [true, false, true, true, false], "{most:?}");
        fills[15] += 1;
        let linked: Vec<bool> =
            save(folder.path(), 3, &fills).into_iter().map(|(_, is_linked)| is_linked).collect();
        assert_eq!(linked, [true, false, true, true, true]);
    }

    #[test]
    fn the_number_of_links_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let fills = vec![1; 12 * (LINKS_MAX + 20)];
        assert!(save(folder.path(), 0, &fills).len() > LINKS_MAX + 1);
        let linked = save(folder.path(), 1, &fills).into_iter().filter(|(_, is_linked)| *is_linked).count();
        assert_eq!(linked, LINKS_MAX + 1, "the first, and so many more");
    }

    #[test]
    fn a_base_that_is_replaced_stays_the_one_that_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (ours, theirs) = ([1; 20], [2; 20]);
        save(folder.path(), 0, &ours);
        let before = fs::read(path("0/model-00001-of-00002.safetensors")).unwrap();
        let base = Base::open(&Location::local(path("0"))).unwrap();
        fs::rename(path("0"), path("aside")).unwrap();
        save(folder.path(), 0, &theirs);
        let (tree, options) = (tree(&theirs), SaveOptions::default());
        let plan = Plan::new(&tree, &options, 2000).unwrap();
        let files = base.match_leaves(&plan);
        assert_eq!(files.len(), 2);
        let mut found = vec![0; before.len()];
        files[0].opened.read(0, &mut found, ReadPath::Cached).unwrap();
        assert!(found == before, "a file of another checkpoint under the record of the base");
        // Its name leads elsewhere by now: it cannot be linked.
        let staged = Staged::create(&path("next"), false).unwrap();
        assert!(!staged.link("model", &files[0].source, &*files[0].opened).unwrap());
    }

    #[test]
    fn a_file_that_was_replaced_meanwhile_is_not_linked() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("model.safetensors");
        fs::write(&source, b"old").unwrap();
        let opened = LocalStore::new(folder.path()).open(b"model.safetensors").unwrap().unwrap();
        let at = Location::local(&source);
        let staged = Staged::create(&folder.path().join("step"), false).unwrap();
        assert!(staged.link("a", &at, &*opened).unwrap());
        fs::remove_file(&source).unwrap();
        assert!(!staged.link("b", &at, &*opened).unwrap());
        fs::write(&source, b"new").unwrap();
        assert!(!staged.link("c", &at, &*opened).unwrap());
        assert_eq!(staged.linked_bytes(), 3);
        let names: Vec<_> =
            fs::read_dir(staged.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a"], "nothing is left of the others");
        assert_eq!(fs::read(&source).unwrap(), b"new");
    }
}
