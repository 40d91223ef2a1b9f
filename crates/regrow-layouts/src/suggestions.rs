//! Finds checkpoints in a folder that is not a checkpoint, for errors that suggest another path.

use std::collections::VecDeque;
use std::ffi::OsStr;

use super::{Format, FormatExt, UNCOMMITTED_MARK, checkpoint_markers, formats, torch};
use regrow_storage::Entry;
use regrow_storage::location::Location;

/// Most checkpoints that one error lists.
const SHOWN_MAX: usize = 5;

/// Limits of the search: folders may be very large, and the result is only for an error message.
const DEPTH_MAX: usize = 4;
const FOLDERS_MAX: usize = 500;
const ENTRIES_MAX: usize = 5_000;

/// Most folders that are searched in a bucket or on a server, where each folder is a request.
const FOLDERS_FAR_MAX: usize = 16;

/// Help text with the first few checkpoints in `folder`, files and folders; `None` if a short
/// search finds no checkpoint.
pub fn checkpoints_in(folder: &Location) -> Option<String> {
    let found = find(folder);
    let names: Vec<String> =
        found.iter().take(SHOWN_MAX).map(|at| format!("{:?}", at.below(folder))).collect();
    let more = if found.len() > SHOWN_MAX { " and more" } else { "" };
    (!names.is_empty()).then(|| format!("open one of these: {}{more}", names.join(", ")))
}

/// Whether a file's name alone shows that it has some layout.
pub fn is_named_like_one(name: &OsStr) -> bool {
    formats().any(|format| format.claims_name(name))
}

/// Whether a file may be a checkpoint by its name. Also true for PyTorch's names, which other files
/// have too.
pub fn may_be_one(name: &OsStr) -> bool {
    is_named_like_one(name) || torch::is_named_so(name)
}

/// Whether a file may be a checkpoint or a step by its name.
pub fn may_be_listed(name: &str) -> bool {
    let may_be_step =
        |format: &'static dyn Format| format.file_names().may_be_step.is_some_and(|may_be| may_be(name));
    may_be_one(name.as_ref()) || formats().any(may_be_step)
}

/// The name of the checkpoint marker in `folder`; `None` if the folder has no marker.
pub fn marker_in(folder: &Location) -> Option<&'static str> {
    folder.first_file(checkpoint_markers())
}

/// The checkpoints below `folder`, the nearest first, then by name. Searches no further folder
/// after it has found more than `SHOWN_MAX`.
fn find(folder: &Location) -> Vec<Location> {
    let folders_max = if folder.local_path().is_ok() { FOLDERS_MAX } else { FOLDERS_FAR_MAX };
    let mut found = Vec::new();
    let mut pending = VecDeque::from([(folder.clone(), 0)]);
    let (mut folders, mut looked_at) = (0, 0);
    while let Some((at, depth)) = pending.pop_front() {
        folders += 1;
        if folders > folders_max || found.len() > SHOWN_MAX {
            break;
        }
        let entries = if looked_at < ENTRIES_MAX { at.entries().ok() } else { None };
        let is_marked = match &entries {
            Some(entries) => entries.iter().any(is_marker),
            None => marker_in(&at).is_some(),
        };
        if depth > 0 && is_marked {
            found.push(at);
            continue;
        }
        let (mut below, mut files) = (Vec::new(), Vec::new());
        for entry in entries.into_iter().flatten().take(ENTRIES_MAX.saturating_sub(looked_at)) {
            looked_at += 1;
            let name = entry.name.to_string_lossy();
            if name.starts_with('.') || name.contains(UNCOMMITTED_MARK) {
                continue;
            } else if entry.is_folder() && !entry.is_link {
                below.push(entry.name);
            } else if may_be_one(&entry.name) {
                files.push(entry.name);
            }
        }
        below.sort();
        files.sort();
        if depth < DEPTH_MAX {
            pending.extend(below.iter().map(|name| (at.join(name), depth + 1)));
        }
        // If a subfolder has checkpoint files, such as those of a model, suggest the subfolder.
        match (depth, files.is_empty()) {
            (0, _) => found.extend(files.iter().map(|name| at.join(name))),
            (_, false) => found.push(at),
            (_, true) => {}
        }
    }
    found
}

fn is_marker(entry: &Entry) -> bool {
    let is_one = |name: &str| checkpoint_markers().contains(&name) || name == torch::DCP_INDEX;
    entry.is_file() && entry.name.to_str().is_some_and(is_one)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_nearest_are_named_and_the_look_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let root = Location::local(folder.path());
        let put = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        };
        assert_eq!(checkpoints_in(&root), None);
        put("notes.txt");
        put(".cache/regrow.json");
        put("b.orbax-checkpoint-tmp-1/regrow.json");
        assert_eq!(checkpoints_in(&root), None);
        put("runs/a/step_1/regrow.json");
        put("runs/a/step_1/model.safetensors");
        put("hub/model.safetensors");
        put("x.npy");
        put("y.pt");
        put("dcp/.metadata");
        put("dcp/__0_0.distcp");
        assert_eq!(
            checkpoints_in(&root).unwrap(),
            "open one of these: \"x.npy\", \"y.pt\", \"dcp\", \"hub\", \"runs/a/step_1\""
        );
        for at in 0..9 {
            put(&format!("many/{at}/_METADATA"));
        }
        let many = checkpoints_in(&root.join("many")).unwrap();
        assert!(many.ends_with("\"0\", \"1\", \"2\", \"3\", \"4\" and more"), "{many}");
        put("deep/1/2/3/4/5/6/regrow.json");
        assert_eq!(checkpoints_in(&root.join("deep")), None);
        assert_eq!(checkpoints_in(&root.join("x.npy")), None);
    }
}
