//! Builds a header, tensor by tensor in the order of their bytes. No I/O.

use super::layout::{DATA_ALIGNMENT_BYTES, LENGTH_LEN_BYTES, METADATA, stored_as};
use crate::orbax::json_text::push_text;
use regrow_base::bytes::limits::SAFETENSORS_HEADER_LEN_MAX_BYTES;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};

/// A header that is being built.
#[derive(Debug, Default)]
pub struct HeaderBuilder {
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The JSON members of the tensors, separated by commas.
    tensors: Vec<u8>,
    end: u64,
    /// The JSON text of the last tensor's dtype and shape, which the next tensor often has, too.
    last: Option<Spelt>,
}

#[derive(Debug)]
struct Spelt {
    tag: String,
    dims: Vec<u64>,
    text: Vec<u8>,
}

impl HeaderBuilder {
    /// A header without tensors and without `__metadata__`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry of `__metadata__`.
    pub fn metadata(&mut self, name: &str, text: &str) {
        self.metadata.get_or_insert_default().insert(name.to_owned(), text.into());
    }

    /// Adds a `__metadata__`, even if it stays empty.
    pub fn some_metadata(&mut self) {
        self.metadata.get_or_insert_default();
    }

    /// Reserves `len_bytes` for the JSON of later tensors.
    pub fn reserve(&mut self, len_bytes: usize) {
        self.tensors.reserve(len_bytes);
    }

    /// Adds the next tensor, stored as it is in memory.
    ///
    /// # Errors
    /// `NameCollision` for the name that safetensors reserves; `Limit` if offsets exceed 63 bits.
    pub fn tensor(&mut self, name: &str, dtype: Dtype, shape: &Shape) -> Result<()> {
        let (tag, dims) = stored_as(dtype, shape);
        self.tensor_as(name, tag, &dims, shape.len_bytes(dtype)?)
    }

    /// Adds the next tensor under the dtype `tag`, with `len_bytes` in the file.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    pub fn tensor_as(&mut self, name: &str, tag: &str, dims: &[u64], len_bytes: u64) -> Result<()> {
        if name == METADATA {
            return Err(Error::new(
                ErrorKind::NameCollision,
                format!("no tensor can have the name {METADATA:?}"),
            ));
        }
        let end = self.end.checked_add(len_bytes).filter(|&end| end <= i64::MAX as u64);
        let end =
            end.ok_or_else(|| Error::new(ErrorKind::Limit, "the tensors of one file pass 2^63 bytes"))?;
        let spelt = match self.last.take() {
            Some(last) if last.tag == tag && last.dims == dims => last,
            _ => Spelt::new(tag, dims),
        };
        if !self.tensors.is_empty() {
            self.tensors.push(b',');
        }
        push_text(&mut self.tensors, name);
        self.tensors.extend_from_slice(&spelt.text);
        push_number(&mut self.tensors, self.end);
        self.tensors.push(b',');
        push_number(&mut self.tensors, end);
        self.tensors.extend_from_slice(b"]}");
        self.last = Some(spelt);
        self.end = end;
        Ok(())
    }

    /// Length of the data of all tensors so far.
    pub fn data_len_bytes(&self) -> u64 {
        self.end
    }

    /// The file's bytes before the data: length, header, spaces up to a page.
    ///
    /// # Errors
    /// `Limit` if safetensors would refuse the header for its length.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.finish_aligned(DATA_ALIGNMENT_BYTES)
    }

    /// As [`finish`](Self::finish), with the data at a multiple of `alignment_bytes`.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_aligned(self, alignment_bytes: usize) -> Result<Vec<u8>> {
        // The metadata may be megabytes of text, so it is encoded directly into the output.
        let mut out = vec![0; LENGTH_LEN_BYTES];
        out.push(b'{');
        if let Some(metadata) = &self.metadata {
            push_text(&mut out, METADATA);
            out.push(b':');
            serde_json::to_writer(&mut out, metadata)
                .map_err(|error| Error::invalid(format!("the metadata is not JSON: {error}")))?;
            if !self.tensors.is_empty() {
                out.push(b',');
            }
        }
        let len = out.len() + self.tensors.len() + 1;
        let total = len.next_multiple_of(alignment_bytes.max(1));
        let header_len = (total - LENGTH_LEN_BYTES) as u64;
        if header_len > SAFETENSORS_HEADER_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "the safetensors header would be too long")
                .expected(format_args!("at most {SAFETENSORS_HEADER_LEN_MAX_BYTES} bytes"), header_len));
        }
        out.reserve_exact(total - out.len());
        out.extend_from_slice(&self.tensors);
        out.push(b'}');
        out.resize(total, b' ');
        if let Some(length) = out.get_mut(..LENGTH_LEN_BYTES) {
            length.copy_from_slice(&header_len.to_le_bytes());
        }
        Ok(out)
    }
}

impl Spelt {
    fn new(tag: &str, dims: &[u64]) -> Self {
        let shape: Vec<String> = dims.iter().map(ToString::to_string).collect();
        let text = format!(":{{\"dtype\":\"{tag}\",\"shape\":[{}],\"data_offsets\":[", shape.join(","));
        Self { tag: tag.to_owned(), dims: dims.to_vec(), text: text.into_bytes() }
    }
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    // Writing a number into a Vec cannot fail.
    let _ = serde_json::to_writer(out, &number);
}

#[cfg(test)]
mod tests {
    use super::super::layout::Header;
    use super::*;

    #[test]
    fn what_is_built_is_parsed() {
        let mut build = HeaderBuilder::new();
        build.metadata("format", "np");
        build.tensor("a \"b\"", Dtype::BFloat16, &Shape::new(vec![2, 3]).unwrap()).unwrap();
        build.tensor("", Dtype::Complex128, &Shape::scalar()).unwrap();
        build.tensor("n", Dtype::Int4, &Shape::new(vec![5]).unwrap()).unwrap();
        let head = build.finish().unwrap();
        assert_eq!(head.len() % DATA_ALIGNMENT_BYTES, 0);
        let len = Header::len_bytes(head[..8].try_into().unwrap(), head.len() as u64 + 33).unwrap();
        assert_eq!(len as usize, head.len() - 8);
        let header = Header::parse(&head[8..], head.len() as u64 + 33).unwrap();
        assert_eq!(header.metadata, Some(vec![("format".to_owned(), "np".to_owned())]));
        let seen: Vec<_> =
            header.tensors.iter().map(|t| (&*t.name, t.dtype, t.shape.to_string(), t.len_bytes)).collect();
        assert_eq!(
            seen,
            [
                ("a \"b\"", Dtype::BFloat16, "[2,3]".to_owned(), 12),
                ("", Dtype::Float64, "[2]".to_owned(), 16),
                ("n", Dtype::UInt8, "[5]".to_owned(), 5),
            ]
        );
    }

    #[test]
    fn without_anything_it_is_what_safetensors_writes() {
        let finish = |build: HeaderBuilder| build.finish_aligned(8).unwrap();
        assert_eq!(finish(HeaderBuilder::new()), b"\x08\0\0\0\0\0\0\0{}      ");
        let mut build = HeaderBuilder::new();
        build.some_metadata();
        assert_eq!(&finish(build)[8..], b"{\"__metadata__\":{}}     ");
    }
}
