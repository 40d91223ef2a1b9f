//! The codecs of one array in their order, with the shape, dtype and fill value that they need.
//!
//! ```text
//! encode:  transpose ... -> bytes | sharding_indexed -> zstd | gzip | ... -> stored
//! decode:  the same from the right, the last step straight into the caller's slice
//! ```
//!
//! Nearly every array has a chain of `bytes` and one compressor. This chain decodes without an
//! intermediate buffer.

use std::borrow::Cow;

use serde_json::Value;

use super::bytes_codec::{self, Endian};
use super::transpose::Order;
use super::zstd::FrameDecoder;
use super::{BytesCodec, Sharding, buffer, copied, copy_exact, resize, wrong_len};
use crate::array::{Dtype, Shape};
use crate::bytes::limits::CHUNK_LEN_MAX_BYTES;
use crate::bytes::pages::FreshPages;
use crate::error::{Error, ErrorKind, Result};
use crate::zarr::Missing;
use crate::zarr::json::Members;

/// The most bytes by which a compressed result may exceed its input (headers and raw blocks), for
/// chains that compress twice.
const COMPRESSED_GROWTH_BYTES: u64 = 1 << 16;

/// The largest chunk whose shards are decoded as a whole, because another codec or shard encloses
/// them.
const NESTED_SHARD_LEN_MAX_BYTES: u64 = 1 << 30;

/// The form of a decoded chunk: its shape, its dtype, and the fill value of absent parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// Shape of the chunk.
    pub shape: Shape,
    /// Type of its elements.
    pub dtype: Dtype,
    /// The bytes of one element of absent parts.
    pub fill: Vec<u8>,
}

impl Decoded {
    /// The same elements in another shape.
    pub fn with_shape(&self, shape: Shape) -> Self {
        Self { shape, dtype: self.dtype, fill: self.fill.clone() }
    }
}

/// The step from an array to bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayCodec {
    /// Elements one after another, in a byte order.
    Bytes(Endian),
    /// Inner chunks with an index.
    Sharding(Box<Sharding>),
}

/// The codecs between a chunk and its stored bytes.
///
/// The type keeps these promises: the decoded chunk is at most [`CHUNK_LEN_MAX_BYTES`] long, and
/// nothing follows a sharding codec.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecChain {
    decoded: Decoded,
    len_bytes: u64,
    transposes: Vec<Order>,
    /// All transposes combined; `None` if no axis moves.
    order: Option<Order>,
    array_codec: ArrayCodec,
    bytes_codecs: Vec<BytesCodec>,
}

impl CodecChain {
    /// Checks the codecs, and makes a chain of them. A sharding codec must be made for the
    /// transposed shape.
    pub fn new(
        decoded: Decoded,
        transposes: Vec<Order>,
        array_codec: ArrayCodec,
        bytes_codecs: Vec<BytesCodec>,
    ) -> Result<Self> {
        let len_bytes = decoded.shape.len_bytes(decoded.dtype)?;
        if len_bytes > CHUNK_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "a chunk of a zarr array is too large")
                .expected(format_args!("at most {CHUNK_LEN_MAX_BYTES} bytes"), len_bytes));
        }
        let whole = transposes.iter().fold(None, |all: Option<Order>, next| {
            Some(all.map_or_else(|| next.clone(), |all| all.then(next)))
        });
        let order = whole.filter(|order| !order.is_identity());
        if let ArrayCodec::Sharding(sharding) = &array_codec {
            if let Some(after) = bytes_codecs.first() {
                let name = after.name();
                return Err(Error::unsupported(format!("codec {name:?} after \"sharding_indexed\"")));
            }
            if (order.is_some() || sharding.is_nested()) && len_bytes > NESTED_SHARD_LEN_MAX_BYTES {
                return Err(Error::new(ErrorKind::Limit, "a shard inside another codec is too large")
                    .expected(format_args!("at most {NESTED_SHARD_LEN_MAX_BYTES} bytes"), len_bytes));
            }
        }
        Ok(Self { decoded, len_bytes, transposes, order, array_codec, bytes_codecs })
    }

    /// The chain that the list `codecs` of a zarr v3 document describes. `Unsupported` for unknown
    /// codecs, `Corrupt` for lists that are not a chain.
    pub fn from_v3(codecs: &Value, decoded: Decoded) -> Result<Self> {
        let no_chain =
            |what: &str| Error::corrupt(format!("the codecs of a zarr array are not valid: {what}"));
        let list = codecs.as_array().ok_or_else(|| no_chain("they are not a list"))?;
        let (mut transposes, mut array_codec, mut bytes_codecs) = (Vec::new(), None, Vec::new());
        let mut encoded_shape = decoded.shape.clone();
        for codec in list {
            let (name, configuration) = name_and_configuration(codec, "codec")?;
            match (name.as_str(), &array_codec) {
                ("transpose", None) => {
                    let order = Order::from_v3(configuration, encoded_shape.rank())?;
                    encoded_shape = order.encoded_shape(&encoded_shape)?;
                    transposes.push(order);
                }
                ("bytes", None) => {
                    let endian = Endian::from_v3(configuration, decoded.dtype.word_bytes())?;
                    array_codec = Some(ArrayCodec::Bytes(endian));
                }
                ("sharding_indexed", None) => {
                    let sharding =
                        Sharding::from_v3(configuration, decoded.with_shape(encoded_shape.clone()))?;
                    array_codec = Some(ArrayCodec::Sharding(Box::new(sharding)));
                }
                ("transpose" | "bytes" | "sharding_indexed", Some(_)) => {
                    return Err(no_chain(&format!("{name:?} follows the codec that gives bytes")));
                }
                (_, already) => {
                    // Parse the codec first: an unknown name must not be reported as a wrong order.
                    let codec = BytesCodec::from_v3(&name, configuration)?;
                    if already.is_none() {
                        return Err(no_chain(&format!("{name:?} comes before a codec that gives bytes")));
                    }
                    bytes_codecs.push(codec);
                }
            }
        }
        let array_codec = array_codec.ok_or_else(|| no_chain("none of them gives bytes"))?;
        Self::new(decoded, transposes, array_codec, bytes_codecs)
    }

    /// The list `codecs` in a zarr v3 document.
    pub fn to_v3(&self) -> Value {
        let mut list: Vec<Value> = self.transposes.iter().map(Order::to_v3).collect();
        list.push(match &self.array_codec {
            ArrayCodec::Bytes(endian) => endian.to_v3(self.dtype().word_bytes()),
            ArrayCodec::Sharding(sharding) => sharding.to_v3(),
        });
        list.extend(self.bytes_codecs.iter().map(BytesCodec::to_v3));
        Value::Array(list)
    }

    /// The shape of the decoded chunk.
    pub fn shape(&self) -> &Shape {
        &self.decoded.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.decoded.dtype
    }

    /// The bytes of one element of absent parts.
    pub fn fill(&self) -> &[u8] {
        &self.decoded.fill
    }

    /// Length of the decoded chunk.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The bytes-to-bytes steps.
    pub fn bytes_codecs(&self) -> &[BytesCodec] {
        &self.bytes_codecs
    }

    /// The endianness of the `bytes` codec; little if that codec is inside shards.
    pub fn endian(&self) -> Endian {
        match &self.array_codec {
            ArrayCodec::Bytes(endian) => *endian,
            ArrayCodec::Sharding(_) => Endian::Little,
        }
    }

    /// Whether the order of the axes is reversed.
    pub fn is_column_major(&self) -> bool {
        self.transposes.first().is_some_and(Order::is_reversed)
    }

    /// The sharding codec, if it is the whole chain, so that parts of a stored value can be read;
    /// `None` otherwise.
    pub fn sharding(&self) -> Option<&Sharding> {
        match &self.array_codec {
            ArrayCodec::Sharding(sharding) if self.order.is_none() => Some(sharding),
            _ => None,
        }
    }

    /// Whether there is a sharding codec anywhere in the chain.
    pub fn has_shards(&self) -> bool {
        matches!(self.array_codec, ArrayCodec::Sharding(_))
    }

    /// Whether stored bytes are the chunk in C order, little endian.
    pub fn is_raw(&self) -> bool {
        let in_place = match &self.array_codec {
            ArrayCodec::Bytes(endian) => *endian == Endian::Little || self.dtype().word_bytes() == 1,
            ArrayCodec::Sharding(_) => false,
        };
        in_place && self.order.is_none() && self.bytes_codecs.is_empty()
    }

    /// The chain as text for users, such as `raw`, `zstd` or `sharding_indexed(zstd)`.
    pub fn coding(&self) -> String {
        if self.is_raw() {
            return "raw".to_owned();
        }
        let mut steps = Vec::new();
        if self.order.is_some() {
            steps.push("transpose".to_owned());
        }
        match &self.array_codec {
            ArrayCodec::Bytes(Endian::Big) if self.dtype().word_bytes() > 1 => {
                steps.push("big endian".to_owned())
            }
            ArrayCodec::Bytes(_) => {}
            ArrayCodec::Sharding(sharding) => {
                steps.push(format!("sharding_indexed({})", sharding.inner().coding()))
            }
        }
        steps.extend(self.bytes_codecs.iter().map(|codec| codec.name().to_owned()));
        steps.join(", ")
    }

    /// Decodes a stored chunk into `out`, which is exactly as long as the chunk. `missing` says
    /// whether absent parts of a shard are damage or have the fill value.
    pub fn decode_into(&self, stored: &[u8], out: &mut [u8], missing: Missing) -> Result<()> {
        if out.len() as u64 != self.len_bytes {
            return Err(wrong_len(self.len_bytes, out.len() as u64));
        }
        match &self.order {
            None => self.decode_encoded(stored, out, missing),
            Some(order) => {
                self.check_plausible(stored)?;
                let mut encoded = buffer(self.len_bytes)?;
                self.decode_encoded(stored, &mut encoded, missing)?;
                order.decode_into(self.dtype(), self.shape(), encoded, out)
            }
        }
    }

    /// Whether a stored chunk can be decoded piece by piece. Then neither the stored nor the
    /// decoded chunk needs a buffer.
    pub fn is_streamed(&self) -> bool {
        self.order.is_none()
            && matches!(self.array_codec, ArrayCodec::Bytes(_))
            && matches!(self.bytes_codecs.as_slice(), [BytesCodec::Zstd(_)])
    }

    /// Decodes a stored chunk of a chain that [is streamed](Self::is_streamed) into `out`, which is
    /// exactly as long as the chunk. `stored` passes the bytes front to back.
    pub fn decode_streamed(
        &self,
        out: &mut [u8],
        stored: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        if out.len() as u64 != self.len_bytes {
            return Err(wrong_len(self.len_bytes, out.len() as u64));
        }
        let mut pages = FreshPages::of(out);
        let mut decoder = FrameDecoder::new(out)?;
        stored(&mut |bytes| {
            pages.make_to(decoder.len_bytes().saturating_add(bytes.len()));
            decoder.push(bytes)
        })?;
        decoder.finish()?;
        bytes_codec::to_memory(self.dtype(), self.endian(), out)
    }

    /// Decodes a stored chunk into `buffer`. First checks that `stored` is long enough for the
    /// chunk, then gives `buffer` the needed length.
    pub fn decode(&self, stored: &[u8], buffer: &mut Vec<u8>, missing: Missing) -> Result<()> {
        self.check_plausible(stored)?;
        resize(buffer, self.len_bytes)?;
        self.decode_into(stored, buffer, missing)
    }

    /// Encodes a chunk: C order, little endian, of the full chunk shape.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of bytes or odd bools, `Unsupported` for codecs that
    /// regrow only reads.
    pub fn encode(&self, chunk: &[u8]) -> Result<Vec<u8>> {
        if chunk.len() as u64 != self.len_bytes {
            return Err(Error::invalid(format!("a chunk of shape {} has another size", self.shape()))
                .expected(format_args!("{} bytes", self.len_bytes), chunk.len()));
        }
        let encoded = match &self.order {
            None => Cow::Borrowed(chunk),
            Some(order) => Cow::Owned(order.encode(self.dtype(), self.shape(), chunk)?),
        };
        let mut bytes = match &self.array_codec {
            ArrayCodec::Bytes(endian) => {
                let mut bytes = match encoded {
                    Cow::Borrowed(chunk) => copied(chunk)?,
                    Cow::Owned(bytes) => bytes,
                };
                bytes_codec::to_stored(self.dtype(), *endian, &mut bytes)?;
                bytes
            }
            ArrayCodec::Sharding(sharding) => sharding.encode(&encoded)?,
        };
        for codec in &self.bytes_codecs {
            bytes = codec.encode(&bytes)?;
        }
        Ok(bytes)
    }

    fn decode_encoded(&self, stored: &[u8], out: &mut [u8], missing: Missing) -> Result<()> {
        match &self.array_codec {
            ArrayCodec::Bytes(endian) => {
                self.decode_bytes(stored, out)?;
                bytes_codec::to_memory(self.dtype(), *endian, out)
            }
            ArrayCodec::Sharding(sharding) => sharding.decode_into(stored, out, missing),
        }
    }

    fn decode_bytes(&self, stored: &[u8], out: &mut [u8]) -> Result<()> {
        let Some((first, outer)) = self.bytes_codecs.split_first() else { return copy_exact(stored, out) };
        let mut bytes = Cow::Borrowed(stored);
        for codec in outer.iter().rev() {
            let at_most = self.len_bytes.saturating_mul(2).saturating_add(COMPRESSED_GROWTH_BYTES);
            bytes = Cow::Owned(codec.decode_at_most(&bytes, at_most)?);
        }
        first.decode_into(&bytes, out)
    }

    /// Returns an error if `stored` is too short for the chunk, before memory is allocated for the
    /// chunk.
    fn check_plausible(&self, stored: &[u8]) -> Result<()> {
        if self.has_shards() {
            return Ok(());
        }
        let at_most = |len, codec: &BytesCodec| codec.decoded_len_max_bytes(len);
        let at_most = self.bytes_codecs.iter().rev().fold(stored.len() as u64, at_most);
        if at_most < self.len_bytes {
            return Err(Error::corrupt("it is too short to hold a chunk of this shape").expected(
                format_args!("{} bytes decoded", self.len_bytes),
                format_args!("{} bytes stored", stored.len()),
            ));
        }
        Ok(())
    }
}

/// The name and configuration of an extension object of a zarr v3 document:
/// `{"name":…,"configuration":{…}}`.
pub fn name_and_configuration(value: &Value, what: &str) -> Result<(String, Members)> {
    let mut members = Members::of(value.clone(), format!("a {what} of a zarr array"))?;
    let name = members.required_text("name")?;
    let configuration = members.take("configuration").unwrap_or_else(|| Value::Object(Default::default()));
    members.finish()?;
    let configuration = Members::of(configuration, format!("the {what} {name:?}"))?;
    Ok((name, configuration))
}
