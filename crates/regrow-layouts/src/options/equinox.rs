//! Options of a save in the layout `equinox`.

use serde::Deserialize;

/// Options of the layout `equinox`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EquinoxOptions {
    /// One line of JSON before the leaves: Equinox' own pattern for data that rebuilds the model.
    /// Equinox then reads the leaves from the open file after the line, no longer from the path.
    pub hyperparameters: Option<serde_json::Value>,
    /// regrow's own index after the leaves: the exact pytree and checksums. Equinox ignores it.
    pub trailer: bool,
    /// Exactly the bytes of Equinox, which lose the names of the dtypes of ml_dtypes.
    pub strict: bool,
    /// Write typed PRNG keys as their key data; Equinox itself refuses them.
    pub prng_keys: bool,
}

impl Default for EquinoxOptions {
    fn default() -> Self {
        Self { hyperparameters: None, trailer: true, strict: false, prng_keys: false }
    }
}
