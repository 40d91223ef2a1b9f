//! The names of side files: seals, signatures and parity, which lie in the folder of a checkpoint
//! or beside its files. Side files are no part of the checkpoint, and do not change its identity.
//!
//! | | in a folder | beside `model.msgpack` |
//! |---|---|---|
//! | seal | `regrow.seal.json` | `regrow.seal.model.msgpack.json` |
//! | signature | `regrow.signature.json` | `regrow.signature.model.msgpack.json` |
//! | parity | `regrow.parity.json`, `regrow.parity.blocks` | `regrow.parity.model.msgpack.json`, `regrow.parity.model.msgpack.blocks` |
//! | put aside by a repair | `regrow.damaged.<name>` | |

/// The names of one kind of side file.
#[derive(Debug, Clone, Copy)]
pub struct SideNames {
    /// The name in the folder of a checkpoint.
    pub in_folder: &'static str,
    /// Beside a checkpoint of single files: the texts before and after the checkpoint's name. The
    /// side file's name must not begin with the checkpoint's name: Flax lists `checkpoint_*` and
    /// would take it for a checkpoint.
    pub beside: (&'static str, &'static str),
}

/// The names of seals.
pub const SEAL: SideNames = SideNames { in_folder: "regrow.seal.json", beside: ("regrow.seal.", ".json") };

/// The names of signatures.
pub const SIGNATURE: SideNames =
    SideNames { in_folder: "regrow.signature.json", beside: ("regrow.signature.", ".json") };

/// The names of documents of parity.
pub const PARITY: SideNames =
    SideNames { in_folder: "regrow.parity.json", beside: ("regrow.parity.", ".json") };

/// The names of blocks of parity.
pub const PARITY_BLOCKS: SideNames =
    SideNames { in_folder: "regrow.parity.blocks", beside: ("regrow.parity.", ".blocks") };

/// The names of all kinds of side files.
pub const KINDS: [SideNames; 4] = [SEAL, SIGNATURE, PARITY, PARITY_BLOCKS];

/// A repair renames a damaged document to a name with this prefix.
pub const DAMAGED_PREFIX: &str = "regrow.damaged.";

/// Whether a file of this name is a seal, a signature or parity, or was put aside by a repair.
pub fn is_name_of_side_file(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    if name.starts_with(DAMAGED_PREFIX) {
        return true;
    }
    let is_of = |names: SideNames| {
        name == names.in_folder || name.starts_with(names.beside.0) && name.ends_with(names.beside.1)
    };
    KINDS.into_iter().any(is_of)
}

/// Whether a file of this name, in the folder of a checkpoint, is a side file of the checkpoint.
pub(crate) fn is_in_folder(name: &str) -> bool {
    name.starts_with(DAMAGED_PREFIX) || KINDS.iter().any(|kind| kind.in_folder == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_files_are_known_by_their_names() {
        for name in ["regrow.seal.json", "a/b/regrow.seal.json", "regrow.damaged.json"] {
            assert!(is_name_of_side_file(name), "{name}");
        }
        for kind in KINDS {
            let (before, behind) = kind.beside;
            for name in
                [kind.in_folder.to_owned(), format!("{before}x.npz{behind}"), format!("a/{before}x{behind}")]
            {
                assert!(is_name_of_side_file(&name), "{name}");
            }
            for name in [format!("{before}x"), format!("x{behind}"), format!("{}.x", kind.in_folder)] {
                assert!(
                    KINDS.iter().any(|other| other.in_folder == name) || !is_name_of_side_file(&name),
                    "{name}"
                );
            }
        }
    }
}
