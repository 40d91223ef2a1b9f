//! The names of side files: seals, signatures and parity, which lie in the folder of a checkpoint
//! or beside its files. They are no part of a checkpoint, and change nothing of its identity.
//!
//! | | in a folder | beside `model.msgpack` |
//! |---|---|---|
//! | seal | `regrow.seal.json` | `regrow.seal.model.msgpack.json` |
//! | signature | `regrow.signature.json` | `regrow.signature.model.msgpack.json` |
//! | parity | `regrow.parity.json`, `regrow.parity.blocks` | the same way |
//! | put aside by a repair | `regrow.damaged.<name>` | |

/// The names of one kind of side file.
#[derive(Debug, Clone, Copy)]
pub struct SideNames {
    /// In the folder of a checkpoint.
    pub in_folder: &'static str,
    /// Beside a checkpoint of single files its name is between these two. What begins with the name
    /// of the checkpoint, others would take for one: Flax lists `checkpoint_*`.
    pub beside: (&'static str, &'static str),
}

/// Seals.
pub const SEAL: SideNames = SideNames { in_folder: "regrow.seal.json", beside: ("regrow.seal.", ".json") };

/// Signatures.
pub const SIGNATURE: SideNames =
    SideNames { in_folder: "regrow.signature.json", beside: ("regrow.signature.", ".json") };

/// The documents of parity.
pub const PARITY: SideNames =
    SideNames { in_folder: "regrow.parity.json", beside: ("regrow.parity.", ".json") };

/// The blocks of parity.
pub const PARITY_BLOCKS: SideNames =
    SideNames { in_folder: "regrow.parity.blocks", beside: ("regrow.parity.", ".blocks") };

/// Every kind.
pub const KINDS: [SideNames; 4] = [SEAL, SIGNATURE, PARITY, PARITY_BLOCKS];

/// What the name of a damaged document begins with that a repair has put aside.
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
