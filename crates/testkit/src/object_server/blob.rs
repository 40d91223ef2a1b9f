//! The bytes of an object, and their way through requests and answers.
//!
//! A [`Blob`] is a row of shared slices. A `PUT` copies its body once, from hyper's buffers into
//! one allocation of its exact length, so that a small object never keeps a large buffer alive.
//! Nothing else copies bytes: a range of a `GET`, a completed multipart upload, the data of an
//! aws-chunked body and a copied object share slices.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

/// The bytes of an object or of an answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Blob {
    /// The slices; none of them is empty.
    pieces: Vec<Bytes>,
    len_bytes: u64,
}

impl Blob {
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len_bytes += piece.len() as u64;
            self.pieces.push(piece);
        }
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.pieces.extend(other.pieces.iter().cloned());
        self.len_bytes += other.len_bytes;
    }

    /// The bytes of a range. The part of the range after the end is ignored.
    pub(super) fn slice(&self, range: Range<u64>) -> Self {
        let mut out = Self::default();
        let mut offset = 0_u64;
        for piece in &self.pieces {
            let len = piece.len() as u64;
            let start = range.start.clamp(offset, offset + len) - offset;
            let end = range.end.clamp(offset, offset + len) - offset;
            if start < end {
                // `start` and `end` are at most the length of a slice in memory, so they fit.
                out.push(piece.slice(start as usize..end as usize));
            }
            offset += len;
        }
        out
    }

    /// All bytes in one slice. Copies them if there are several slices.
    pub(super) fn to_bytes(&self) -> Bytes {
        match self.pieces.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            several => several.concat().into(),
        }
    }

    /// A copy with one inverted byte. An offset after the end wraps around. An empty blob does not
    /// change.
    pub(super) fn with_wrong_byte(&self, offset: u64) -> Self {
        let mut bytes = self.to_bytes().to_vec();
        if let Some(at) = offset.checked_rem(self.len_bytes)
            && let Some(byte) = bytes.get_mut(at as usize)
        {
            *byte = !*byte;
        }
        Bytes::from(bytes).into()
    }

    pub(super) fn checksum(&self, algorithm: CrcAlgorithm) -> u64 {
        let mut digest = Digest::new(algorithm);
        for piece in &self.pieces {
            digest.update(piece);
        }
        digest.finalize()
    }
}

impl From<Bytes> for Blob {
    fn from(bytes: Bytes) -> Self {
        let mut blob = Self::default();
        blob.push(bytes);
        blob
    }
}

/// Reads the whole body of a request, into one allocation if its length is known.
pub(super) async fn collected(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let len = body.size_hint().exact().unwrap_or(0);
    let mut bytes = BytesMut::with_capacity(usize::try_from(len).unwrap_or(0));
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

/// The data of an `aws-chunked` body, without its headers and trailers. `None` if it is malformed
/// or incomplete.
///
/// ```text
/// 10000;chunk-signature=ad80...\r\n | 65536 bytes | \r\n ... 0;chunk-signature=b6c6...\r\n | trailers | \r\n
/// ```
///
/// Source: AWS, "Signature calculations: transferring a payload in multiple chunks".
pub(super) fn unchunked(body: &Bytes) -> Option<Blob> {
    let mut blob = Blob::default();
    let mut at = 0;
    loop {
        let line_len = body.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(body.get(at..at + line_len)?).ok()?;
        let len = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        at += line_len + 2;
        if len == 0 {
            return Some(blob);
        }
        let end = at.checked_add(len)?;
        if body.get(end..end.checked_add(2)?)? != b"\r\n" {
            return None;
        }
        blob.push(body.slice(at..end));
        at = end + 2;
    }
}

/// The body of an answer. It may be slow, and it may end before the length that it announced.
#[derive(Debug, Default)]
pub(super) struct Payload {
    pieces: VecDeque<Bytes>,
    left_bytes: u64,
    /// The number of bytes after which the connection is closed.
    cut_bytes: Option<u64>,
    drip: Option<(usize, Duration)>,
    pause: Option<Pin<Box<Sleep>>>,
}

/// The error that closes a connection without an answer, or before the end of the answer.
#[derive(Debug)]
pub(super) struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is closed, as a fault demands")
    }
}

impl std::error::Error for Dropped {}

impl Payload {
    pub(super) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    pub(super) fn into_blob(self) -> Blob {
        Blob { pieces: self.pieces.into(), len_bytes: self.left_bytes }
    }

    pub(super) fn cut_after(&mut self, bytes: u64) {
        self.cut_bytes = (bytes < self.left_bytes).then_some(bytes);
    }

    /// Sends the body in chunks, with a pause before each.
    pub(super) fn drip(&mut self, chunk_bytes: usize, pause: Duration) {
        self.drip = Some((chunk_bytes.max(1), pause));
        self.pause = Some(Box::pin(tokio::time::sleep(pause)));
    }
}

impl From<Blob> for Payload {
    fn from(blob: Blob) -> Self {
        Self { pieces: blob.pieces.into(), left_bytes: blob.len_bytes, ..Self::default() }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = Dropped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Dropped>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.cut_bytes == Some(0) {
            return Poll::Ready(Some(Err(Dropped)));
        }
        let Some(mut piece) = self.pieces.pop_front() else { return Poll::Ready(None) };
        let wanted = self.drip.map_or(piece.len(), |(chunk_bytes, _)| chunk_bytes).min(piece.len());
        let wanted = self.cut_bytes.map_or(wanted, |cut| cut.min(wanted as u64) as usize);
        if wanted < piece.len() {
            let rest = piece.split_off(wanted);
            self.pieces.push_front(rest);
        }
        self.left_bytes -= piece.len() as u64;
        if let Some(cut) = &mut self.cut_bytes {
            *cut -= piece.len() as u64;
        }
        self.pause = match (self.cut_bytes, self.drip) {
            // During the pause hyper sends the bytes that it has. When a body fails, hyper drops
            // them.
            (Some(0), _) => Some(Box::pin(tokio::time::sleep(Duration::from_millis(2)))),
            (_, Some((_, pause))) if self.left_bytes > 0 => Some(Box::pin(tokio::time::sleep(pause))),
            _ => None,
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_span_pieces() {
        let mut blob = Blob::default();
        for piece in ["ab", "", "cde", "f"] {
            blob.push(Bytes::from_static(piece.as_bytes()));
        }
        assert_eq!(blob.len_bytes(), 6);
        for start in 0..=6_usize {
            for end in start..=8 {
                let slice = blob.slice(start as u64..end as u64);
                assert_eq!(slice.to_bytes(), "abcdef".as_bytes()[start..end.min(6)]);
            }
        }
        assert_eq!(blob.with_wrong_byte(7).to_bytes(), b"a\x9dcdef".as_slice());
        assert_eq!(blob.checksum(CrcAlgorithm::Crc64Nvme), {
            crc_fast::checksum(CrcAlgorithm::Crc64Nvme, b"abcdef")
        });
    }

    #[test]
    fn chunks_are_unwrapped() {
        let body = Bytes::from_static(
            b"3;chunk-signature=0a\r\nabc\r\nA\r\n0123\r\n5678\r\n0\r\nx-amz-checksum-crc32:x\r\n\r\n",
        );
        assert_eq!(unchunked(&body).unwrap().to_bytes(), b"abc0123\r\n5678".as_slice());
        for end in 0..41 {
            assert!(unchunked(&body.slice(..end)).is_none(), "{end}");
        }
        assert!(unchunked(&Bytes::from_static(b"ffffffffffffffff\r\n")).is_none());
    }
}
