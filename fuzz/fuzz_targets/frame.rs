//! OCDBT's frame around a body: magic, length, body (its version and compression included), crc32c.

#![allow(dead_code, reason = "each target uses a part of this")]

use regrow_base::bytes::checksum::crc32c;

pub const MANIFEST_MAGIC: u32 = 0x0cdb_3a2a;
pub const NODE_MAGIC: u32 = 0x0cdb_20de;
pub const BODY_OFFSET: usize = 12;
pub const CRC_LEN_BYTES: usize = 4;

pub fn seal(magic: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = magic.to_be_bytes().to_vec();
    frame.extend_from_slice(&((BODY_OFFSET + body.len() + CRC_LEN_BYTES) as u64).to_le_bytes());
    frame.extend_from_slice(body);
    frame.extend_from_slice(&crc32c(&frame).to_le_bytes());
    frame
}

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}
