//! The tree as text for people: one line a leaf, then the totals.

use std::fmt::Write as _;

use super::Checkpoint;
use crate::sharding::Sharding;
use crate::text::{brief, counted, format_bytes, printable};
use crate::tree::{KeyPath, LeafInfo, LeafKind};

/// Numbers end below each other.
const BYTES_COLUMN: usize = 3;

/// The last one, and often empty.
const SHARDING_COLUMN: usize = 4;

/// A longer cell moves the rest of its own row, and of no other.
const COLUMN_WIDTH_MAX: usize = 160;

/// The checkpoint in a few lines, then its leaves as a table: key path, dtype, shape, bytes; then
/// the totals.
///
/// ```text
/// step_100: regrow, one safetensors file
///   params/dense/bias    float32   [10]        40 B
///   params/dense/kernel  float32   [64,10]  2.5 KiB  P('x', None) over x=4,y=2, shards [16,10]
///   2 leaves, 2.5 KiB
/// ```
///
/// How arrays lay on devices stands behind them, or in a line above where all lay on the same one.
pub fn overview(checkpoint: &Checkpoint) -> String {
    let description = checkpoint.description();
    let path = checkpoint.path().to_string_lossy();
    let mut text = format!("{}: {}", printable(&path), printable(&description.layout));
    if !description.variant.is_empty() {
        let _ = write!(text, ", {}", printable(&description.variant));
    }
    if let Some(step) = description.step {
        let _ = write!(text, ", step {step} of {:?}", description.steps);
    }
    text.push('\n');
    for (name, kind) in &description.items {
        let _ = writeln!(text, "  item {}: {}", printable(name), printable(kind));
    }
    if let Some(metadata) = description.custom_metadata.as_ref().filter(|value| !value.is_null()) {
        let _ = writeln!(text, "  metadata {}", printable(&metadata.to_string()));
    }
    if let Some(metrics) = &description.metrics {
        let _ = writeln!(text, "  metrics {}", printable(&metrics.to_string()));
    }
    let leaves = checkpoint.tree().leaves();
    let device = only_device(leaves);
    if let Some(device) = device {
        let _ = writeln!(text, "  every array on {}", printable(&device.to_string()));
    }
    let rows: Vec<[String; 5]> = checkpoint
        .paths()
        .iter()
        .zip(leaves)
        .map(|(path, info)| {
            row(path, info, if device.is_none() { sharding_words(info) } else { String::new() })
        })
        .collect();
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(COLUMN_WIDTH_MAX));
        }
    }
    for row in &rows {
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Not by the formatter, which panics at widths that it cannot hold.
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let _ = match at {
                BYTES_COLUMN => write!(text, "  {padding}{cell}"),
                SHARDING_COLUMN if cell.is_empty() => Ok(()),
                SHARDING_COLUMN => write!(text, "  {cell}"),
                _ => write!(text, "  {cell}{padding}"),
            };
        }
        text.push('\n');
    }
    let total =
        checkpoint.tree().leaves().iter().map(|leaf| leaf.len_bytes()).fold(0_u64, u64::saturating_add);
    let _ =
        writeln!(text, "  {}, {}", counted(checkpoint.tree().len(), "leaf", "leaves"), format_bytes(total));
    for warning in &description.warnings {
        let _ = writeln!(text, "  warning: {}", printable(warning));
    }
    for note in &description.notes {
        let _ = writeln!(text, "  note: {}", printable(note));
    }
    text
}

fn row(path: &KeyPath, info: &LeafInfo, sharding: String) -> [String; 5] {
    let dtype = match &info.kind {
        LeafKind::Str => "str".to_owned(),
        LeafKind::Bytes => "bytes".to_owned(),
        LeafKind::Placeholder => "placeholder".to_owned(),
        LeafKind::Unknown(name) => format!("unknown {}", printable(name)),
        LeafKind::PrngKey(Some(implementation)) => format!("key<{}>", printable(implementation)),
        _ => info.dtype.to_string(),
    };
    [path.to_string(), dtype, info.shape.to_string(), format_bytes(info.len_bytes()), sharding]
}

/// How an array lay on devices, with the shape of its parts where it was cut: `P('x',) over x=4,
/// shards [16]`.
fn sharding_words(info: &LeafInfo) -> String {
    let Some(sharding) = &info.sharding else { return String::new() };
    let words = sharding.to_string();
    let mut words = printable(&brief(&words)).into_owned();
    if let Some(shard) = info.shard_shape().filter(|shard| *shard != info.shape) {
        let _ = write!(words, ", shards {shard}");
    }
    words
}

/// The one device that every array with a sharding lay on.
fn only_device(leaves: &[LeafInfo]) -> Option<&Sharding> {
    let mut shardings = leaves.iter().filter_map(|leaf| leaf.sharding.as_deref());
    let first = shardings.next().filter(|first| matches!(first, Sharding::SingleDevice(_)))?;
    shardings.all(|other| std::ptr::eq(first, other) || first == other).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let texts = [0, 1023, 1024, 1536, 1 << 30].map(format_bytes);
        assert_eq!(texts, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB"]);
    }
}
