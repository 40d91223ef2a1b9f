//! Checks the blocks of sealed files that no check of a leaf covers. If the layout reads files by
//! their paths, checks whole files.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::reads::{CheckFor, Checked, Checks, check_ahead};
use crate::seal::SealedFile;

const FINDINGS_OF_FILE_MAX: usize = 8;

/// The blocks of each file that another reader checks anyway.
#[derive(Debug)]
pub(super) struct Touched {
    blocks: Vec<Vec<bool>>,
    /// The number of the file to which a checksum table belongs.
    tables: std::collections::HashMap<*const (), usize>,
}

impl Touched {
    pub fn none(files: &[Arc<SealedFile>]) -> Self {
        let count = |file: &Arc<SealedFile>| file.table.blocks(0, file.len_bytes).count();
        let blocks = files.iter().map(|file| vec![false; count(file)]).collect();
        let key = |file: &Arc<SealedFile>| std::ptr::from_ref(&file.table).cast();
        Self { blocks, tables: files.iter().enumerate().map(|(at, file)| (key(file), at)).collect() }
    }

    /// Marks the blocks of these checks as checked.
    pub fn add(&mut self, checks: Checks<'_>) {
        let key = std::ptr::from_ref(checks.table).cast();
        let Some(blocks) = self.tables.get(&key).and_then(|&at| self.blocks.get_mut(at)) else { return };
        for block in checks.table.blocks(checks.start_bytes, checks.end_bytes) {
            if let Some(slot) = blocks.get_mut(block.number) {
                *slot = true;
            }
        }
    }

    /// Marks the blocks that lie wholly within these bytes as checked.
    pub fn add_within(&mut self, at: usize, file: &SealedFile, bytes: Range<u64>) {
        let Some(blocks) = self.blocks.get_mut(at) else { return };
        for block in file.table.blocks(bytes.start, bytes.end) {
            if block.start >= bytes.start
                && block.end <= bytes.end
                && let Some(slot) = blocks.get_mut(block.number)
            {
                *slot = true;
            }
        }
    }

    /// The byte ranges of a file's blocks that are not marked.
    fn left(&self, at: usize, checked: Checked<'_>) -> Vec<Range<u64>> {
        let touched = self.blocks.get(at).map_or(&[][..], Vec::as_slice);
        let mut left: Vec<Range<u64>> = Vec::new();
        let range = checked.table.range();
        for block in checked.table.blocks(range.start, range.end) {
            if touched.get(block.number) == Some(&true) {
                continue;
            }
            match left.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => left.push(block.start..block.end),
            }
        }
        left
    }
}

/// Checks all blocks that no other reader checks. Returns the errors of these blocks, and of files
/// that cannot be opened.
pub(super) fn untouched_findings<'r>(
    touched: &Touched,
    checked: impl Fn(usize) -> Result<Option<Checked<'r>>>,
) -> Result<Vec<Error>> {
    let (mut found, mut ranges) = (Vec::new(), Vec::new());
    for at in 0..touched.blocks.len() {
        match checked(at) {
            Ok(Some(file)) => {
                ranges.extend(touched.left(at, file).into_iter().map(|range| (file, range, 0..0)));
            }
            Ok(None) => {}
            Err(error) => found.push(error),
        }
    }
    // Check all ranges at the speed of the disk. The loop below checks failing blocks again to name
    // them.
    check_ahead(ranges.iter().cloned(), CheckFor::Verify, None)?;
    for (file, range, _) in &ranges {
        let blocks = file.table.blocks(range.start, range.end).filter(|&block| !file.table.has_passed(block));
        for block in blocks.take(FINDINGS_OF_FILE_MAX) {
            found.extend(file.check(block.start, block.end, CheckFor::Verify).err());
        }
    }
    Ok(found)
}

pub(super) fn first_bad(file: Checked<'_>) -> Result<()> {
    let range = file.table.range();
    check_ahead([(file, range.clone(), 0..0)], CheckFor::Verify, None)?;
    file.check(range.start, range.end, CheckFor::Verify).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => error,
        _ => error.in_file(file.blob.describe()),
    })
}
