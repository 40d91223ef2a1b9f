//! The allowed targets: a name that readers can open, and a folder without files of the user.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::siblings;
use super::temporary::{no_name, split};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::names::{foreign_files_in, names};
use crate::side_files::is_name_of_side_file;
use crate::store::local::folders::LOCK_SUFFIX;
use crate::{PublishOptions, Target, UNCOMMITTED_MARK, is_desktop_file};

/// A target, and what a save may replace there.
#[derive(Debug)]
pub(super) struct Goal {
    pub(super) target: Location,
    /// The absolute path. The temporary folder lies beside it and is named after it.
    pub(super) absolute: PathBuf,
    /// The final paths: of the folder, of the file, or of the files of one stem.
    pub(super) targets: Vec<PathBuf>,
    pub(super) is_folder: bool,
    pub(super) overwrite: bool,
    /// Whether files of a user in the old checkpoint's folder are kept.
    keeps_others: bool,
    /// Whether a file also replaces a checkpoint that is a folder.
    pub(super) replaces_folders: bool,
    /// A further check of the file that is to be replaced.
    may_replace: Option<fn(&Location) -> Result<()>>,
}

impl Goal {
    pub(super) fn of(target: &Location, kind: &Target, options: &PublishOptions<'_>) -> Result<Self> {
        let PublishOptions { overwrite, keeps_others, may_replace, replaces_links, .. } = *options;
        let path = target.local_path()?;
        let is_siblings = matches!(kind, Target::Siblings { .. });
        // A file of several, and a file in the place of a link, never replaces where a link leads.
        let is_file = *kind == Target::File;
        let absolute = resolve(path, overwrite && !is_siblings && !(is_file && replaces_links))?;
        let targets = match kind {
            // Anything may exist at the stem itself: the save does not touch it.
            Target::Siblings { suffixes } => siblings::targets(&absolute, suffixes)?,
            Target::Folder | Target::File => check_name(path).map(|()| vec![absolute.clone()])?,
        };
        Ok(Self {
            target: target.clone(),
            absolute,
            targets,
            is_folder: *kind == Target::Folder,
            overwrite,
            keeps_others,
            replaces_folders: false,
            may_replace: may_replace.filter(|_| is_file),
        })
    }

    pub(super) fn is_siblings(&self) -> bool {
        self.targets != [self.absolute.as_path()]
    }

    pub(super) fn has_taken_name(&self) -> bool {
        self.targets.iter().any(|target| fs::symlink_metadata(target).is_ok())
    }

    /// Returns an error unless the save may replace what exists. Changes nothing.
    pub(super) fn check(&self) -> Result<()> {
        self.targets.iter().try_for_each(|target| self.check_one(target))
    }

    fn check_one(&self, target: &Path) -> Result<()> {
        let found = match fs::symlink_metadata(target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.map_err(|error| Error::io("cannot look at the target", target, error))?,
        };
        if !self.overwrite {
            return Err(Error::new(ErrorKind::AlreadyExists, "the target already exists")
                .in_file(target)
                .help("choose another path, or pass `overwrite` to replace it"));
        }
        let is_file = found.is_file() || found.is_symlink();
        if found.is_dir() && self.is_folder && self.keeps_others {
            Ok(())
        } else if found.is_dir() && (self.is_folder || self.replaces_folders) {
            check_replaceable(target)
        } else if is_file && !self.is_folder {
            self.may_replace.map_or(Ok(()), |may_replace| may_replace(&Location::local(target)))
        } else {
            let (is, writes) = if self.is_folder { ("file", "folder") } else { ("folder", "file") };
            Err(Error::invalid(format!("the target is a {is}, but this layout writes a {writes}"))
                .in_file(target)
                .help("choose another path, or remove it yourself"))
        }
    }
}

/// The absolute path of the target. With `follow`, a link is replaced by the path it leads to.
pub(super) fn resolve(target: &Path, follow: bool) -> Result<PathBuf> {
    let absolute = absolute(target)?;
    match fs::symlink_metadata(&absolute) {
        Ok(found) if found.is_symlink() && follow => fs::canonicalize(&absolute)
            .map_err(|error| Error::io("cannot follow the link to be overwritten", &absolute, error)),
        _ => Ok(absolute),
    }
}

/// The absolute path of a target, without a slash at its end.
pub(super) fn absolute(target: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(target).map_err(|_| no_name(target))?;
    let (parent, name) = split(&absolute).map_err(|_| no_name(target))?;
    Ok(parent.join(name))
}

/// Returns an error for a name that marks an unfinished save, with one exception: a folder of that
/// name that Orbax has just made for a handler, and renames afterwards. A folder with other content
/// is a broken save, and no process would rename it.
fn check_name(target: &Path) -> Result<()> {
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

pub(super) fn holds_checkpoint(folder: &Path) -> bool {
    is_marked(folder) || holds_files_of_one(folder)
}

fn is_marked(folder: &Path) -> bool {
    names().markers().iter().any(|marker| folder.join(marker).is_file())
}

pub(super) fn check_replaceable(folder: &Path) -> Result<()> {
    if is_marked(folder) {
        return check_nothing_beside(folder);
    }
    match fs::read_dir(folder).map(|mut entries| entries.all(is_of_a_desktop)) {
        Ok(true) => Ok(()),
        Ok(false) if holds_files_of_one(folder) => Ok(()),
        // Another writer may have exchanged and removed the folder of the first look, so look
        // again.
        Ok(false) if is_marked(folder) => check_nothing_beside(folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("cannot look into the target", folder, error)),
        Ok(false) => Err(Error::invalid("the target is a folder with files, but not a checkpoint")
            .in_file(folder)
            .help("an overwrite would remove them: choose another path, or remove the folder yourself")),
    }
}

fn is_of_a_desktop(entry: io::Result<fs::DirEntry>) -> bool {
    let Ok(entry) = entry else { return false };
    let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
    is_file && is_desktop_file(&entry.file_name().to_string_lossy())
}

/// Returns an error if the folder has files beside the checkpoint that may belong to a user.
fn check_nothing_beside(folder: &Path) -> Result<()> {
    match foreign_files_in(&Location::local(folder)) {
        // Another writer has exchanged and removed the folder.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        foreign => refuse_foreign_files(&foreign?, folder),
    }
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
    let name_of = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        (is_staged(&name) || entry.file_type().ok()?.is_file()).then_some(name)
    };
    let names: Option<Vec<String>> = entries.map(name_of).collect();
    names.is_some_and(|names| are_of_one(&names.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Whether all these files belong to one checkpoint without a marker, apart from side files and
/// locks. The temporary name of a file counts as the file, because a repair rewrites a file in the
/// same folder. Temporary names alone do not count: they may be the only copy of a step.
pub(crate) fn are_of_one(files: &[&str]) -> bool {
    let own: Vec<&str> = files.iter().copied().filter(|name| !is_beside(name)).collect();
    let final_names: Vec<&str> = own.iter().map(|name| final_name(name)).collect();
    (own.is_empty() || own.iter().any(|name| !is_staged(name))) && names().are_of_one(&final_names)
}

/// Whether this is a side file, a lock or a file of a desktop, also under a temporary name.
fn is_beside(name: &str) -> bool {
    let is_lock = name.starts_with('.') && name.ends_with(LOCK_SUFFIX);
    let is_beside = is_name_of_side_file(final_name(name)) || is_lock || is_desktop_file(name);
    is_beside && !name.contains('/')
}

fn is_staged(name: &str) -> bool {
    !name.contains('/') && name.contains(UNCOMMITTED_MARK)
}

/// The name that a file gets when it is complete.
fn final_name(name: &str) -> &str {
    if is_staged(name) { name.split(UNCOMMITTED_MARK).next().unwrap_or(name) } else { name }
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
    fn side_files_and_locks_are_told_by_their_names() {
        let seal = SEAL.in_folder;
        for (name, is_one) in [
            (".0123.__lock".to_owned(), true),
            ("0123.__lock".to_owned(), false),
            (".0123".to_owned(), false),
            (format!("{seal}{UNCOMMITTED_MARK}-0"), true),
            (format!("100{UNCOMMITTED_MARK}-0"), false),
            (seal.to_owned(), true),
            (format!("d/{seal}"), false),
        ] {
            assert_eq!(is_beside(&name), is_one, "{name}");
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
