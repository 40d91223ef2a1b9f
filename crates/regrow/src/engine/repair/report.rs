//! The report of a repair.

use std::fmt;
use std::path::PathBuf;

use super::RepairOptions;
use crate::error::Error;
use crate::location::Location;
use crate::text::{counted, format_bytes, printable};

/// The result of a repair.
#[derive(Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// Bytes that were examined.
    pub bytes: u64,
    /// Repaired files; with [`RepairOptions::check`], files that a repair would rewrite.
    pub healed: Vec<HealedFile>,
    /// Lost or damaged files that were rebuilt from other files, without parity; with
    /// [`RepairOptions::check`], files that a repair would rebuild.
    pub recovered: Vec<RecoveredFile>,
    /// Bytes that could not be restored: file, offset, length.
    pub lost: Vec<Error>,
    /// Whether the parity was damaged too. It was then rewritten, unless bytes are lost.
    pub is_parity_damaged: bool,
    /// Findings of opening and verifying the checkpoint after the repair, leaf by leaf. With
    /// [`RepairOptions::check`]: before the repair, and only without parity.
    pub findings: Vec<Error>,
    /// Other actions: unfinished saves that were finished or removed.
    pub notes: Vec<String>,
    /// Whether the checkpoint is now whole, and the proof.
    pub verdict: Verdict,
    /// Whether this was only a check, which writes nothing.
    pub is_check: bool,
}

impl RepairReport {
    pub(super) fn of(at: &Location, options: &RepairOptions) -> Self {
        Self {
            path: at.describe(),
            bytes: 0,
            healed: Vec::new(),
            recovered: Vec::new(),
            lost: Vec::new(),
            is_parity_damaged: false,
            findings: Vec::new(),
            notes: Vec::new(),
            verdict: Verdict::NotKnown,
            is_check: options.check,
        }
    }

    /// Whether nothing is lost, and the verification finds no damage. [`verdict`](Self::verdict)
    /// tells whether checksums prove the whole checkpoint.
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.findings.is_empty()
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        let bytes = self.healed.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        let (heal, recover) = match self.is_check {
            true => ("can be healed", "can be rebuilt"),
            false => ("healed", "rebuilt"),
        };
        let mut said = Vec::new();
        if !self.healed.is_empty() {
            let files = counted(self.healed.len(), "file", "files");
            said.push(format!("{files} {heal}, {} in them", format_bytes(bytes)));
        }
        if !self.recovered.is_empty() {
            said.push(format!("{} {recover}", counted(self.recovered.len(), "file", "files")));
        }
        if self.is_parity_damaged && self.healed.is_empty() {
            said.push("the parity alone was damaged".to_owned());
        }
        if !self.lost.is_empty() {
            said.push(format!("{} lost", counted(self.lost.len(), "part", "parts")));
        }
        if !self.findings.is_empty() {
            said.push(counted(self.findings.len(), "finding", "findings"));
        }
        if said.is_empty() {
            said.push("nothing to do".to_owned());
        }
        if self.verdict != Verdict::Damaged {
            said.push(self.verdict.to_string());
        }
        write!(f, "{}: {}", printable(&path), said.join("; "))?;
        self.notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

/// A damaged file that was repaired.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HealedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of bytes in it that were restored.
    pub bytes: u64,
}

/// A lost or damaged file that was rebuilt from other files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecoveredFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The source of the new content, and what is uncertain about it.
    pub how: String,
    /// Whether the new content is not proved to equal the old: new checksums of the current files,
    /// or metadata of another step. The old file is then kept beside it, as `regrow.damaged.NAME`.
    pub is_guess: bool,
}

/// Whether a checkpoint has the content that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Each file has the content that was written. This is the proof.
    Whole(ProofBy),
    /// No damage was found, but no checksum proves all files.
    NotKnown,
    /// Something is lost or damaged. In a check: or a repair would write something.
    Damaged,
}

/// The proof that files have the content that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofBy {
    /// A seal or a signature. The key of the signature is not checked.
    Seal,
    /// The checksums in the parity file of the checkpoint.
    Parity,
    /// The checksums of every file in the records of the layout.
    Checksums,
    /// The other checkpoint, which has the same bytes.
    Replica,
}

impl Verdict {
    /// The verdict as text: `whole`, `not known`, `damaged`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole(_) => "whole",
            Self::NotKnown => "not known",
            Self::Damaged => "damaged",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(by) => write!(f, "whole, by {}", by.name()),
            Self::NotKnown => f.write_str("no damage found, but nothing proves every file"),
            Self::Damaged => f.write_str("damaged"),
        }
    }
}

impl ProofBy {
    /// The proof as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seal => "its seal or signature",
            Self::Parity => "its parity",
            Self::Checksums => "its checksums",
            Self::Replica => "the identical other checkpoint",
        }
    }
}
