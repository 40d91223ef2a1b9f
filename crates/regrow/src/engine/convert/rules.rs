//! Selects leaves, and checks that every rule applies to a leaf.
//!
//! A pattern that matches nothing is an error, and so is a rule that can change none of its leaves.
//! One error lists all patterns that match nothing. Both errors come before any data is read.

use super::rename::{self, Item, Part};
use super::{ConvertOptions, rename::rename};
use crate::engine::Checkpoint;
use crate::engine::casts::{described, is_for_all, no_effect};
use crate::engine::patterns::no_leaf_matches;
use crate::error::Result;
use crate::options::{CastPattern, cast_for};
use crate::tree::{LeafInfo, PathPattern, Tree};

/// The chosen leaves under their new paths, by their positions in the source. `only` also selects
/// among `None` and empty containers.
pub(in crate::engine) fn select(checkpoint: &Checkpoint, options: &ConvertOptions) -> Result<Tree<usize>> {
    let tree = checkpoint.tree();
    let ConvertOptions { only, rename: renames, nest, .. } = options;
    let moves = !renames.is_empty() || nest.is_some();
    let has_patterns = changes(options).next().is_some() || !only.is_empty();
    let mut items = match has_patterns || moves {
        true => rename::items(tree),
        false => Vec::new(),
    };
    let mut missing = unmatched(only.iter(), &items);
    if !only.is_empty() {
        items.retain(|item| only.iter().any(|pattern| pattern.matches(&item.path)));
    }
    missing.extend(unmatched(changes(options).map(|(_, pattern)| pattern), &items));
    if !missing.is_empty() {
        return Err(no_leaf_matches(&missing, checkpoint.paths()).in_file(checkpoint.path()));
    }
    for (rule, pattern) in changes(options) {
        check_effect(rule, pattern, &items, tree.leaves(), options)?;
    }
    match only.is_empty() && !moves {
        true => tree.with_leaves((0..tree.len()).collect()),
        false => rename(tree, &items, renames, nest.as_deref()),
    }
}

/// The effect of a rule on a leaf.
#[derive(Clone, Copy)]
enum Change<'a> {
    Transpose,
    Reshape,
    Cast(&'a CastPattern),
}

fn changes(options: &ConvertOptions) -> impl Iterator<Item = (Change<'_>, &PathPattern)> {
    let transpose = options.transpose.iter().map(|rule| (Change::Transpose, &rule.0));
    let reshape = options.reshape.iter().map(|rule| (Change::Reshape, &rule.0));
    let cast = options.save.cast.iter().map(|rule| (Change::Cast(rule), &rule.0));
    transpose.chain(reshape).chain(cast)
}

fn unmatched<'a>(patterns: impl Iterator<Item = &'a PathPattern>, items: &[Item]) -> Vec<&'a PathPattern> {
    patterns.filter(|pattern| !items.iter().any(|item| pattern.matches(&item.path))).collect()
}

/// Returns an error if the rule can change none of the leaves that its pattern matches. For leaves
/// without axes, transpose and reshape return more exact errors.
fn check_effect(
    change: Change<'_>,
    pattern: &PathPattern,
    items: &[Item],
    leaves: &[LeafInfo],
    options: &ConvertOptions,
) -> Result<()> {
    let info = |item: &Item| match &item.part {
        Part::Leaf(leaf) => leaves.get(*leaf),
        Part::Empty(_) => None,
    };
    let is_changed = |item: &Item| match (change, info(item)) {
        (_, None) => false,
        (Change::Cast(rule), Some(info)) => {
            let rule = std::slice::from_ref(rule);
            cast_for(rule, options.save.casting, &item.path, &info.kind, info.dtype).is_some()
        }
        (Change::Transpose | Change::Reshape, Some(_)) => true,
    };
    let matched = || items.iter().filter(|item| pattern.matches(&item.path));
    let (what, is_idle) = match change {
        Change::Transpose => ("transpose", false),
        Change::Reshape => ("reshape", false),
        Change::Cast(_) => ("cast", is_for_all(pattern)),
    };
    if is_idle || matched().any(is_changed) {
        return Ok(());
    }
    let named = matched().map(|item| match info(item) {
        Some(info) => described(&item.path, &info.kind, info.dtype),
        None => item.name(),
    });
    Err(no_effect(what, pattern, named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Array, Dtype, Shape};
    use crate::engine::ConvertPlan;
    use crate::error::ErrorKind;
    use crate::tree::{Key, Leaf, NodeKind, TreeBuilder};

    /// `{"n": None, "params": {"empty": [], "w": ..}, "text": ..}`.
    fn plan(options: &ConvertOptions) -> Result<ConvertPlan> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        let array = Array::new(Dtype::Float32, Shape::new([2]).unwrap(), vec![0; 8].into()).unwrap();
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::dict("n"), NodeKind::None).unwrap();
        build.close().unwrap();
        build.open(Key::dict("params"), NodeKind::Dict).unwrap();
        build.open(Key::dict("empty"), NodeKind::List).unwrap();
        build.close().unwrap();
        build.leaf(Key::dict("w"), Leaf::array(array)).unwrap();
        build.close().unwrap();
        build.leaf(Key::dict("text"), Leaf::text("x")).unwrap();
        build.close().unwrap();
        crate::save(&path, &build.finish().unwrap()).unwrap();
        crate::open(&path).unwrap().plan_convert(options)
    }

    fn patterns(texts: &[&str]) -> Vec<PathPattern> {
        texts.iter().map(|text| PathPattern::new(text).unwrap()).collect()
    }

    fn nodes(only: &[&str]) -> Vec<String> {
        let plan = plan(&ConvertOptions { only: patterns(only), ..ConvertOptions::default() }).unwrap();
        plan.tree.walk().map(|(path, node)| format!("{path}:{}", node.kind.name())).collect()
    }

    #[test]
    fn what_is_not_chosen_is_left_out_also_where_it_is_empty() {
        assert_eq!(nodes(&["params/w"]), [".:dict", "params:dict", "params/w:leaf"]);
        assert_eq!(nodes(&["params/**"]), [".:dict", "params:dict", "params/empty:list", "params/w:leaf"]);
        assert_eq!(nodes(&["n"]), [".:dict", "n:none"]);
    }

    #[test]
    fn every_pattern_that_matches_nothing_is_named() {
        let error = plan(&ConvertOptions {
            only: patterns(&["params/**", "no", "neither"]),
            save: crate::SaveOptions {
                cast: vec![(PathPattern::new("text").unwrap(), Dtype::Float16)],
                ..crate::SaveOptions::default()
            },
            ..ConvertOptions::default()
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(r#"no leaf matches "no", "neither", "text""#), "{error}");
    }

    #[test]
    fn rules_without_effect_are_refused() {
        let cast = |text: &str| ConvertOptions {
            save: crate::SaveOptions {
                cast: vec![(PathPattern::new(text).unwrap(), Dtype::Float16)],
                ..crate::SaveOptions::default()
            },
            ..ConvertOptions::default()
        };
        for (text, what) in [("text", "text (str)"), ("n", "n (None)"), ("params/empty", "an empty list")] {
            let error = plan(&cast(text)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(
                error.to_string().contains("has no effect") && error.to_string().contains(what),
                "{error}"
            );
        }
        assert!(plan(&cast("**")).is_ok());
        for (text, what) in [("text", "no axes to reshape"), ("n", "has no effect")] {
            let reshape = vec![(PathPattern::new(text).unwrap(), vec![1])];
            let error = plan(&ConvertOptions { reshape, ..ConvertOptions::default() }).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
