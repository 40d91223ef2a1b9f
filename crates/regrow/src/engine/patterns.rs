//! Patterns that match no leaf are mistakes of the caller: errors before any read or write.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Result};
use crate::tree::{KeyPath, Node, NodeKind, PathPattern, Tree};

/// The most key paths that are compared with the patterns, to suggest similar paths.
const LOOKED_AT_MAX: usize = 20_000;

const NAMED_MAX: usize = 5;

/// Returns an error that lists all patterns that match neither a leaf nor an empty container. The
/// help lists the key paths that are most similar to the patterns.
pub(super) fn check_patterns<'a, L>(
    tree: &Tree<L>,
    patterns: impl Iterator<Item = &'a PathPattern>,
) -> Result<()> {
    let mut idle: Vec<&PathPattern> = patterns.collect();
    let ends = || tree.walk().filter(|(_, node)| is_end(node)).map(|(path, _)| path);
    let mut paths = ends();
    // Stop at the first match of each pattern: for `**`, one path is enough for a million leaves.
    while !idle.is_empty() {
        match paths.next() {
            Some(path) => idle.retain(|pattern| !pattern.matches(&path)),
            None => return Err(no_leaf_matches(&idle, &ends().collect::<Vec<_>>())),
        }
    }
    Ok(())
}

fn is_end(node: &Node) -> bool {
    node.kind == NodeKind::Leaf || node.child_count == 0
}

pub(super) fn no_leaf_matches(patterns: &[&PathPattern], paths: &[KeyPath]) -> Error {
    let named: Vec<String> = patterns.iter().map(|pattern| format!("{:?}", pattern.as_str())).collect();
    let error = Error::new(ErrorKind::NotFound, format!("no leaf matches {}", named.join(", ")));
    let near = nearest(patterns, paths);
    match near.is_empty() {
        true => error.help("there are no leaves"),
        false => error.help(format!("key paths are such as {}; `regrow ls` shows them all", near.join(", "))),
    }
}

/// The paths that share the most pairs of characters with one of the patterns, best first.
fn nearest(patterns: &[&PathPattern], paths: &[KeyPath]) -> Vec<String> {
    fn pairs(text: &str) -> HashSet<(char, char)> {
        text.chars().zip(text.chars().skip(1)).filter(|pair| pair.0 != '*' && pair.1 != '*').collect()
    }
    let wanted: Vec<_> = patterns.iter().map(|pattern| pairs(pattern.as_str())).collect();
    let mut scored: Vec<(usize, String)> = paths
        .iter()
        .take(LOOKED_AT_MAX)
        .map(|path| {
            let text = path.to_string();
            let has = pairs(&text);
            (wanted.iter().map(|pairs| pairs.intersection(&has).count()).max().unwrap_or(0), text)
        })
        .collect();
    // The sort is stable: candidates with equal scores stay in the order of the tree.
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    scored.into_iter().take(NAMED_MAX).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Key, TreeBuilder};

    fn check(patterns: &[&str]) -> Result<()> {
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        for name in ["bias", "kernel", "scale"] {
            build.leaf(Key::dict(name), ()).unwrap();
        }
        build.open(Key::dict("nothing"), NodeKind::List).unwrap();
        build.close().unwrap();
        build.close().unwrap();
        let patterns: Vec<PathPattern> =
            patterns.iter().map(|text| PathPattern::new(text).unwrap()).collect();
        check_patterns(&build.finish().unwrap(), patterns.iter())
    }

    #[test]
    fn each_pattern_has_to_match_something() {
        check(&[]).unwrap();
        check(&["**", "bias", "nothing", "k*"]).unwrap();
        let error = check(&["bias", "kernal", "x/**"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(r#"no leaf matches "kernal", "x/**""#), "{error}");
        assert!(error.to_string().contains("such as kernel,"), "{error}");
    }
}
