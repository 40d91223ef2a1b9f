//! The allowed targets: a name that readers can open, and a folder without files of the user.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::names::{foreign_files_in, names};
use crate::side_files::is_name_of_side_file;
use crate::store::local::folders::LOCK_SUFFIX;
use crate::{UNCOMMITTED_MARK, is_desktop_file};

/// The absolute path of the target. With `follow`, a link is replaced by the path it leads to.
pub(super) fn resolve(target: &Path, follow: bool) -> Result<PathBuf> {
    let absolute = std::path::absolute(target).map_err(|_| no_name(target))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(no_name(target));
    };
    let absolute = parent.join(name);
    match fs::symlink_metadata(&absolute) {
        Ok(found) if found.is_symlink() && follow => fs::canonicalize(&absolute)
            .map_err(|error| Error::io("cannot follow the link to be overwritten", &absolute, error)),
        _ => Ok(absolute),
    }
}

pub(super) fn no_name(target: &Path) -> Error {
    Error::invalid(format!("{:?} cannot be the path of a checkpoint", target.display().to_string()))
        .help("give the path of the checkpoint itself, such as `runs/a/step_100`")
}

/// Returns an error for a name that marks an unfinished save, with one exception: a folder of that
/// name that Orbax has just made for a handler, and renames afterwards. A folder with other content
/// is a broken save, and no process would rename it.
pub(super) fn check_name(target: &Path) -> Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    if !name.contains(UNCOMMITTED_MARK) || was_just_made(target) {
        return Ok(());
    }
    Err(Error::invalid(format!("names with {UNCOMMITTED_MARK} mark unfinished saves"))
        .in_file(target)
        .help("choose another name: no reader would open this one"))
}

/// Whether a folder is in the state in which Orbax gives it to a handler: empty, or with only the
/// first files that Orbax writes.
fn was_just_made(folder: &Path) -> bool {
    let is_first = |name: OsString| names().first_files().iter().any(|first| name == *first);
    let is_new = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| is_first(entry.file_name()));
    fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_new))
}

/// Returns an error unless a folder may be saved to the target. With `keeps_others`, the folder
/// there may have any content.
pub(super) fn check_folder(target: &Path, overwrite: bool, keeps_others: bool) -> Result<()> {
    match find_replaced(target, overwrite)? {
        None => Ok(()),
        Some(found) if found.is_dir() && keeps_others => Ok(()),
        Some(found) if found.is_dir() => check_replaceable(target),
        Some(_) => Err(Error::invalid("the target is a file, but this layout writes a folder")
            .in_file(target)
            .help("choose another path, or remove the file yourself")),
    }
}

pub(super) fn check_file(target: &Path, overwrite: bool) -> Result<()> {
    match find_replaced(target, overwrite)? {
        Some(found) if !found.is_file() && !found.is_symlink() => Err(no_file(target)),
        _ => Ok(()),
    }
}

/// As `check_file`, but the existing target may also be a checkpoint of another kind.
pub(super) fn check_file_or_checkpoint(target: &Path, overwrite: bool) -> Result<()> {
    let is_folder = fs::symlink_metadata(target).is_ok_and(|found| found.is_dir());
    if is_folder { check_folder(target, overwrite, false) } else { check_file(target, overwrite) }
}

/// The metadata of the existing target. Returns an error if the target exists and `overwrite` is
/// not set.
fn find_replaced(target: &Path, overwrite: bool) -> Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("cannot look at the target", target, error)),
        Ok(found) if overwrite => Ok(Some(found)),
        Ok(_) => Err(Error::new(ErrorKind::AlreadyExists, "the target already exists")
            .in_file(target)
            .help("choose another path, or pass `overwrite` to replace it")),
    }
}

fn no_file(target: &Path) -> Error {
    Error::invalid("the target is a folder, but this layout writes a file")
        .in_file(target)
        .help("choose another path, or remove it yourself")
}

pub(super) fn holds_checkpoint(folder: &Path) -> bool {
    is_marked(folder) || holds_files_of_one(folder)
}

fn is_marked(folder: &Path) -> bool {
    names().markers().iter().any(|marker| folder.join(marker).is_file())
}

fn check_replaceable(folder: &Path) -> Result<()> {
    let is_marked = || is_marked(folder);
    if is_marked() {
        return check_nothing_beside(folder);
    }
    match fs::read_dir(folder).map(|mut entries| entries.all(|entry| is_of_a_desktop(&entry))) {
        Ok(true) => Ok(()),
        Ok(false) if holds_files_of_one(folder) => Ok(()),
        // Another writer may have exchanged and removed the folder of the first look, so look
        // again.
        Ok(false) if is_marked() => check_nothing_beside(folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("cannot look into the target", folder, error)),
        Ok(false) => Err(Error::invalid("the target is a folder with files, but not a checkpoint")
            .in_file(folder)
            .help("an overwrite would remove them: choose another path, or remove the folder yourself")),
    }
}

fn is_of_a_desktop(entry: &io::Result<fs::DirEntry>) -> bool {
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entry.as_ref().is_ok_and(|entry| is_file(entry) && is_desktop_file(&name(entry)))
}

/// Returns an error if the folder has files beside the checkpoint that may belong to a user.
fn check_nothing_beside(folder: &Path) -> Result<()> {
    let foreign = match foreign_files_in(&Location::local(folder)) {
        Ok(foreign) => foreign,
        // Another writer has exchanged and removed the folder.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    refuse_foreign_files(&foreign, folder)
}

/// Returns an error that lists a user's files beside a checkpoint, if there are any.
pub(crate) fn refuse_foreign_files(foreign: &[String], folder: impl Into<PathBuf>) -> Result<()> {
    if foreign.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = foreign.iter().map(|name| format!("{name:?}")).collect();
    Err(Error::invalid("the target is a checkpoint with extra files in it")
        .in_file(folder)
        .expected("only files of a checkpoint", names.join(", "))
        .help("an overwrite would remove them: move them elsewhere, or choose another path"))
}

/// Whether a folder holds only the files of one checkpoint that has no marker: the safetensors
/// files of one model. Such folders often hold more files that must not be lost: a tokenizer, a
/// configuration or another model.
fn holds_files_of_one(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let mut names = Vec::new();
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if entry.file_name().to_str().is_some_and(is_none_of_it) {
            continue;
        }
        let is_part = |name: &String| is_file || is_staged(name);
        let Some(name) = entry.file_name().to_str().map(str::to_owned).filter(is_part) else {
            return false;
        };
        names.push(name);
    }
    are_of_one(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Whether all these files belong to one checkpoint without a marker, apart from side files. The
/// temporary name of a file counts as the file, because a repair rewrites a file in the same
/// folder.
pub(crate) fn are_of_one(files: &[&str]) -> bool {
    let is_beside = |name: &str| is_name_of_side_file(name) || is_none_of_it(name);
    let files = files.iter().filter(|name| name.contains('/') || !is_beside(name));
    let (staged, own): (Vec<&str>, Vec<&str>) = files.partition(|name| is_staged(name));
    let is_all_staged = own.is_empty() && !staged.is_empty();
    let files = staged.into_iter().filter_map(|name| name.split(UNCOMMITTED_MARK).next()).chain(own);
    !is_all_staged && names().are_of_one(&files.collect::<Vec<_>>())
}

fn is_none_of_it(name: &str) -> bool {
    is_on_its_way(name) || is_desktop_file(name)
}

/// Whether this is the temporary name of a side file, which a killed writer may leave. Folders
/// staged by a save do not count: such a folder may be the only copy of a step.
fn is_on_its_way(name: &str) -> bool {
    let is_staged = || name.split_once(UNCOMMITTED_MARK).is_some_and(|(of, _)| is_name_of_side_file(of));
    name.starts_with('.') && name.ends_with(LOCK_SUFFIX) || is_staged()
}

fn is_staged(name: &str) -> bool {
    !name.contains('/') && name.contains(UNCOMMITTED_MARK)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::side_files::{PARITY_BLOCKS, SEAL};

    #[test]
    fn what_a_save_has_staged_is_not_replaced_and_what_parity_has_is() {
        let root = tempfile::tempdir().unwrap();
        let staged = |of: &str| format!("{of}{UNCOMMITTED_MARK}-0123456789abcdef");
        fs::create_dir(root.path().join(staged("100"))).unwrap();
        assert!(!holds_files_of_one(root.path()), "it may be all that there is of a step");
        fs::write(root.path().join("model.safetensors"), b"").unwrap();
        assert!(!holds_files_of_one(root.path()));
        fs::remove_dir(root.path().join(staged("100"))).unwrap();
        fs::create_dir(root.path().join(staged(PARITY_BLOCKS.in_folder))).unwrap();
        fs::write(root.path().join(".0123456789abcdef.__lock"), b"").unwrap();
        assert!(holds_files_of_one(root.path()));
        fs::create_dir(root.path().join(staged("model-00001-of-00002.safetensors"))).unwrap();
        assert!(holds_files_of_one(root.path()), "a file of it that is rewritten");
        fs::remove_file(root.path().join("model.safetensors")).unwrap();
        assert!(!holds_files_of_one(root.path()), "it may be the first save of a file");
    }

    #[test]
    fn what_is_on_its_way_is_told_by_its_name() {
        let seal = SEAL.in_folder;
        for (name, is_one) in [
            (".0123.__lock".to_owned(), true),
            ("0123.__lock".to_owned(), false),
            (".0123".to_owned(), false),
            (format!("{seal}{UNCOMMITTED_MARK}-0"), true),
            (format!("100{UNCOMMITTED_MARK}-0"), false),
            (seal.to_owned(), false),
        ] {
            assert_eq!(is_on_its_way(&name), is_one, "{name}");
        }
    }

    #[test]
    fn a_link_is_followed_if_it_is_itself_to_be_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(root.path()).unwrap();
        fs::create_dir(folder.join("real")).unwrap();
        fs::write(folder.join("real/x"), b"").unwrap();
        symlink("real", folder.join("link")).unwrap();
        let resolve = |name: &str, overwrite| super::resolve(&folder.join(name), overwrite).unwrap();
        assert_eq!(resolve("link", false), folder.join("link"));
        assert_eq!(resolve("link", true), folder.join("real"));
        // A link further up in the path is not resolved: the user chose this path.
        assert_eq!(resolve("link/x", true), folder.join("link/x"));
        assert_eq!(resolve("link/new", true), folder.join("link/new"));
    }

    #[test]
    fn orbax_temporary_folder_is_taken_while_it_is_as_orbax_made_it() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("x.orbax-checkpoint-tmp");
        let check = || check_name(&target).is_ok();
        assert!(!check());
        fs::create_dir(&target).unwrap();
        assert!(check());
        fs::write(target.join("_CHECKPOINT_METADATA"), b"{}").unwrap();
        assert!(check());
        fs::write(target.join("_METADATA"), b"{}").unwrap();
        assert!(!check());
    }
}
