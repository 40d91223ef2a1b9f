//! Turns Python objects into Flax' msgpack and back, without the engine: the low level of
//! `regrow.flax`.
//!
//! | module | does |
//! |---|---|
//! | `pack` | raw dicts, lists and leaves to one `bytes` object, filled in one pass |
//! | `unpack` | bytes to raw dicts, lists and leaves; arrays are views of the bytes |

mod pack;
mod unpack;

pub use pack::msgpack_pack;
pub use unpack::msgpack_unpack;

/// The Python module with the types for these functions.
const TYPES: &str = "regrow._msgpack";
