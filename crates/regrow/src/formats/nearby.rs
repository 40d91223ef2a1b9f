//! Checkpoints in a folder that is none itself: for errors that say what could be opened instead.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::{UNCOMMITTED_MARK, builtin_formats};
use crate::commit::CHECKPOINT_MARKERS;

/// How many are named.
const SHOWN_MAX: usize = 5;

/// How far a look goes: it is for an error message, and folders may be as large as they like.
const DEPTH_MAX: usize = 4;
const FOLDERS_MAX: usize = 500;
const ENTRIES_MAX: usize = 5_000;

/// Advice that names the first few checkpoints in `folder`, files and folders; `None` if a short look finds none.
pub(crate) fn checkpoints_in(folder: &Path) -> Option<String> {
    let found = find(folder);
    let names: Vec<String> = found
        .iter()
        .take(SHOWN_MAX)
        .map(|path| format!("{:?}", path.strip_prefix(folder).unwrap_or(path)))
        .collect();
    let more = if found.len() > SHOWN_MAX { " and more" } else { "" };
    (!names.is_empty()).then(|| format!("open one of what lies in it: {}{more}", names.join(", ")))
}

/// Whether a file is of some layout by its name alone.
pub(crate) fn is_named_like_one(file: &Path) -> bool {
    builtin_formats().iter().any(|format| format.claims_name(file))
}

/// The marker of a checkpoint in `folder`, if it is one that has any.
pub(crate) fn marker_in(folder: &Path) -> Option<&'static str> {
    CHECKPOINT_MARKERS.into_iter().find(|marker| folder.join(marker).is_file())
}

/// The nearest first, by name; one more than are shown.
fn find(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = VecDeque::from([(folder.to_owned(), 0)]);
    let (mut folders, mut looked_at) = (0, 0);
    while let Some((path, depth)) = pending.pop_front() {
        folders += 1;
        if folders > FOLDERS_MAX || looked_at > ENTRIES_MAX || found.len() > SHOWN_MAX {
            break;
        }
        if depth > 0 && marker_in(&path).is_some() {
            found.push(path);
            continue;
        }
        let Ok(entries) = fs::read_dir(&path) else { continue };
        let (mut below, mut files) = (Vec::new(), Vec::new());
        for entry in entries.flatten().take(ENTRIES_MAX.saturating_sub(looked_at)) {
            looked_at += 1;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            if name.starts_with('.') || name.contains(UNCOMMITTED_MARK) {
                continue;
            } else if kind.is_dir() {
                below.push(entry.path());
            } else if is_named_like_one(&entry.path()) {
                files.push(entry.path());
            }
        }
        below.sort();
        files.sort();
        // Of a folder of files below, such as a model's, the folder is what is opened.
        match (depth, files.is_empty()) {
            (0, _) => found.extend(files),
            (_, false) => found.push(path),
            (_, true) => {}
        }
        if depth < DEPTH_MAX {
            pending.extend(below.into_iter().map(|path| (path, depth + 1)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_are_named_and_the_look_is_short() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        };
        assert_eq!(checkpoints_in(root.path()), None);
        put("notes.txt");
        put(".cache/regrow.json");
        put("b.orbax-checkpoint-tmp-1/regrow.json");
        assert_eq!(checkpoints_in(root.path()), None);
        put("runs/a/step_1/regrow.json");
        put("runs/a/step_1/model.safetensors");
        put("hub/model.safetensors");
        put("x.npy");
        assert_eq!(
            checkpoints_in(root.path()).unwrap(),
            "open one of what lies in it: \"x.npy\", \"hub\", \"runs/a/step_1\""
        );
        for at in 0..9 {
            put(&format!("many/{at}/_METADATA"));
        }
        let many = checkpoints_in(&root.path().join("many")).unwrap();
        assert!(many.ends_with("\"0\", \"1\", \"2\", \"3\", \"4\" and more"), "{many}");
        put("deep/1/2/3/4/5/6/regrow.json");
        assert_eq!(checkpoints_in(&root.path().join("deep")), None);
        assert_eq!(checkpoints_in(&root.path().join("x.npy")), None);
    }
}
