//! The report of a comparison.

use std::fmt;
use std::path::PathBuf;

use crate::array::{Distance, Worst};
use crate::error::Error;
use crate::text::{counted, format_bytes, printable};
use crate::tree::{KeyPath, LeafInfo};

const SHOWN_MAX: usize = 20;

/// One of the two compared checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first checkpoint.
    A,
    /// The second checkpoint.
    B,
}

impl Side {
    /// The side as text: `a` or `b`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

/// The result for a leaf. The first two variants count as the same, all others as differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafStatus {
    /// All elements have the same bits.
    Equal,
    /// Some elements differ, but none by more than the tolerance.
    Within,
    /// The values differ.
    Values,
    /// The dtypes differ. The values are equal within the tolerance, or were not compared.
    Dtype,
    /// The kinds differ, such as a text and an array. With
    /// [`check_types`](super::DiffOptions::check_types) any two different kinds.
    Kind,
    /// The shapes differ, so the elements were not compared.
    Shape,
    /// Only the first checkpoint has the leaf.
    OnlyA,
    /// Only the second checkpoint has the leaf.
    OnlyB,
    /// One or both sides cannot be read, so the result is unknown.
    Unread,
}

impl LeafStatus {
    /// All statuses, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Equal,
        Self::Within,
        Self::Values,
        Self::Dtype,
        Self::Kind,
        Self::Shape,
        Self::OnlyA,
        Self::OnlyB,
        Self::Unread,
    ];

    /// A lower-case name for tables and JSON: `equal`, `only_a`, ...
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Within => "within",
            Self::Values => "values",
            Self::Dtype => "dtype",
            Self::Kind => "kind",
            Self::Shape => "shape",
            Self::OnlyA => "only_a",
            Self::OnlyB => "only_b",
            Self::Unread => "unread",
        }
    }

    /// Whether the leaf counts as the same.
    pub fn is_same(self) -> bool {
        matches!(self, Self::Equal | Self::Within)
    }
}

/// One leaf of one or both checkpoints.
#[derive(Debug, Clone)]
pub struct LeafDiff {
    /// The key path, taken from the first checkpoint if it has the leaf.
    pub path: KeyPath,
    /// The result of the comparison.
    pub status: LeafStatus,
    /// The leaf in the first checkpoint.
    pub a: Option<LeafInfo>,
    /// The leaf in the second checkpoint.
    pub b: Option<LeafInfo>,
    /// The distance between the elements; `None` if they were not compared as numbers.
    pub distance: Option<Box<Distance>>,
    /// Whether both sides are the same bytes of one file. These bytes are read once, or not at all
    /// if only equality is asked for.
    pub is_same_file: bool,
}

impl LeafDiff {
    /// The index of the pair of elements that differs most, and the pair.
    pub fn worst(&self) -> Option<(Vec<u64>, Worst)> {
        let worst = self.distance.as_ref()?.worst()?;
        let mut rest = worst.element;
        let index = self.a.as_ref()?.shape.strides_elements().into_iter().map(|stride| {
            let at = rest / stride.max(1);
            rest %= stride.max(1);
            at
        });
        Some((index.collect(), worst))
    }
}

/// A container that has another kind in the other checkpoint; or `None` or an empty container that
/// only one checkpoint has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDiff {
    /// The key path.
    pub path: KeyPath,
    /// The kind of container in the first checkpoint, such as `dict` or `named_tuple
    /// optax.AdamState`.
    pub a: Option<String>,
    /// The kind of container in the second checkpoint.
    pub b: Option<String>,
}

/// A read error in one of the checkpoints.
#[derive(Debug)]
pub struct DiffFinding {
    /// The checkpoint that has the error.
    pub side: Side,
    /// The error: what failed, where, expected and found, what to do.
    pub error: Error,
}

/// The number of leaves of each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffCounts([u64; LeafStatus::ALL.len()]);

impl DiffCounts {
    /// The number of leaves of one status.
    pub fn of(&self, status: LeafStatus) -> u64 {
        self.0.get(status as usize).copied().unwrap_or(0)
    }

    /// The number of all leaves.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of leaves that count as different.
    pub fn different(&self) -> u64 {
        LeafStatus::ALL.into_iter().filter(|status| !status.is_same()).map(|status| self.of(status)).sum()
    }

    pub(super) fn add(&mut self, status: LeafStatus, count: u64) {
        if let Some(slot) = self.0.get_mut(status as usize) {
            *slot += count;
        }
    }
}

/// The differences of two checkpoints. Its text is a verdict, and a line for each of the leaves
/// that differ most:
///
/// ```text
/// step_1 and step_2 differ: 2 of 120 leaves (1 values, 1 only_b); 2.0 GiB read
///   only_b  params/new  float32[8]
///   values  params/kernel  float32[64, 64]: 3 of 4096 elements differ, max_abs 1.00e-3, ...
/// ```
#[derive(Debug)]
pub struct DiffReport {
    /// The first checkpoint.
    pub a: PathBuf,
    /// The second checkpoint.
    pub b: PathBuf,
    /// The leaves that differ: first in the order of the first checkpoint, then the leaves only in
    /// the second. With [`list_equal`](super::DiffOptions::list_equal) all leaves.
    pub leaves: Vec<LeafDiff>,
    /// The number of leaves of each status, including leaves that are not listed.
    pub counts: DiffCounts,
    /// Containers that differ. They count as differences only with
    /// [`check_types`](super::DiffOptions::check_types).
    pub containers: Vec<ContainerDiff>,
    /// The number of leaves that have two kinds and count as the same.
    pub other_kind_count: u64,
    /// The errors of leaves that could not be read.
    pub findings: Vec<DiffFinding>,
    /// Decoded bytes that were read, of both sides.
    pub read_bytes: u64,
    pub(super) is_equal: bool,
}

impl DiffReport {
    /// Whether no difference exceeds the tolerance, and all leaves could be read.
    pub fn is_equal(&self) -> bool {
        self.is_equal
    }

    /// The leaves, the worst first: leaves that cannot be read, leaves in one checkpoint only,
    /// leaves of another shape, leaves of another kind. Then come leaves with other values or
    /// dtypes, leaves within the tolerance, and equal leaves, each group by largest distance.
    pub fn worst_first(&self) -> Vec<&LeafDiff> {
        let rank = |leaf: &LeafDiff| {
            let distance = leaf.distance.as_ref();
            let far = distance.and_then(|distance| match distance.incomparable_count() {
                0 => distance.max_abs(),
                _ => Some(f64::INFINITY),
            });
            // Leaves with other values and leaves of other dtypes are one group.
            let form =
                if matches!(leaf.status, LeafStatus::Values) { LeafStatus::Dtype } else { leaf.status };
            (form, far.unwrap_or(0.0))
        };
        let mut leaves: Vec<&LeafDiff> = self.leaves.iter().collect();
        leaves.sort_by(|one, other| {
            let (one, other) = (rank(one), rank(other));
            other.0.cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        leaves
    }

    /// The counts as text: `2 values, 1 only_b`.
    pub fn differences(&self) -> String {
        let said = LeafStatus::ALL.into_iter().filter(|status| !status.is_same());
        let said = said.filter(|status| self.counts.of(*status) > 0);
        let mut said: Vec<String> =
            said.map(|status| format!("{} {}", self.counts.of(status), status.name())).collect();
        if !self.is_equal && said.is_empty() {
            said.push(counted(self.containers.len(), "container", "containers"));
        }
        said.join(", ")
    }
}

impl fmt::Display for LeafDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:6}  {}", self.status.name(), self.path)?;
        let form = |info: &LeafInfo| format!("{}{}", info.dtype, info.shape);
        let forms: Vec<String> = [&self.a, &self.b].into_iter().flatten().map(form).collect();
        match forms.as_slice() {
            [a, b] if a != b => write!(f, "  {a} and {b}")?,
            [form, ..] => write!(f, "  {form}")?,
            [] => {}
        }
        let Some(distance) = self.distance.as_ref().filter(|distance| distance.differing_count() > 0) else {
            return Ok(());
        };
        write!(f, ": {} of {} elements differ", distance.differing_count(), distance.count())?;
        if distance.outside_count() < distance.differing_count() {
            write!(f, ", {} beyond the tolerance", distance.outside_count())?;
        }
        if let Some(max_abs) = distance.max_abs() {
            write!(f, ", max_abs {max_abs:.2e}")?;
        }
        if let Some(max_relative) = distance.max_relative() {
            write!(f, ", max_relative {max_relative:.2e}")?;
        }
        if let Some(max_ulp) = distance.max_ulp() {
            write!(f, ", max_ulp {max_ulp}")?;
        }
        if let Some(cosine) = distance.cosine() {
            write!(f, ", cosine {cosine:.6}")?;
        }
        if distance.incomparable_count() > 0 {
            write!(f, ", {} with NaN or infinity on one side", distance.incomparable_count())?;
        }
        if let Some((index, Worst { values: [a, b], .. })) = self.worst() {
            let number =
                |[re, im]: [f64; 2]| if im == 0.0 { format!("{re}") } else { format!("{re}{im:+}j") };
            write!(f, "; at {index:?} {} and {}", number(a), number(b))?;
        }
        Ok(())
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |path: &PathBuf| match path.as_os_str().is_empty() {
            true => "a pytree in memory".to_owned(),
            false => printable(&path.to_string_lossy()).into_owned(),
        };
        let (a, b) = (name(&self.a), name(&self.b));
        let total = counted(self.counts.total(), "leaf", "leaves");
        let read = format_bytes(self.read_bytes);
        match (self.is_equal, self.counts.of(LeafStatus::Within)) {
            (true, 0) => write!(f, "{a} and {b} are the same: {total}; {read} read")?,
            (true, within) => {
                write!(
                    f,
                    "{a} and {b} are the same within the tolerance: {total}, {within} of them not \
                     identical; {read} read"
                )?;
            }
            (false, _) => write!(
                f,
                "{a} and {b} differ: {} of {total} ({}); {read} read",
                self.counts.different(),
                self.differences()
            )?,
        }
        let worst: Vec<&LeafDiff> =
            self.worst_first().into_iter().filter(|leaf| leaf.status != LeafStatus::Equal).collect();
        for leaf in worst.iter().take(SHOWN_MAX) {
            write!(f, "\n  {leaf}")?;
        }
        if worst.len() > SHOWN_MAX {
            write!(f, "\n  and {} more", worst.len() - SHOWN_MAX)?;
        }
        for finding in self.findings.iter().take(SHOWN_MAX) {
            write!(f, "\n  {}: {}", finding.side.name(), finding.error.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}
