//! Texts for types of the engine.

use std::borrow::Cow;
use std::path::Path;

use regrow::Checkpoint;
use regrow::tree::{LeafInfo, LeafKind};

pub(super) fn title(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path();
    match path.file_name() {
        _ if path.as_os_str().is_empty() => "a pytree in memory".to_owned(),
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.to_string_lossy().into_owned(),
    }
}

/// The dtype as text: `str` for text, `bytes` for bytes, `key<…>` with the implementation for PRNG
/// keys, `unknown<…>` with the type for unknown leaves, nothing for placeholders.
pub(super) fn dtype(leaf: &LeafInfo) -> Cow<'_, str> {
    match &leaf.kind {
        LeafKind::Str => "str".into(),
        LeafKind::Bytes => "bytes".into(),
        LeafKind::PrngKey(Some(implementation)) => format!("key<{implementation}>").into(),
        LeafKind::NumpyOther(dtype) | LeafKind::NumpyOtherScalar(dtype) => (&**dtype).into(),
        LeafKind::Placeholder => "".into(),
        LeafKind::Unknown(type_name) => format!("unknown<{type_name}>").into(),
        _ => leaf.dtype.name().into(),
    }
}

/// The dtype and the shape as text: `float32[64, 10]`.
pub(super) fn form(leaf: &LeafInfo) -> String {
    match leaf.kind.is_array() {
        true => format!("{}{}", dtype(leaf), leaf.shape),
        false => dtype(leaf).into_owned(),
    }
}

/// The path of a file relative to the checkpoint; for a file elsewhere, only its name.
pub(super) fn below(file: &Path, checkpoint: &Checkpoint) -> String {
    let inner = file.strip_prefix(checkpoint.path()).ok().filter(|inner| !inner.as_os_str().is_empty());
    inner.or_else(|| file.file_name().map(Path::new)).unwrap_or(file).to_string_lossy().into_owned()
}
