//! A column in the page: zlib, then base64, in a script element that the browser does not run.
//!
//! The bytes of numbers are written in planes: first the lowest byte of every number, then the next
//! byte of every number. Planes compress several times better than whole numbers.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

/// Bytes of a plane that are collected before they are compressed.
const BATCH: usize = 16 << 10;

/// A number in the form that the page's script reads.
pub trait Cell: Copy {
    /// The script's name for the type.
    const KIND: &'static str;
    /// The bytes of the number, little endian.
    type Bytes: AsRef<[u8]>;
    fn to_bytes(self) -> Self::Bytes;
}

impl Cell for u8 {
    const KIND: &'static str = "u8";
    type Bytes = [u8; 1];
    fn to_bytes(self) -> [u8; 1] {
        [self]
    }
}

impl Cell for u32 {
    const KIND: &'static str = "u32";
    type Bytes = [u8; 4];
    fn to_bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }
}

impl Cell for f64 {
    const KIND: &'static str = "f64";
    type Bytes = [u8; 8];
    fn to_bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

/// Writes a column of `count` numbers, in one pass for each byte of a number. `name` comes from
/// this crate, so it needs no escaping.
pub fn numbers<C: Cell>(
    out: &mut impl Write,
    name: &str,
    count: usize,
    values: impl Iterator<Item = C> + Clone,
) -> io::Result<()> {
    element(out, (name, C::KIND, count), |encoder| {
        let mut batch = Vec::with_capacity(BATCH);
        for plane in 0..size_of::<C>() {
            for value in values.clone() {
                batch.extend(value.to_bytes().as_ref().get(plane));
                if batch.len() == BATCH {
                    encoder.write_all(&batch)?;
                    batch.clear();
                }
            }
            encoder.write_all(&batch)?;
            batch.clear();
        }
        Ok(())
    })
}

/// Writes a column of counts, as float64: exact up to 2^53.
pub fn counts(out: &mut impl Write, name: &str, values: &[u64]) -> io::Result<()> {
    numbers(out, name, values.len(), values.iter().map(|count| *count as f64))
}

/// Writes a column of numbers. An unknown number becomes NaN.
pub fn optional(out: &mut impl Write, name: &str, values: &[Option<f64>]) -> io::Result<()> {
    numbers(out, name, values.len(), values.iter().map(|value| value.unwrap_or(f64::NAN)))
}

pub fn texts(out: &mut impl Write, name: &str, texts: &[impl Serialize]) -> io::Result<()> {
    element(out, (name, "texts", texts.len()), |encoder| Ok(serde_json::to_writer(encoder, texts)?))
}

/// Writes an element with the encoded output of `write`, and with its name, its kind and the number
/// of its values.
fn element<W: Write>(
    out: &mut W,
    (name, kind, count): (&str, &str, usize),
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write!(
        out,
        "<script type=\"application/octet-stream\" data-column=\"{name}\" data-kind=\"{kind}\" data-count=\"{count}\">"
    )?;
    let mut encoder = ZlibEncoder::new(EncoderWriter::new(&mut *out, &STANDARD), Compression::default());
    write(&mut encoder)?;
    encoder.finish()?.finish()?;
    out.write_all(b"</script>\n")
}
