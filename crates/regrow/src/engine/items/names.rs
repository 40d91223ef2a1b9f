//! Which names items may have.

use crate::commit::CHECKPOINT_MARKERS;
use crate::error::{Error, Result};
use crate::formats::{COMMIT_MARKERS, UNCOMMITTED_MARK};
use crate::storage::is_bookkeeping;

/// Errs for a name that is none for an item, or for a part of one: names with slashes between them.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_item(name: &str) -> Result<()> {
    check_file(name)?;
    let first = name.split('/').next().unwrap_or(name);
    let is_of_the_whole = CHECKPOINT_MARKERS.contains(&first) || COMMIT_MARKERS.contains(&first);
    match is_of_the_whole || is_bookkeeping(first) {
        true => Err(refused(name, "the checkpoint has a file of this name")),
        false => Ok(()),
    }
}

/// Errs for a name that leads out of the item, or that no reader would look at.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_file(name: &str) -> Result<()> {
    let refuse = |why| Err(refused(name, why));
    for part in name.split('/') {
        if matches!(part, "" | "." | "..") || part.contains('\0') {
            return refuse("it has an empty part, or one that leads elsewhere");
        }
        if part.contains(UNCOMMITTED_MARK) {
            return refuse("it is that of a save that has not ended");
        }
    }
    Ok(())
}

/// The name in the checkpoint of a file of an item.
pub(super) fn path_in(item: &str, file: &str) -> String {
    if item.is_empty() { file.to_owned() } else { format!("{item}/{file}") }
}

fn refused(name: &str, why: &str) -> Error {
    Error::invalid(format!("{name:?} cannot be the name of an item or of a file in one: {why}"))
        .help("give it a plain name, such as state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_checkpoint() {
        for name in ["state", "a b", "rng/jax_random_key", "metrics", "ünï", "1"] {
            check_item(name).unwrap();
        }
        check_file("_METADATA").unwrap();
        for name in [
            "",
            "/x",
            "x/",
            "..",
            "a/../b",
            "x.orbax-checkpoint-tmp",
            "_METADATA",
            "commit_success.txt",
            "a\0",
        ] {
            assert!(check_item(name).is_err(), "{name:?}");
        }
    }
}
