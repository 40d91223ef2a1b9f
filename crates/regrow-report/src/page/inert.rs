//! Writes JSON into a script element. A `</script>` in a text must not end the element.

use std::io::{self, Write};

/// Writes JSON with `<` as `\u003c`. In JSON `<` occurs only in texts, and a parser reads the same
/// text.
pub struct Inert<W>(pub W);

impl<W: Write> Write for Inert<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut parts = bytes.split(|byte| *byte == b'<');
        if let Some(first) = parts.next() {
            self.0.write_all(first)?;
        }
        for part in parts {
            self.0.write_all(br"\u003c")?;
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
