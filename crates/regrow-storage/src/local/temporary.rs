//! Temporary names beside a target.
//!
//! ```text
//! step_100                                               the target
//! step_100.orbax-checkpoint-tmp-<pid>-<random>           being written; locked while its writer lives
//! step_100.orbax-checkpoint-tmp-copy                     a copy on its way: stays when it is interrupted, and the next
//!                                                        copy to the same target goes on with it
//! step_100.orbax-checkpoint-tmp-replaced-<pid>-<random>  the old target, between the two renames of an overwrite
//!                                                        on a file system that cannot exchange names
//! ```
//! A file name has at most 255 bytes. A longer name is shortened, and a hash of the whole name
//! replaces the rest: `<beginning>~<hash>.orbax-checkpoint-tmp-<pid>-<random>`.
//!
//! Orbax treats every name with `.orbax-checkpoint-tmp` as an unfinished save, and ignores it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::store::local::folders::random_name;
use crate::system::name_of_bytes;

const TEMPORARY: &str = ".orbax-checkpoint-tmp-";
const REPLACED: &str = "replaced-";

/// The end of the temporary name of a copy. It is fixed, so that the next copy finds the folder.
const COPY: &str = "copy";

/// Longest file name that all file systems accept.
const NAME_LEN_MAX_BYTES: usize = 255;

/// The number of hex digits of the hash in a shortened name.
const HASH_LEN: usize = 16;

/// The longest name that is not shortened: `u32::MAX` has ten digits, and 16 random ones follow.
pub(super) const KEPT_LEN_MAX_BYTES: usize =
    NAME_LEN_MAX_BYTES - TEMPORARY.len() - REPLACED.len() - 10 - "-".len() - 16;

pub(super) fn copy_path(parent: &Path, name: &OsStr) -> PathBuf {
    let mut temporary = shortened(name).unwrap_or_else(|| name.to_owned());
    temporary.push(format!("{TEMPORARY}{COPY}"));
    parent.join(temporary)
}

/// A new path for the files of a save, or for a checkpoint that is removed. The next save to `name`
/// deletes files that stay there.
pub(super) fn temporary_path(parent: &Path, name: &OsStr) -> Result<PathBuf> {
    Ok(parent.join(temporary_name(name, "")?))
}

/// The path of the old checkpoint while the new one gets its name.
pub(super) fn replaced_path(parent: &Path, name: &OsStr) -> Result<PathBuf> {
    Ok(parent.join(temporary_name(name, REPLACED)?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unfinished,
    Replaced,
    Copy,
}

fn temporary_name(name: &OsStr, kind: &str) -> Result<OsString> {
    let mut temporary = shortened(name).unwrap_or_else(|| name.to_owned());
    temporary.push(format!("{TEMPORARY}{kind}{}-{}", std::process::id(), random_name()?));
    Ok(temporary)
}

/// The shortened form of a name that is too long for temporary names; `None` for all other names.
pub(super) fn shortened(name: &OsStr) -> Option<OsString> {
    let bytes = name.as_encoded_bytes();
    let mut end = KEPT_LEN_MAX_BYTES - "~".len() - HASH_LEN;
    if bytes.len() <= KEPT_LEN_MAX_BYTES {
        return None;
    }
    // Cut between characters: some file systems accept only names in UTF-8.
    while end > 0 && bytes.get(end).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000) {
        end -= 1;
    }
    let hash = blake3::hash(bytes).to_hex();
    let mut short = name_of_bytes(bytes.get(..end)?);
    short.push("~");
    short.push(hash.get(..HASH_LEN)?);
    Some(short)
}

/// The kind of our temporary name `entry` for `name`. `None` for names of Orbax, which end
/// differently and which regrow must not remove.
pub(super) fn kind_of(entry: &OsStr, name: &OsStr) -> Option<Kind> {
    let short = shortened(name);
    let (of, kind) = parts_of(entry)?;
    (of == short.as_deref().unwrap_or(name).as_encoded_bytes()).then_some(kind)
}

/// The kind of our temporary name for any target.
pub(super) fn kind_in(entry: &OsStr) -> Option<Kind> {
    parts_of(entry).map(|(_, kind)| kind)
}

/// The name for which `entry` is a temporary name; `None` if that name is shortened in it.
pub(super) fn name_in(entry: &OsStr) -> Option<OsString> {
    let (name, _) = parts_of(entry)?;
    let is_shortened = name.len().checked_sub(HASH_LEN + 1).is_some_and(|at| name.get(at) == Some(&b'~'));
    (!is_shortened).then(|| name_of_bytes(name))
}

/// The name of the target, and the kind.
fn parts_of(entry: &OsStr) -> Option<(&[u8], Kind)> {
    let bytes = entry.as_encoded_bytes();
    let at = bytes.windows(TEMPORARY.len()).rposition(|part| part == TEMPORARY.as_bytes())?;
    Some((bytes.get(..at)?, kind_of_end(bytes.get(at + TEMPORARY.len()..)?)?))
}

/// The kind of our temporary name that has this text after its mark.
fn kind_of_end(rest: &[u8]) -> Option<Kind> {
    if rest == COPY.as_bytes() {
        return Some(Kind::Copy);
    }
    let (kind, rest) = match rest.strip_prefix(REPLACED.as_bytes()) {
        Some(rest) => (Kind::Replaced, rest),
        None => (Kind::Unfinished, rest),
    };
    let (pid, random) = rest.split_at_checked(rest.iter().position(|&byte| byte == b'-')?)?;
    let ours = !pid.is_empty()
        && pid.iter().all(u8::is_ascii_digit)
        && random.len() == 17
        && random.iter().skip(1).all(u8::is_ascii_hexdigit);
    ours.then_some(kind)
}

/// The folder and the name of a target. The folder of a bare name is `.`.
pub(super) fn split(target: &Path) -> Result<(&Path, &OsStr)> {
    let name = target.file_name().ok_or_else(|| no_name(target))?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

pub(super) fn no_name(target: &Path) -> Error {
    Error::invalid(format!("{:?} cannot be the path of a checkpoint", target.display().to_string()))
        .help("give the path of the checkpoint itself, such as `runs/a/step_100`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_temporary_names_from_those_of_orbax() {
        let name = OsStr::new("step_1");
        assert_eq!(kind_of(&temporary_name(name, "").unwrap(), name), Some(Kind::Unfinished));
        assert_eq!(kind_of(&temporary_name(name, REPLACED).unwrap(), name), Some(Kind::Replaced));
        for other in [
            "step_1",
            "step_1.orbax-checkpoint-tmp",
            "step_1.orbax-checkpoint-tmp-1700000000000000",
            "step_1.orbax-checkpoint-tmp-12-0123",
            "step_10.orbax-checkpoint-tmp-12-0123456789abcdef",
            "step_1.orbax-checkpoint-tmp-x-0123456789abcdef",
        ] {
            assert_eq!(kind_of(OsStr::new(other), name), None, "{other}");
        }
    }

    #[test]
    fn temporary_names_of_any_length_fit_and_are_recognised() {
        for character in ["x", "ü", "€", "🦀", "\u{1}"] {
            for len in (1..=NAME_LEN_MAX_BYTES / character.len()).rev() {
                let name = OsString::from(character.repeat(len));
                let other = OsString::from(format!("{}y", character.repeat(len - 1)));
                for (kind, expected) in [("", Kind::Unfinished), (REPLACED, Kind::Replaced)] {
                    let temporary = temporary_name(&name, kind).unwrap();
                    assert!(temporary.len() <= NAME_LEN_MAX_BYTES, "{}", temporary.len());
                    assert!(temporary.to_str().is_some_and(|text| text.contains(TEMPORARY)));
                    assert_eq!(kind_of(&temporary, &name), Some(expected));
                    assert_eq!(kind_of(&temporary, &other), None);
                }
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_name_of_no_whole_character_is_shortened_too() {
        use std::os::unix::ffi::OsStrExt;

        let name = OsStr::from_bytes(&[0x80; NAME_LEN_MAX_BYTES]);
        let short = shortened(name).unwrap();
        assert_eq!(short.len(), "~".len() + HASH_LEN);
        assert_ne!(shortened(OsStr::from_bytes(&[0x81; NAME_LEN_MAX_BYTES])).unwrap(), short);
    }

    /// A shortened name never ends in the middle of a character.
    #[test]
    fn long_names_are_shortened_between_characters() {
        for character in ["x", "ü", "€", "🦀"] {
            for before in 0..8 {
                let name = format!("{}{}", "a".repeat(before), character.repeat(400 / character.len()));
                let name = OsString::from(name);
                let short = shortened(&name).unwrap();
                let text = short.to_str().unwrap();
                let (kept, hash) = text.rsplit_once('~').unwrap();
                assert_eq!(hash.len(), HASH_LEN);
                assert!(name.to_str().unwrap().starts_with(kept));
                // The shortened name keeps as many characters as fit.
                let room = KEPT_LEN_MAX_BYTES - "~".len() - HASH_LEN;
                assert!(kept.len() <= room && kept.len() + character.len() > room, "{}", kept.len());
            }
        }
        assert_eq!(shortened(OsStr::new(&"x".repeat(KEPT_LEN_MAX_BYTES))), None);
        assert!(shortened(OsStr::new(&"x".repeat(KEPT_LEN_MAX_BYTES + 1))).is_some());
    }
}
