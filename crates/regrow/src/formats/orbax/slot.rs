//! A leaf of an opened checkpoint: what is known of it, and where its data comes from.

use std::sync::Arc;

use bytes::Bytes;

use super::arrays::StoredArray;

use crate::array::{Dtype, Region, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{Key, KeyPath, LeafInfo, LeafKind, Node, NodeKind, Scalar, Tree, TreeBuilder};

/// A leaf with the source of its data.
#[derive(Debug)]
pub(super) struct Slot {
    pub info: LeafInfo,
    pub source: Source,
}

/// Where the data of a leaf comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A zarr array, chunk by chunk.
    Zarr(StoredArray),
    /// Bytes in C order inside a file that has been read or mapped, in one piece or several.
    Pieces(Vec<Bytes>),
    Text(Arc<str>),
    /// A placeholder, or a kind of leaf that has no known form.
    Absent,
}

impl Slot {
    /// Text.
    pub fn text(name: &str, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let shape = Shape::new(vec![text.len() as u64]).unwrap_or_default();
        Self { info: info(LeafKind::Str, Dtype::UInt8, shape, name, "text"), source: Source::Text(text) }
    }

    /// A leaf without data.
    pub fn absent(name: &str, kind: LeafKind) -> Self {
        Self {
            info: info(kind, Dtype::UInt8, Shape::new(vec![0]).unwrap_or_default(), name, "none"),
            source: Source::Absent,
        }
    }

    /// A Python number.
    pub fn scalar(name: &str, value: Scalar, coding: &str) -> Self {
        let (dtype, bytes) = value.to_element();
        Self {
            info: info(LeafKind::Scalar, dtype, Shape::scalar(), name, coding),
            source: Source::Pieces(vec![bytes.into()]),
        }
    }

    /// An array whose C-order bytes are at hand.
    ///
    /// # Errors
    /// `Corrupt` if they are not as long as dtype and shape say.
    pub fn pieces(
        name: &str,
        kind: LeafKind,
        dtype: Dtype,
        shape: Shape,
        pieces: Vec<Bytes>,
    ) -> Result<Self> {
        let expected = shape.len_bytes(dtype)?;
        let found: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if found != expected {
            return Err(Error::corrupt(format!(
                "an array of shape {shape} and dtype {dtype} has another size"
            ))
            .expected(format_args!("{expected} bytes"), found));
        }
        Ok(Self { info: info(kind, dtype, shape, name, "msgpack"), source: Source::Pieces(pieces) })
    }
}

fn info(kind: LeafKind, dtype: Dtype, shape: Shape, name: &str, coding: &str) -> LeafInfo {
    LeafInfo {
        kind,
        dtype,
        shape,
        name: name.into(),
        chunk_shape: None,
        write_shape: None,
        sharding: None,
        coding: coding.into(),
    }
}

/// Copies `region` of an array that lies in C order in `pieces`, one after another, into `out`.
///
/// # Errors
/// `InvalidArgument` if the region leaves the array or `out` has another size; `Corrupt` if bytes are missing.
pub(super) fn copy_pieces(
    pieces: &[Bytes],
    dtype: Dtype,
    shape: &Shape,
    region: &Region,
    out: &mut [u8],
) -> Result<()> {
    if !region.is_inside(shape) {
        return Err(Error::invalid(format!("region {region} leaves an array of shape {shape}")));
    }
    if region.shape().len_bytes(dtype)? != out.len() as u64 {
        return Err(Error::invalid("the destination of a region has another size")
            .expected(region.shape().len_bytes(dtype)?, out.len()));
    }
    if out.is_empty() {
        return Ok(());
    }
    let size = dtype.size_bytes() as u64;
    let strides = shape.strides_elements();
    // Trailing axes that are taken whole join into one run.
    let mut run_axes = shape.rank();
    let mut run = 1_u64;
    while let Some(axis) = run_axes.checked_sub(1) {
        run_axes = axis;
        let (len, dim) = (at(region.lens(), axis), at(shape.dims(), axis));
        run *= len;
        if len != dim {
            break;
        }
    }
    let run_bytes = (run * size) as usize;
    let mut index = vec![0_u64; run_axes];
    let base: u64 = region.starts().iter().zip(&strides).map(|(start, stride)| start * stride).sum();
    for part in out.chunks_exact_mut(run_bytes) {
        let offset: u64 = base + index.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<u64>();
        copy_span(pieces, offset * size, part)?;
        for (i, len) in index.iter_mut().zip(region.lens()).rev() {
            *i += 1;
            if *i < *len {
                break;
            }
            *i = 0;
        }
    }
    Ok(())
}

fn at(values: &[u64], axis: usize) -> u64 {
    values.get(axis).copied().unwrap_or(1)
}

fn copy_span(pieces: &[Bytes], offset: u64, mut out: &mut [u8]) -> Result<()> {
    let mut offset = offset as usize;
    for piece in pieces {
        if offset >= piece.len() {
            offset -= piece.len();
            continue;
        }
        let from = piece.get(offset..).unwrap_or_default();
        let len = from.len().min(out.len());
        let (now, later) = out.split_at_mut(len);
        now.copy_from_slice(from.get(..len).unwrap_or_default());
        out = later;
        offset = 0;
        if out.is_empty() {
            return Ok(());
        }
    }
    Err(Error::corrupt("an array ends before its shape does"))
}

/// The key path of one leaf; O(nodes), whatever their depth.
pub(super) fn leaf_path<L>(tree: &Tree<L>, leaf: usize) -> KeyPath {
    let mut path = KeyPath::root();
    let mut open: Vec<usize> = Vec::new();
    let mut leaves_before = 0;
    for (i, node) in tree.nodes().iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
            path.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if i > 0 {
            path.push(node.key.clone());
        }
        if node.kind == NodeKind::Leaf {
            if leaves_before == leaf {
                return path;
            }
            leaves_before += 1;
        }
        if node.child_count > 0 {
            open.push(node.child_count);
        } else {
            path.pop();
        }
    }
    KeyPath::root()
}

/// Adds a whole tree as a child of the container that is open.
///
/// # Errors
/// `Limit` if the tree gets too deep.
pub(super) fn graft<L>(build: &mut TreeBuilder<L>, key: Key, tree: Tree<L>) -> Result<()> {
    let nodes: Vec<Node> = tree.nodes().to_vec();
    let mut leaves = tree.into_leaves().into_iter();
    let mut open: Vec<usize> = Vec::new();
    let mut root_key = Some(key);
    for node in nodes {
        let key = root_key.take().unwrap_or(node.key);
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if node.kind == NodeKind::Leaf {
            let leaf = leaves
                .next()
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a tree has fewer leaves than leaf nodes"))?;
            build.leaf(key, leaf)?;
        } else {
            build.open(key, node.kind)?;
            open.push(node.child_count);
        }
        while open.last() == Some(&0) {
            open.pop();
            build.close()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_region_of_pieces_is_the_region_of_the_whole(
            dims in prop::collection::vec(1_u64..5, 0..4),
            cuts in prop::collection::vec(0_usize..200, 0..4),
            picks in prop::collection::vec((0_u64..5, 1_u64..5), 4),
        ) {
            let shape = Shape::new(dims.clone()).unwrap();
            let data: Vec<u8> = (0..shape.len_bytes(Dtype::Int16).unwrap()).map(|i| i as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.extend([0, data.len()]);
            cuts.sort_unstable();
            let whole = Bytes::from(data);
            let pieces: Vec<Bytes> = cuts.windows(2).map(|pair| whole.slice(pair[0]..pair[1])).collect();
            let starts: Vec<u64> = dims.iter().zip(&picks).map(|(&dim, pick)| pick.0 % dim).collect();
            let lens: Vec<u64> =
                dims.iter().zip(&picks).zip(&starts).map(|((&dim, pick), &start)| pick.1.min(dim - start)).collect();
            let region = Region::new(starts.clone(), lens.clone()).unwrap();
            let mut out = vec![0; region.shape().len_bytes(Dtype::Int16).unwrap() as usize];
            copy_pieces(&pieces, Dtype::Int16, &shape, &region, &mut out).unwrap();
            let strides = shape.strides_elements();
            for (n, pair) in out.chunks(2).enumerate() {
                let mut left = n as u64;
                let mut element = 0;
                for axis in (0..dims.len()).rev() {
                    element += (starts[axis] + left % lens[axis]) * strides[axis];
                    left /= lens[axis];
                }
                prop_assert_eq!(pair, &whole[element as usize * 2..element as usize * 2 + 2]);
            }
        }
    }

    #[test]
    fn grafts_keep_every_node() {
        let mut inner = TreeBuilder::new();
        inner.open(Key::Index(0), NodeKind::Tuple).unwrap();
        inner.open(Key::Index(0), NodeKind::None).unwrap();
        inner.close().unwrap();
        inner.leaf(Key::Index(1), 'x').unwrap();
        inner.close().unwrap();
        let mut outer = TreeBuilder::new();
        outer.open(Key::Index(0), NodeKind::Dict).unwrap();
        graft(&mut outer, Key::dict("a"), inner.finish().unwrap()).unwrap();
        graft(&mut outer, Key::dict("b"), Tree::single('y')).unwrap();
        outer.close().unwrap();
        let tree = outer.finish().unwrap();
        for (leaf, path) in tree.paths().iter().enumerate() {
            assert_eq!(leaf_path(&tree, leaf), *path);
        }
        let all: Vec<String> =
            tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect();
        assert_eq!(all, [".:dict", "a:tuple", "a/0:none", "a/1:leaf", "b:leaf"]);
    }
}
