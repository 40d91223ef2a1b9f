//! Converts Python objects to Flax' msgpack and back, without the engine. This is the lower level
//! of `regrow.flax`.
//!
//! | module | does |
//! |---|---|
//! | `pack` | converts raw dicts, lists and leaves to one `bytes` object |
//! | `unpack` | converts bytes to raw dicts, lists and leaves; arrays are views of the bytes |

mod pack;
mod unpack;

pub use pack::msgpack_pack;
pub use unpack::msgpack_unpack;

/// The Python module with the classes that these functions use.
const TYPES: &str = "regrow._msgpack";
