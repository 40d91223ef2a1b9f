//! Documents and nodes: small files that are read as a whole. Each is written with a checksum for
//! `regrow.json`.

use super::super::manifest::{SmallFile, Sum};
use crate::COMMIT_MARKERS;
use crate::orbax::writer::documents::DocumentSink;
use regrow_base::error::{Error, Result};
use regrow_storage::NewFolder;
use regrow_store::FileWriter;

/// Documents up to this length are written in one step, longer ones as a stream.
const GATHERED_LEN_MAX_BYTES: usize = 1 << 20;

/// Writes files that are checked as a whole, and keeps their checksums.
pub(super) struct SmallFiles<'a> {
    staged: &'a dyn NewFolder,
    pub files: Vec<SmallFile>,
    current: Option<Current>,
}

/// A file that is being written: collected in memory while it is small, then streamed.
struct Current {
    name: String,
    len_bytes: u64,
    sum: Sum,
    gathered: Vec<u8>,
    out: Option<FileWriter>,
}

impl<'a> SmallFiles<'a> {
    pub fn new(staged: &'a dyn NewFolder) -> Self {
        Self { staged, files: Vec::new(), current: None }
    }

    pub fn write_whole(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.begin(name)?;
        self.write(bytes)?;
        self.end()
    }
}

impl DocumentSink for SmallFiles<'_> {
    fn begin(&mut self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.current = Some(Current { name, len_bytes: 0, sum: Sum::new(), gathered: Vec::new(), out: None });
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.current else { return Err(Error::invalid("no file was begun")) };
        file.len_bytes += bytes.len() as u64;
        file.sum.update(bytes);
        if file.out.is_none() && file.gathered.len() + bytes.len() <= GATHERED_LEN_MAX_BYTES {
            file.gathered.extend_from_slice(bytes);
            return Ok(());
        }
        let out = match &mut file.out {
            Some(out) => out,
            None => {
                let out = file.out.insert(self.staged.writer(&file.name, 0, 0)?);
                out.write(&std::mem::take(&mut file.gathered))?;
                out
            }
        };
        out.write(bytes)
    }

    fn end(&mut self) -> Result<()> {
        let is_marker = self.current.as_ref().is_some_and(|file| file.name == COMMIT_MARKERS[0]);
        if let Some(line) = self.staged.marker_line().filter(|_| is_marker) {
            // Add the line here, because `regrow.json` has the checksum of the whole marker.
            self.write(line.as_bytes())?;
        }
        let Some(file) = self.current.take() else { return Ok(()) };
        match file.out {
            Some(out) => drop(out.finish()?),
            None => self.staged.write(&file.name, &file.gathered)?,
        }
        self.files.push(file.sum.record(file.name, file.len_bytes));
        Ok(())
    }
}
