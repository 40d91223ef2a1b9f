//! Options of a save in the default layout, `regrow`.

use serde::Deserialize;

use super::LeafChunking;
use regrow_tree::array::Shape;
use regrow_tree::tree::PathPattern;

/// How the default layout cuts arrays into chunks, in Orbax' words. A cut array is stored as one
/// tensor for each chunk; any other as a whole, or by its shards.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegrowOptions {
    /// Cut chunks down to at most this many bytes (greedy, divisors only).
    pub chunk_byte_size: Option<u64>,
    /// Cut these axes first, down to one element.
    pub shard_axes: Vec<usize>,
    /// The chunk; must divide each array's shape, or that of its shards.
    pub write_chunk_shape: Option<Shape>,
    /// Per-leaf overrides; the first pattern that matches decides. A list of pairs in JSON.
    pub per_leaf: Vec<(PathPattern, LeafChunking)>,
    /// The value of `format` in the `__metadata__` of the data files, for programs that open them
    /// as safetensors.
    pub format: DataFormat,
    /// Refuse leaves that Orbax could not read back as they are, instead of escaping them.
    pub strict: bool,
}

/// The framework that a safetensors file states for its tensors. Some loaders accept only their
/// own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    /// NumPy's.
    Np,
    /// PyTorch's. Every reader accepts this format; transformers before version 5 accepts no other.
    #[default]
    Pt,
    /// TensorFlow's.
    Tf,
    /// Flax'.
    Flax,
    /// MLX'.
    Mlx,
}

impl DataFormat {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Np => "np",
            Self::Pt => "pt",
            Self::Tf => "tf",
            Self::Flax => "flax",
            Self::Mlx => "mlx",
        }
    }
}

impl RegrowOptions {
    /// Whether any array is cut into chunks.
    pub(crate) fn asks_for_chunks(&self) -> bool {
        self.chunk_byte_size.is_some()
            || !self.shard_axes.is_empty()
            || self.write_chunk_shape.is_some()
            || !self.per_leaf.is_empty()
    }
}
