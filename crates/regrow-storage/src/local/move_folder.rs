//! Renames a checkpoint in one step.

use std::path::Path;

use super::lock::lock_target;
use super::rename::rename_new;
use crate::error::{Error, ErrorKind, Result};
use crate::monitor::Monitor;
use crate::store::local::folders::{make_folders, sync_folder};

/// Renames a folder to an unused name. The parent folder is made if it is missing.
pub(crate) fn move_folder(from: &Path, to: &Path) -> Result<()> {
    let cannot = |error| Error::io("cannot move the folder", from, error);
    let (Some(old), Some(new)) = (from.parent(), to.parent()) else {
        return Err(Error::invalid("the folder needs another name").in_file(to));
    };
    let _lock = lock_target(from, "move", None, &Monitor::new())?;
    make_folders(new).map_err(cannot)?;
    rename_new(from, to).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::AlreadyExists, "the name is taken").in_file(to)
        }
        _ => cannot(error),
    })?;
    // Sync the new name first: after a power cut both names may exist, but one always does.
    for folder in [new, old] {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        sync_folder(folder).map_err(|error| Error::io("cannot sync the folder", folder, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_moved_folder_replaces_no_existing_name() {
        let root = tempfile::tempdir().unwrap();
        let (from, taken, free) = (root.path().join("a"), root.path().join("b"), root.path().join("new/c"));
        for folder in [&from, &taken] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), folder.as_os_str().as_encoded_bytes()).unwrap();
        }
        let error = move_folder(&from, &taken).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(fs::read(taken.join("file")).unwrap(), taken.as_os_str().as_encoded_bytes());
        move_folder(&from, &free).unwrap();
        assert!(free.join("file").is_file() && !from.exists());
        assert_eq!(move_folder(&from, &free).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
