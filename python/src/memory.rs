//! The only unsafe code of the extension. The engine and Python share memory without a copy. Only
//! `joined` copies.
//!
//! ```text
//! borrowed        shows NumPy's arrays to the engine
//! dlpack          shows tensors of other libraries to the engine
//! shown           shows the engine's arrays to NumPy
//! destinations    lends NumPy's arrays to the engine, which fills them
//! buffers         shows the engine's bytes as Python's buffers, and the reverse
//! joined          makes one `bytes` object of many parts
//! ```

mod borrowed;
mod buffers;
mod destinations;
mod dlpack;
mod joined;
mod shown;

pub use self::borrowed::{Shapes, borrow_array, borrow_elements, borrow_one_of_many};
pub use self::buffers::{MapBuffer, ReadOnly, Slab};
pub use self::destinations::Destinations;
pub use self::dlpack::{take_tensor, tensor_host_device};
pub use self::joined::{Piece, join};
pub use self::shown::Shown;
