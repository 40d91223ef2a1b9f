//! Checkpoints that read through another opened checkpoint: a subtree, the same leaves under other
//! key paths, or only the intact leaves.
//!
//! ```text
//! leaf of the view                  0    1    2 ...
//! leaf of the opened checkpoint     7    9    -        -: a placeholder without data
//! ```
//!
//! Making a view walks the tree, and reads no data.

use std::path::PathBuf;

use super::Checkpoint;
use super::convert::{ConvertOptions, select};
use crate::array::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{Description, Reader, Rest, Sparse, Standing};
use crate::reads::Source;
use crate::tree::{LeafInfo, Node, NodeKind, Tree};

/// A reader that shows leaves of another checkpoint in another tree.
#[derive(Debug)]
pub(super) struct View {
    whole: Checkpoint,
    tree: Tree<LeafInfo>,
    from: Vec<Option<usize>>,
}

impl View {
    /// A view of `whole`. `from` has the position in `whole`, or `None`, for each leaf of `tree`.
    pub(super) fn new(whole: Checkpoint, tree: Tree<LeafInfo>, from: Vec<Option<usize>>) -> Self {
        Self { whole, tree, from }
    }

    fn source_of(&self, leaf: usize) -> Result<Option<usize>> {
        self.from.get(leaf).copied().ok_or_else(|| Error::invalid("the leaf does not exist"))
    }
}

impl Reader for View {
    fn description(&self) -> &Description {
        self.whole.description()
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        match self.source_of(leaf)? {
            Some(leaf) => self.whole.reader().source(leaf),
            None => Ok(Source::Nothing),
        }
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        match self.source_of(leaf)? {
            Some(leaf) => self.whole.reader().read_region(leaf, region, out),
            None => Err(Error::invalid("a placeholder has no data")),
        }
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        match self.source_of(leaf)? {
            Some(leaf) => self.whole.reader().holders(leaf),
            None => Ok(Vec::new()),
        }
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        match self.source_of(leaf)? {
            Some(leaf) => self.whole.reader().sparse(leaf),
            None => Ok(None),
        }
    }

    fn read_order(&self) -> Vec<usize> {
        let mut here = vec![None; self.whole.tree().len()];
        for (leaf, from) in self.from.iter().enumerate() {
            if let Some(here) = from.and_then(|from| here.get_mut(from)) {
                *here = Some(leaf);
            }
        }
        let order = self.whole.reader().read_order();
        let read = order.into_iter().filter_map(|leaf| here.get(leaf).copied().flatten());
        let without_data = self.from.iter().enumerate().filter(|(_, from)| from.is_none());
        read.chain(without_data.map(|(leaf, _)| leaf)).collect()
    }

    fn check_rest(&self) -> Result<Rest> {
        self.whole.reader().check_rest()
    }

    fn standing(&self) -> Standing<'_> {
        self.whole.reader().standing()
    }
}

impl Checkpoint {
    /// The subtree at a printed key path, such as `params/dense`, as a checkpoint. The subtree
    /// may be a single leaf. Metadata, step and notes are those of the whole checkpoint.
    ///
    /// # Errors
    /// `NotFound` with the nearest key paths; `InvalidArgument` if another key path prints as the
    /// same text.
    pub fn at(&self, path: &str) -> Result<Self> {
        let nodes = self.tree().nodes();
        let mut found = None;
        let mut leaf = 0;
        for (position, (key_path, node)) in self.tree().walk().enumerate() {
            if !key_path.is_root() && (key_path.to_string() == path || key_path.join("/") == path) {
                if found.is_some() {
                    return Err(Error::invalid(format!(
                        "several subtrees have the printed key path {path:?}"
                    ))
                    .in_file(self.path())
                    .help("load the subtree above them"));
                }
                found = Some((position, leaf));
            }
            leaf += usize::from(node.kind == NodeKind::Leaf);
        }
        let Some((position, first)) = found else {
            return Err(Error::new(ErrorKind::NotFound, format!("no subtree has the key path {path:?}"))
                .in_file(self.path())
                .help(format!("the key paths are {}", self.children_near(path).join(", "))));
        };
        let below = nodes.get(position..).unwrap_or_default();
        let nodes: Vec<Node> = below.iter().take(subtree_len(below)).cloned().collect();
        let count = nodes.iter().filter(|node| node.kind == NodeKind::Leaf).count();
        let infos: Vec<LeafInfo> = self.tree().leaves().iter().skip(first).take(count).cloned().collect();
        let from = (first..first + count).map(Some).collect();
        Ok(self.read_by(|whole| Box::new(View::new(whole, Tree::from_parts(nodes, infos), from))))
    }

    /// The checkpoint with its leaves renamed, transposed and reshaped, as a conversion would write
    /// them. Other rules than [`rename`](ConvertOptions::rename),
    /// [`transpose`](ConvertOptions::transpose) and [`reshape`](ConvertOptions::reshape) are
    /// ignored. Leaves that are only renamed are read as fast as before.
    ///
    /// # Errors
    /// `NameCollision` if two leaves get the same key path; `InvalidArgument` for a rule that
    /// matches nothing or cannot be applied; `NotFound` for patterns that match nothing.
    pub fn transformed(&self, rules: &ConvertOptions) -> Result<Self> {
        let ConvertOptions { rename, transpose, reshape, .. } = rules.clone();
        let rules = ConvertOptions { rename, transpose, reshape, ..ConvertOptions::default() };
        if !(rules.transpose.is_empty() && rules.reshape.is_empty()) {
            return Self::of_tree(self.plan_convert(&rules)?.into_tree());
        }
        let positions = select(self, &rules)?;
        let tree = positions.try_map(|_, &leaf| self.info(leaf).cloned())?;
        let from = positions.into_leaves().into_iter().map(Some).collect();
        Ok(self.read_by(|whole| Box::new(View::new(whole, tree, from))))
    }

    /// Key paths for the help of an error: the children of the deepest container on the way to
    /// `path`.
    fn children_near(&self, path: &str) -> Vec<String> {
        const NAMED_MAX: usize = 8;
        let mut above = path;
        loop {
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
            let is_child = |printed: &String| match above.is_empty() {
                true => !printed.contains('/'),
                false => printed
                    .strip_prefix(above)
                    .and_then(|rest| rest.strip_prefix('/'))
                    .is_some_and(|rest| !rest.contains('/')),
            };
            let printed =
                self.tree().walk().filter(|(path, _)| !path.is_root()).map(|(path, _)| path.to_string());
            let children: Vec<String> = printed.filter(is_child).take(NAMED_MAX).collect();
            if !children.is_empty() || above.is_empty() {
                return children;
            }
        }
    }
}

/// The number of nodes in the subtree of the first node. The nodes are in preorder.
fn subtree_len(nodes: &[Node]) -> usize {
    let mut open = 1;
    for (at, node) in nodes.iter().enumerate() {
        open += node.child_count;
        open -= 1;
        if open == 0 {
            return at + 1;
        }
    }
    nodes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Rename;
    use crate::tree::{Key, Leaf, LeafData, Scalar, TreeBuilder};

    fn checkpoint() -> Checkpoint {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("step"), Leaf::scalar(Scalar::Int(7))).unwrap();
        build.open(Key::dict("params"), NodeKind::Dict).unwrap();
        build.leaf(Key::dict("bias"), Leaf::scalar(Scalar::Int(1))).unwrap();
        build.open(Key::dict("layers"), NodeKind::List).unwrap();
        build.leaf(Key::Index(0), Leaf::scalar(Scalar::Int(2))).unwrap();
        build.leaf(Key::Index(1), Leaf::scalar(Scalar::Int(3))).unwrap();
        build.close().unwrap();
        build.open(Key::dict("empty"), NodeKind::Dict).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        build.leaf(Key::dict("z"), Leaf::scalar(Scalar::Int(9))).unwrap();
        build.close().unwrap();
        Checkpoint::of_tree(build.finish().unwrap()).unwrap()
    }

    fn loaded(checkpoint: &Checkpoint) -> Vec<(String, Vec<u8>)> {
        let bytes = |leaf: &Leaf| match &leaf.data {
            LeafData::Array(array) => array.c_order_bytes().map(|bytes| bytes.to_vec()).unwrap_or_default(),
            _ => Vec::new(),
        };
        let tree = checkpoint.load(&Default::default()).unwrap();
        tree.iter().map(|(path, leaf)| (path.to_string(), bytes(leaf))).collect()
    }

    #[test]
    fn a_subtree_is_that_part_of_the_whole() {
        let whole = checkpoint();
        let all = loaded(&whole);
        for at in ["params", "params/layers", "params/layers/1", "params/empty", "step"] {
            let wanted: Vec<(String, Vec<u8>)> = all
                .iter()
                .filter_map(|(path, bytes)| match path.strip_prefix(at)? {
                    "" => Some((".".to_owned(), bytes.clone())),
                    rest => Some((rest.strip_prefix('/')?.to_owned(), bytes.clone())),
                })
                .collect();
            assert_eq!(loaded(&whole.at(at).unwrap()), wanted, "{at}");
        }
        assert_eq!(loaded(&whole.at("params").unwrap().at("layers").unwrap()).len(), 2);
    }

    #[test]
    fn an_absent_subtree_is_refused_with_those_beside_it() {
        for (at, there) in [("param", "params"), ("params/layer", "params/layers"), ("a/b/c", "step")] {
            let error = checkpoint().at(at).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains(there), "{error}");
        }
        for at in ["", ".", "/", "params/"] {
            assert!(checkpoint().at(at).is_err(), "{at:?}");
        }
    }

    #[test]
    fn renamed_leaves_keep_their_data() {
        let by = |from: &str, to: &str| {
            let rename = vec![Rename::new(from, to).unwrap()];
            checkpoint().transformed(&ConvertOptions { rename, ..ConvertOptions::default() })
        };
        let renamed = by("params/(.*)", "model/$1").unwrap();
        let paths: Vec<String> = loaded(&renamed).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["step", "z", "model/bias", "model/layers/0", "model/layers/1"]);
        assert_eq!(loaded(&renamed.at("model").unwrap()), loaded(&checkpoint().at("params").unwrap()));
        assert_eq!(by("nothing", "x").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
