//! Texts for types of the engine.

use std::borrow::Cow;
use std::path::Path;

use regrow::Checkpoint;
use regrow::tree::{LeafInfo, LeafKind};

/// What a page about a checkpoint is called.
pub(super) fn title(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path();
    match path.file_name() {
        _ if path.as_os_str().is_empty() => "a pytree in memory".to_owned(),
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.to_string_lossy().into_owned(),
    }
}

/// The dtype: text has none, and a PRNG key is more than its integers.
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

/// dtype and shape: `float32[64, 10]`.
pub(super) fn form(leaf: &LeafInfo) -> String {
    match leaf.kind.is_array() {
        true => format!("{}{}", dtype(leaf), leaf.shape),
        false => dtype(leaf).into_owned(),
    }
}

/// A file as seen from the checkpoint; as it is if it lies elsewhere.
pub(super) fn below(file: &Path, checkpoint: &Checkpoint) -> String {
    let inner = file.strip_prefix(checkpoint.path()).ok().filter(|inner| !inner.as_os_str().is_empty());
    inner.or_else(|| file.file_name().map(Path::new)).unwrap_or(file).to_string_lossy().into_owned()
}
