//! The tree as text for people: one line a leaf, then the totals.

use std::fmt::Write as _;

use super::Checkpoint;
use crate::text::format_bytes;
use crate::text::{counted, printable};
use crate::tree::LeafKind;

/// A longer cell moves the rest of its own row, and of no other.
const COLUMN_WIDTH_MAX: usize = 160;

/// The checkpoint in a few lines, then its leaves as a table: key path, dtype, shape, bytes; then the totals.
///
/// ```text
/// step_100: regrow, one safetensors file
///   params/dense/bias    float32   [10]        40 B
///   params/dense/kernel  float32   [64,10]  2.5 KiB
///   2 leaves, 2.5 KiB
/// ```
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
    let rows: Vec<[String; 4]> = checkpoint.paths().iter().zip(checkpoint.tree().leaves()).map(row).collect();
    let mut widths = [0; 4];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(COLUMN_WIDTH_MAX));
        }
    }
    for row in &rows {
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Not by the formatter, which panics at widths that it cannot hold.
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let is_last = at + 1 == row.len();
            let (before, after) = if is_last { (padding.as_str(), "") } else { ("", padding.as_str()) };
            let _ = write!(text, "  {before}{cell}{after}");
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

fn row((path, info): (&crate::tree::KeyPath, &crate::tree::LeafInfo)) -> [String; 4] {
    let dtype = match &info.kind {
        LeafKind::Str => "str".to_owned(),
        LeafKind::Bytes => "bytes".to_owned(),
        LeafKind::Placeholder => "placeholder".to_owned(),
        LeafKind::Unknown(name) => format!("unknown {}", printable(name)),
        LeafKind::PrngKey(Some(implementation)) => format!("key<{}>", printable(implementation)),
        _ => info.dtype.to_string(),
    };
    [path.to_string(), dtype, info.shape.to_string(), format_bytes(info.len_bytes())]
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
