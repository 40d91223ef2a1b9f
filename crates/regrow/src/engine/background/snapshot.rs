//! The snapshot of a background save: the values of the tree at the return of the call.
//!
//! The snapshot references some leaves and copies the others: see `CopyLeaves`. The copies are in
//! one map; only a sharded leaf gets a buffer for each of its shards.
//!
//! ```text
//! leaves to copy ──in pieces of 8 MiB──▶ a few threads ──▶ | leaf 0 | leaf 3 | leaf 4 ...|   one anonymous map
//!                                                            64-byte aligned                 │ when the last leaf
//!                                              pool of at most 2 maps ◀──────────────────────┘ is dropped
//! ```
//!
//! New memory is filled at 1 to 2 GB/s, because the kernel provides it page by page. Memory that
//! was used before is filled at 20 GB/s. So the maps return to a pool, and from the second save on
//! a snapshot costs a `memcpy`.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

use super::super::BUDGET_DEFAULT_BYTES;
use crate::array::{Array, Dtype, Shape, Shard, Shards};
use crate::bytes::limits::allocate;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::text::counted;
use crate::threads::pool;
use crate::tree::{Leaf, LeafData, Tree};

/// Each copy begins at a multiple of this.
const ALIGN_BYTES: usize = 64;

/// Bytes that one thread copies at once; a multiple of every element's size.
const PIECE_LEN_BYTES: usize = 8 << 20;

/// If all copies together have fewer bytes, the calling thread makes them alone.
const PARALLEL_FROM_BYTES: usize = 4 << 20;

/// The pool keeps two maps: for the running save and for the next save.
const POOL_LEN: usize = 2;

/// Maps of earlier snapshots, for reuse.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<MmapMut>>);

impl Pool {
    fn take(&self, len_bytes: usize) -> io::Result<MmapMut> {
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let best = maps
            .iter()
            .enumerate()
            .filter(|(_, map)| map.len() >= len_bytes)
            .min_by_key(|(_, map)| map.len());
        if let Some((at, _)) = best {
            return Ok(maps.swap_remove(at));
        }
        // The maps are too small, and trees rarely shrink: free all of them.
        maps.clear();
        drop(maps);
        MmapOptions::new().len(len_bytes).map_anon()
    }

    fn give_back(&self, map: MmapMut) {
        // Only try the lock: in a forked child process, the lock may stay locked for ever.
        if let Ok(mut maps) = self.0.try_lock()
            && maps.len() < POOL_LEN
        {
            maps.push(map);
        }
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A map that holds copies of leaves. The copies are slices of the map. When the last copy is
/// dropped, the map returns to its pool.
struct Filled {
    map: Option<MmapMut>,
    pool: Weak<Pool>,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        if let (Some(map), Some(pool)) = (self.map.take(), self.pool.upgrade()) {
            pool.give_back(map);
        }
    }
}

/// A leaf's place in the map.
struct Place {
    leaf: usize,
    dtype: Dtype,
    shape: Shape,
    range: Range<usize>,
}

/// A piece of a leaf that is to be copied.
struct Piece<'a> {
    leaf: usize,
    /// The copying thread drops the array: dropping many arrays takes as long as copying them.
    array: Array,
    offset: usize,
    out: &'a mut [u8],
}

fn copy_shards(shards: &Shards) -> Result<(Array, u64)> {
    let mut len_bytes = 0;
    let copy = |shard: &Shard| {
        let mut bytes = allocate(shard.array.len_bytes())?;
        shard.array.copy_c_order(0, &mut bytes)?;
        len_bytes += bytes.len() as u64;
        let array = Array::new(shards.dtype(), shard.region.shape(), bytes.into())?;
        Ok(Shard { region: shard.region.clone(), array })
    };
    let copies = shards.held().iter().map(copy).collect::<Result<Vec<_>>>()?;
    let (shape, chunk_shape) = (shards.shape().clone(), shards.chunk_shape().clone());
    Ok((Array::sharded(shards.dtype(), shape, chunk_shape, copies, shards.is_replicated())?, len_bytes))
}

pub(super) fn snapshot(
    tree: Tree<Leaf>,
    pool: &Arc<Pool>,
    copied: impl Fn(usize, &Leaf) -> bool,
) -> Result<(Tree<Leaf>, u64)> {
    let mut tree = tree;
    let (mut places, mut arrays) = (Vec::new(), Vec::new());
    let mut end = 0_usize;
    let mut shard_bytes = 0;
    for (leaf, data) in tree.leaves_mut().iter_mut().enumerate() {
        let LeafData::Array(array) = &data.data else { continue };
        if array.len_bytes() == 0 || !copied(leaf, data) {
            continue;
        }
        if let Some(shards) = array.shards() {
            let (copy, len_bytes) = copy_shards(shards)?;
            shard_bytes += len_bytes;
            data.data = LeafData::Array(copy);
            continue;
        }
        let (dtype, shape) = (array.dtype(), array.shape().clone());
        let next = usize::try_from(array.len_bytes()).ok().and_then(|len| end.checked_add(len));
        let next = next.filter(|&next| next < isize::MAX as usize - ALIGN_BYTES).ok_or_else(too_large)?;
        places.push(Place { leaf, dtype, shape, range: end..next });
        end = next.next_multiple_of(ALIGN_BYTES);
        // The leaf is absent until its copy is ready.
        if let LeafData::Array(array) = std::mem::replace(&mut data.data, LeafData::Absent) {
            arrays.push(array);
        }
    }
    if places.is_empty() {
        return Ok((tree, shard_bytes));
    }
    let copied_bytes = places.iter().map(|place| place.range.len() as u64).sum::<u64>() + shard_bytes;
    let mut map = pool.take(end).map_err(|error| no_memory(end, &error))?;
    fill(&tree, &places, arrays, &mut map)?;
    let filled = Bytes::from_owner(Filled { map: Some(map), pool: Arc::downgrade(pool) });
    let leaves = tree.leaves_mut();
    for Place { leaf, dtype, shape, range } in places {
        if let Some(leaf) = leaves.get_mut(leaf) {
            leaf.data = LeafData::Array(Array::new(dtype, shape, filled.slice(range))?);
        }
    }
    Ok((tree, copied_bytes))
}

fn fill(tree: &Tree<Leaf>, places: &[Place], arrays: Vec<Array>, map: &mut [u8]) -> Result<()> {
    let mut pieces = Vec::with_capacity(arrays.len());
    let (mut rest, mut at) = (map, 0);
    for (Place { leaf, range, .. }, array) in places.iter().zip(arrays) {
        let after = std::mem::take(&mut rest).split_at_mut(range.start - at).1;
        let (mut out, after) = after.split_at_mut(range.len());
        (rest, at) = (after, range.end);
        let (leaf, mut offset) = (*leaf, 0);
        while out.len() > PIECE_LEN_BYTES {
            let (piece, later) = out.split_at_mut(PIECE_LEN_BYTES);
            pieces.push(Piece { leaf, array: array.clone(), offset, out: piece });
            offset += PIECE_LEN_BYTES;
            out = later;
        }
        pieces.push(Piece { leaf, array, offset, out });
    }
    let copy = |piece: Piece<'_>| {
        let Piece { leaf, array, offset, out } = piece;
        let copied = match array.c_order_bytes().and_then(|bytes| bytes.get(offset..offset + out.len())) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => array.copy_c_order(offset as u64, out),
        };
        copied.map_err(|error| name_leaf(tree, leaf, error))
    };
    if at < PARALLEL_FROM_BYTES {
        return pieces.into_iter().try_for_each(copy);
    }
    // Put small neighbours into one batch, because each batch has a fixed cost in the queue.
    let mut batches: Vec<Vec<Piece<'_>>> = Vec::new();
    let mut batch_len = PIECE_LEN_BYTES;
    for piece in pieces {
        if batch_len + piece.out.len() > PIECE_LEN_BYTES {
            batches.push(Vec::new());
            batch_len = 0;
        }
        batch_len += piece.out.len();
        if let Some(batch) = batches.last_mut() {
            batch.push(piece);
        }
    }
    pool::for_each_parallel(
        pool::thread_count(),
        batches,
        BUDGET_DEFAULT_BYTES,
        |_| 0,
        |batch| batch.into_iter().try_for_each(copy),
    )
}

pub(super) fn fingerprints(tree: &Tree<Leaf>) -> Result<Vec<Option<u32>>> {
    let of = |(at, leaf): (usize, &Leaf)| {
        let LeafData::Array(array) = &leaf.data else { return Ok(None) };
        let mut sum = crate::bytes::checksum::Crc32c::new();
        let done = array.for_each_piece(PIECE_LEN_BYTES, |piece| {
            sum.update(piece);
            Ok(())
        });
        done.map_err(|error| name_leaf(tree, at, error))?;
        Ok(Some(sum.value()))
    };
    tree.leaves().iter().enumerate().map(of).collect()
}

pub(super) fn check_unchanged(tree: &Tree<Leaf>, before: &[Option<u32>]) -> Result<()> {
    let now = fingerprints(tree)?;
    let changed: Vec<usize> = before
        .iter()
        .zip(&now)
        .enumerate()
        .filter(|(_, (before, now))| before != now)
        .map(|(leaf, _)| leaf)
        .collect();
    let Some(&first) = changed.first() else { return Ok(()) };
    let paths = tree.paths();
    let names: Vec<String> =
        changed.iter().filter_map(|&leaf| paths.get(leaf)).map(ToString::to_string).collect();
    let error = Error::new(
        ErrorKind::SourceChanged,
        format!(
            "{} while being saved:\n    {}",
            counted(names.len(), "leaf was changed", "leaves were changed"),
            names.join("\n    ")
        ),
    );
    Err(name_leaf(tree, first, error)
        .help("nothing was saved: copy these leaves, or do not change them until the save ends"))
}

fn name_leaf(tree: &Tree<Leaf>, leaf: usize, error: Error) -> Error {
    match tree.paths().get(leaf) {
        Some(path) => Err::<(), _>(error).at_leaf(path).err().unwrap_or_else(too_large),
        None => error,
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::Limit, "the leaves to copy are larger than any memory")
}

fn no_memory(len_bytes: usize, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot get {len_bytes} bytes of memory for the snapshot: {error}"))
        .help("save with regrow.save, which needs no snapshot")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tree::{Key, LeafKind, NodeKind, TreeBuilder};

    fn tree_of(arrays: Vec<Array>) -> Tree<Leaf> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::List).unwrap();
        for (at, array) in arrays.into_iter().enumerate() {
            let leaf = Leaf { kind: LeafKind::NumpyArray, data: LeafData::Array(array), sharding: None };
            build.leaf(Key::Index(at), leaf).unwrap();
        }
        build.close().unwrap();
        build.finish().unwrap()
    }

    fn bytes_of(tree: &Tree<Leaf>, leaf: usize) -> Bytes {
        match &tree.leaves()[leaf].data {
            LeafData::Array(array) => array.to_c_order().unwrap(),
            _ => panic!("no array"),
        }
    }

    fn array_of(len: usize, seed: u8, transposed: bool) -> Array {
        let data: Vec<u8> = (0..len * 4).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        let shape = if len.is_multiple_of(3) { vec![3, len as u64 / 3] } else { vec![len as u64] };
        let array = Array::new(Dtype::Float32, Shape::new(shape).unwrap(), data.into()).unwrap();
        if transposed { array.transposed().unwrap() } else { array }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn copies_hold_what_the_leaves_held(
            leaves in prop::collection::vec((prop_oneof![0_usize..50, Just(3_000_000)], any::<u8>(), any::<bool>(), any::<bool>()), 0..6),
        ) {
            let pool = Arc::new(Pool::default());
            let tree = tree_of(leaves.iter().map(|&(len, seed, transposed, _)| array_of(len, seed, transposed)).collect());
            let (copy, copied_bytes) = snapshot(tree.clone(), &pool, |leaf, _| leaves[leaf].3).unwrap();
            let chosen = leaves.iter().filter(|leaf| leaf.3);
            prop_assert_eq!(copied_bytes, chosen.map(|leaf| leaf.0 as u64 * 4).sum::<u64>());
            for (leaf, &(len, .., is_copied)) in leaves.iter().enumerate() {
                prop_assert!(bytes_of(&tree, leaf) == bytes_of(&copy, leaf));
                if is_copied && len > 0 {
                    prop_assert_ne!(bytes_of(&copy, leaf).as_ptr(), bytes_of(&tree, leaf).as_ptr());
                    prop_assert_eq!(bytes_of(&copy, leaf).as_ptr().addr() % ALIGN_BYTES, 0);
                }
            }
        }
    }

    #[test]
    fn memory_is_used_again_and_given_back_only_by_the_last_leaf() {
        let pool = Arc::new(Pool::default());
        let count = || pool.0.lock().unwrap().len();
        let (first, _) = snapshot(tree_of(vec![array_of(900, 1, false); 2]), &pool, |_, _| true).unwrap();
        let address = bytes_of(&first, 0).as_ptr();
        let kept = bytes_of(&first, 1);
        drop(first);
        assert_eq!(count(), 0, "a leaf is still held");
        drop(kept);
        assert_eq!(count(), 1);
        let (second, _) = snapshot(tree_of(vec![array_of(900, 2, false)]), &pool, |_, _| true).unwrap();
        assert_eq!((bytes_of(&second, 0).as_ptr(), count()), (address, 0));
        drop(second);
        let (larger, _) = snapshot(tree_of(vec![array_of(90_000, 2, false)]), &pool, |_, _| true).unwrap();
        assert_eq!(count(), 0, "what is too small is not kept for ever");
        drop(larger);
        pool.clear();
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_changed_leaf_is_named() {
        let tree = tree_of(vec![array_of(10, 1, false), array_of(10, 2, true), array_of(10, 3, false)]);
        let before = fingerprints(&tree).unwrap();
        check_unchanged(&tree, &before).unwrap();
        let other = tree_of(vec![array_of(10, 1, false), array_of(10, 9, true), array_of(10, 3, false)]);
        let error = check_unchanged(&other, &before).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceChanged);
        assert_eq!(error.place().leaf.as_ref().unwrap().to_string(), "1");
    }
}
