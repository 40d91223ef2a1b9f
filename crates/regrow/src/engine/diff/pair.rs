//! Pairs the leaves of two checkpoints.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use super::super::Checkpoint;
use super::super::patterns::no_leaf_matches;
use super::report::ContainerDiff;
use crate::error::Result;
use crate::tree::{KeyPath, NodeKind, PathPattern};

/// The chosen leaves of two checkpoints, by their positions.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// Leaves in both checkpoints, in the order of the first.
    pub both: Vec<(usize, usize)>,
    pub only_a: Vec<usize>,
    pub only_b: Vec<usize>,
    /// Containers of different kinds, and containers without children that only one checkpoint has.
    pub containers: Vec<ContainerDiff>,
}

impl Pairs {
    /// Pairs the leaves that match a pattern in `only`; all leaves if `only` is empty.
    pub fn of(a: &Checkpoint, b: &Checkpoint, only: &[PathPattern]) -> Result<Self> {
        let is_chosen = |path: &KeyPath| only.is_empty() || only.iter().any(|pattern| pattern.matches(path));
        if a.tree().nodes() == b.tree().nodes() && only.is_empty() {
            return Ok(Self {
                both: (0..a.tree().len()).map(|leaf| (leaf, leaf)).collect(),
                ..Self::default()
            });
        }
        let (kinds_a, kinds_b) = (containers(a, &is_chosen), containers(b, &is_chosen));
        check(only, a, b, kinds_a.iter().chain(&kinds_b).map(|container| &container.path))?;
        let mut pairs = Self { containers: differing(&kinds_a, &kinds_b), ..Self::default() };
        let chosen = |checkpoint: &Checkpoint| -> Vec<usize> {
            let paths = checkpoint.paths().iter().enumerate();
            paths.filter(|(_, path)| is_chosen(path)).map(|(leaf, _)| leaf).collect()
        };
        pairs.only_a = chosen(a);
        pairs.only_b = chosen(b);
        let path =
            |checkpoint: &Checkpoint, leaf: usize| checkpoint.paths().get(leaf).cloned().unwrap_or_default();
        pairs.join(|leaf| path(a, leaf), |leaf| path(b, leaf));
        pairs.join(|leaf| texts(&path(a, leaf)), |leaf| texts(&path(b, leaf)));
        pairs.both.sort_unstable();
        Ok(pairs)
    }

    /// Pairs leaves whose key is unique among the leaves without a partner of their checkpoint.
    fn join<K: Hash + Eq>(&mut self, key_a: impl Fn(usize) -> K, key_b: impl Fn(usize) -> K) {
        let unique = |leaves: &[usize], key: &dyn Fn(usize) -> K| {
            let mut by_key: HashMap<K, Option<usize>> = HashMap::with_capacity(leaves.len());
            for &leaf in leaves {
                match by_key.entry(key(leaf)) {
                    Entry::Vacant(place) => drop(place.insert(Some(leaf))),
                    Entry::Occupied(mut several) => *several.get_mut() = None,
                }
            }
            by_key
        };
        if self.only_a.is_empty() || self.only_b.is_empty() {
            return;
        }
        let of_a = unique(&self.only_a, &key_a);
        let mut is_joined: HashMap<usize, usize> = HashMap::new();
        for (key, leaf) in unique(&self.only_b, &key_b) {
            if let (Some(b), Some(Some(a))) = (leaf, of_a.get(&key)) {
                is_joined.insert(b, *a);
            }
        }
        self.both.extend(is_joined.iter().map(|(&b, &a)| (a, b)));
        self.only_b.retain(|leaf| !is_joined.contains_key(leaf));
        let joined: std::collections::HashSet<usize> = is_joined.into_values().collect();
        self.only_a.retain(|leaf| !joined.contains(leaf));
    }
}

/// The texts of the keys, without their kinds.
fn texts(path: &KeyPath) -> Vec<String> {
    path.keys().iter().map(|key| key.text().into_owned()).collect()
}

struct Container {
    path: KeyPath,
    kind: String,
    /// Whether the container has no children, so that no child reports the difference.
    is_end: bool,
}

fn containers(checkpoint: &Checkpoint, is_chosen: &dyn Fn(&KeyPath) -> bool) -> Vec<Container> {
    let nodes =
        checkpoint.tree().walk().filter(|(path, node)| node.kind != NodeKind::Leaf && is_chosen(path));
    let container = |(path, kind, child_count): (KeyPath, &NodeKind, usize)| Container {
        path,
        kind: match kind.type_name() {
            Some(name) => format!("{} {name}", kind.name()),
            None => kind.name().to_owned(),
        },
        is_end: child_count == 0,
    };
    nodes.map(|(path, node)| container((path, &node.kind, node.child_count))).collect()
}

fn differing(a: &[Container], b: &[Container]) -> Vec<ContainerDiff> {
    let mut by_texts: HashMap<Vec<String>, &Container> =
        b.iter().map(|own| (texts(&own.path), own)).collect();
    let mut found = Vec::new();
    for own in a {
        let other = by_texts.remove(&texts(&own.path));
        if other.map_or(own.is_end, |other| other.kind != own.kind) {
            let b = other.map(|other| other.kind.clone());
            found.push(ContainerDiff { path: own.path.clone(), a: Some(own.kind.clone()), b });
        }
    }
    let alone = b.iter().filter(|own| own.is_end && by_texts.contains_key(&texts(&own.path)));
    found.extend(alone.map(|own| ContainerDiff {
        path: own.path.clone(),
        a: None,
        b: Some(own.kind.clone()),
    }));
    found
}

/// Returns an error for patterns that match neither a leaf nor one of the chosen `containers`.
fn check<'p>(
    only: &[PathPattern],
    a: &'p Checkpoint,
    b: &'p Checkpoint,
    containers: impl Iterator<Item = &'p KeyPath> + Clone,
) -> Result<()> {
    let paths = || a.paths().iter().chain(b.paths()).chain(containers.clone());
    let idle: Vec<&PathPattern> =
        only.iter().filter(|pattern| !paths().any(|path| pattern.matches(path))).collect();
    match idle.is_empty() {
        true => Ok(()),
        false => Err(no_leaf_matches(&idle, &paths().cloned().collect::<Vec<_>>())),
    }
}
