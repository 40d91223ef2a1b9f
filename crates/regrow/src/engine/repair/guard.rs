//! What a repair has begun with: nothing is written where something else has taken a path meanwhile.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::storage::Identity;

/// A folder and some files in it, as they were. Known of disks alone: in a bucket an object has no identity but its contents.
#[derive(Debug)]
pub(super) struct Guard<'g> {
    folder: &'g Location,
    before: Option<Identity>,
    files: HashMap<String, Option<Identity>>,
}

impl<'g> Guard<'g> {
    /// Looks at the folder and the files of these names.
    pub fn of(folder: &'g Location, names: impl IntoIterator<Item = String>) -> Self {
        let is_near = folder.local_path().is_ok();
        let before = if is_near { folder.identity() } else { None };
        let names = names.into_iter().filter(|_| is_near);
        let files = names.map(|name| (name.clone(), folder.join(&name).identity())).collect();
        Self { folder, before, files }
    }

    /// Errs if something else has taken the path of the folder.
    ///
    /// # Errors
    /// `Replaced`.
    pub fn check_folder(&self) -> Result<()> {
        match self.before.is_none() || self.folder.identity() == self.before {
            true => Ok(()),
            false => Err(replaced(self.folder)),
        }
    }

    /// The same of a file of it, too. To be called when its new contents lie beside it: what takes the folder's path from then
    /// on takes them along.
    ///
    /// # Errors
    /// `Replaced`.
    pub fn check(&self, name: &str) -> Result<()> {
        self.check_folder()?;
        let at = self.folder.join(name);
        match self.files.get(name) {
            Some(before) if at.identity() != *before => Err(replaced(&at)),
            _ => Ok(()),
        }
    }
}

fn replaced(at: &Location) -> Error {
    Error::new(ErrorKind::Replaced, "the checkpoint was replaced while it was being repaired")
        .in_file(at)
        .help("somebody saves to this path: what is there now is theirs; repair it again if it is damaged")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn whatever_takes_a_path_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let make = |text: &str| {
            fs::create_dir(&path).unwrap();
            for name in ["a", "b"] {
                fs::write(path.join(name), text).unwrap();
            }
        };
        make("old");
        let folder = Location::local(&path);
        let guard = Guard::of(&folder, ["a".to_owned(), "gone".to_owned()]);
        guard.check("a").unwrap();
        guard.check("gone").unwrap();
        // Nobody has asked for it.
        fs::write(path.join("new"), "b").unwrap();
        fs::rename(path.join("new"), path.join("b")).unwrap();
        guard.check("b").unwrap();
        fs::write(path.join("new"), "other").unwrap();
        fs::rename(path.join("new"), path.join("a")).unwrap();
        assert_eq!(guard.check("a").unwrap_err().kind(), ErrorKind::Replaced);
        fs::write(path.join("gone"), "there").unwrap();
        assert_eq!(guard.check("gone").unwrap_err().kind(), ErrorKind::Replaced);
        guard.check_folder().unwrap();
        fs::rename(&path, root.path().join("aside")).unwrap();
        make("new");
        assert_eq!(guard.check_folder().unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(guard.check("b").unwrap_err().kind(), ErrorKind::Replaced);
    }
}
