//! How fast memory is copied, alone and with crc32c: what the benchmark compares loads and
//! snapshots with.
//!
//!     cargo run --release --example limits -- BYTES
//!
//! Answers each line `copy` or `copy-crc32c` on stdin with the seconds that it took, on one thread,
//! between two buffers that were touched before. Blocks of 256 KiB are hashed right after they are
//! copied, out of the cache.

use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use regrow_base::bytes::checksum::Crc32c;

const BLOCK_LEN_BYTES: usize = 256 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let len_bytes: usize = std::env::args().nth(1).ok_or("how many bytes?")?.parse()?;
    let source: Vec<u8> = (0..len_bytes).map(|at| (at ^ (at >> 9)) as u8).collect();
    let mut target = vec![1_u8; len_bytes];
    for line in io::stdin().lock().lines() {
        let is_hashed = match line?.as_str() {
            "copy" => false,
            "copy-crc32c" => true,
            other => return Err(format!("{other:?} is neither `copy` nor `copy-crc32c`").into()),
        };
        let begin = Instant::now();
        let mut digest = Crc32c::new();
        for (to, from) in target.chunks_mut(BLOCK_LEN_BYTES).zip(source.chunks(BLOCK_LEN_BYTES)) {
            to.copy_from_slice(from);
            if is_hashed {
                digest.update(to);
            }
        }
        black_box((&target, digest.value()));
        writeln!(io::stdout(), "{}", begin.elapsed().as_secs_f64())?;
        io::stdout().flush()?;
    }
    Ok(())
}
