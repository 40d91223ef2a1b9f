//! The allowed names of items.

use crate::engine::names::is_left_out;
use crate::error::{Error, Result};
use crate::formats::{COMMIT_MARKERS, UNCOMMITTED_MARK, checkpoint_markers, items_record};
use crate::storage::side_files::is_name_of_side_file;
use crate::storage::{is_bookkeeping, is_desktop_file};

/// The use of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// One of several files. Other files may have the same name, or a name below this name.
    Files,
    /// A folder into which the caller writes; a tree may have the same name.
    Folder,
    /// A tree; a folder into which the caller writes may have the same name.
    Tree,
    /// A use that allows no other use of the name.
    Alone,
}

impl Taken {
    /// Whether two uses exclude each other. This requires that the names are equal, or that one
    /// name is below the other name.
    pub(super) fn clashes(self, name: &str, taken: &str, other: Self) -> bool {
        let is_below =
            |a: &str, b: &str| b.is_empty() || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
        let shares = match (self, other) {
            (Self::Files, Self::Files) => true,
            (Self::Folder, Self::Tree) | (Self::Tree, Self::Folder) => name == taken,
            _ => false,
        };
        !shares && (name == taken || is_below(name, taken) || is_below(taken, name))
    }
}

/// Returns an error for a name that is not allowed for an item or for a part of an item. The names
/// of parts are separated by slashes.
pub(super) fn check_item(name: &str) -> Result<()> {
    check_file(name)?;
    let first = name.split('/').next().unwrap_or(name);
    let is_of_the_whole = checkpoint_markers().contains(&first)
        || COMMIT_MARKERS.contains(&first)
        || first == items_record::FILE_NAME;
    match is_of_the_whole || is_bookkeeping(first) {
        true => Err(refused(name, "the checkpoint has a file of this name")),
        false => Ok(()),
    }
}

/// Returns an error for a name that leads out of the item, or that readers ignore.
pub(super) fn check_file(name: &str) -> Result<()> {
    let refuse = |why| Err(refused(name, why));
    for part in name.split('/') {
        if matches!(part, "" | "." | "..") || part.contains('\0') {
            return refuse("it has an empty part, or a part such as `..`");
        }
        if part.contains(UNCOMMITTED_MARK) {
            return refuse("such names mark unfinished saves");
        }
        if is_desktop_file(part) {
            return refuse("desktop programs create files of this name, so readers ignore them");
        }
        if is_left_out(part) || is_name_of_side_file(part) {
            return refuse("seals, signatures, parity and copies ignore files of this name");
        }
    }
    Ok(())
}

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
    fn a_tree_shares_its_name_with_a_folder_alone() {
        use Taken::{Alone, Files, Folder, Tree};
        let clashes = |own: Taken, name, other| own.clashes(name, "a/b", other);
        assert!(!clashes(Tree, "a/b", Folder) && !clashes(Folder, "a/b", Tree));
        assert!(!clashes(Files, "a/b", Files) && !clashes(Files, "a", Files));
        for (own, name, other) in [
            (Tree, "a/b", Tree),
            (Folder, "a/b", Folder),
            (Tree, "a/b/c", Folder),
            (Folder, "a", Tree),
            (Files, "a/b", Tree),
            (Alone, "a/b", Files),
        ] {
            assert!(clashes(own, name, other), "{own:?} {name} {other:?}");
        }
        assert!(!clashes(Alone, "a/bc", Alone));
    }

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
            "x/regrow.seal.json",
        ] {
            assert!(check_item(name).is_err(), "{name:?}");
        }
    }
}
