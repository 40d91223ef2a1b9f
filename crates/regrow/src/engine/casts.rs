//! Casts that apply to no leaf are mistakes of the caller: errors before any read or write.

use crate::array::{Casting, Dtype};
use crate::error::{Error, Result};
use crate::options::{CastPattern, cast_for};
use crate::tree::{KeyPath, LeafKind, PathPattern, Tree};

const NAMED_MAX: usize = 5;

/// Returns an error for a cast if its pattern matches leaves, but the cast applies to none of them.
/// The pattern `**` is always allowed.
pub(super) fn check_casts<L>(
    tree: &Tree<L>,
    rules: &[CastPattern],
    casting: Casting,
    form: impl Fn(&L) -> (LeafKind, Dtype),
) -> Result<()> {
    let mut idle: Vec<&CastPattern> = rules.iter().filter(|rule| !is_for_all(&rule.0)).collect();
    let mut leaves = tree.iter();
    while let Some(rule) = idle.first() {
        let Some((path, leaf)) = leaves.next() else {
            let matched = tree.iter().filter(|(path, _)| rule.0.matches(path)).map(|(path, leaf)| {
                let (kind, dtype) = form(leaf);
                described(&path, &kind, dtype)
            });
            return Err(no_effect("cast", &rule.0, matched));
        };
        let (kind, dtype) = form(leaf);
        idle.retain(|rule| cast_for(std::slice::from_ref(*rule), casting, &path, &kind, dtype).is_none());
    }
    Ok(())
}

pub(super) fn is_for_all(pattern: &PathPattern) -> bool {
    pattern.as_str() == "**"
}

pub(super) fn described(path: &KeyPath, kind: &LeafKind, dtype: Dtype) -> String {
    match kind.is_castable() {
        true => format!("{path} ({dtype})"),
        false => format!("{path} ({})", kind.name()),
    }
}

pub(super) fn no_effect(
    what: &str,
    pattern: &PathPattern,
    mut matched: impl Iterator<Item = String>,
) -> Error {
    let mut named: Vec<String> = matched.by_ref().take(NAMED_MAX).collect();
    if matched.next().is_some() {
        named.push("and more".to_owned());
    }
    let named = named.join(", ");
    Error::invalid(format!("the {what} {:?} has no effect: it matches only {named}", pattern.as_str())).help(
        match what {
            "cast" => {
                "leave the cast out, or give the whole key path of one leaf: a glob casts floats to floats \
                 and integers to integers, and never texts, bytes, PRNG keys or Python numbers"
            }
            _ => "leave the rule out, or give it a pattern that matches an array",
        },
    )
}
