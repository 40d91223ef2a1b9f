//! The names of the objects that are not part of a checkpoint: markers, the state object, and
//! temporary folders.

use bytes::Bytes;

use crate::UNCOMMITTED_MARK;
use crate::error::{Error, ErrorKind, Result};
use crate::publication::COMMITTED_MARKER;

/// The state object in the folder of a target.
pub(super) const STATE: &str = "regrow-state.json";

/// The marker of a complete checkpoint.
pub(super) const MARKER: &str = COMMITTED_MARKER;

/// The marker of a layout that has no marker of its own. With the usual marker, Orbax would treat
/// the folder as one of its checkpoints.
pub(super) const OTHER_MARKER: &str = "regrow-committed.txt";

/// A checkpoint of Orbax or regrow in a bucket is committed when one of these is in its folder.
pub const COMMIT_MARKERS: [&str; 2] = [MARKER, OLD_POINTER];

/// The claim of a save, the pointer of an overwrite, and the lock of earlier versions.
pub(super) const OLD_CLAIM: &str = "regrow-writing.json";
pub(super) const OLD_POINTER: &str = "regrow-moved.json";
pub(super) const OLD_LOCK: &str = "regrow-settling.json";

/// The control objects of earlier versions.
pub(super) const OLD_CONTROLS: [&str; 3] = [OLD_POINTER, OLD_CLAIM, OLD_LOCK];

/// Whether an object of this name is a state object, or a control object of an earlier version.
pub(super) fn is_control(name: &str) -> bool {
    name == STATE || OLD_CONTROLS.contains(&name)
}

/// Whether an object of this name is a marker.
pub(super) fn is_marker(name: &str) -> bool {
    matches!(name, MARKER | OTHER_MARKER)
}

/// Whether an object of this name is not part of the checkpoint itself.
pub fn is_bookkeeping(name: &str) -> bool {
    name == OTHER_MARKER || is_control(name)
}

/// A random name for one operation. The operation recognizes its own objects by it.
pub(super) fn nonce() -> Result<String> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the system gives no random bytes: {error}")))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The content of a marker: the text of the layout, and the line with the nonce.
pub(super) fn marker_bytes(text: &[u8], url: &str, nonce: &str) -> Bytes {
    let mut marker = text.to_vec();
    if marker.is_empty() {
        marker.extend(format!("Checkpoint commit was successful to {url}").bytes());
    }
    let line = marker_line(nonce);
    // A layout that has a checksum of the marker has already added the line.
    if !marker.ends_with(line.as_bytes()) {
        marker.extend(line.bytes());
    }
    marker.into()
}

/// The last line of the marker of a save. A writer recognizes its own marker by the nonce in the
/// line.
pub(super) fn marker_line(nonce: &str) -> String {
    format!("\nregrow {nonce}\n")
}

/// The end of the name of a copy's folder. It is fixed, so that the next copy finds the files.
pub(super) const COPY: &str = "copy";

/// The folder in which an overwrite writes the new checkpoint.
pub(super) fn staged_folder(target: &str, nonce: &str) -> String {
    format!("{}{nonce}", staged_prefix(target))
}

/// The beginning of the names of all folders of overwrites of a target.
pub(super) fn staged_prefix(target: &str) -> String {
    format!("{target}{UNCOMMITTED_MARK}-")
}

/// The key of the state object of a target that is not a folder. It lies beside the files.
pub(super) fn state_beside(target: &str) -> String {
    format!("{}state.json", staged_prefix(target))
}
