//! The only unsafe code of the extension: memory that the engine and Python share, without a copy.
//!
//! ```text
//! borrowed        NumPy's arrays as the engine's
//! dlpack          tensors of other libraries as the engine's arrays
//! shown           the engine's arrays as NumPy's
//! destinations    NumPy's arrays that are filled where they lie
//! buffers         the engine's bytes as buffers of Python's, and Python's buffers as bytes
//! joined          one `bytes` object made of many parts
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
