//! The version tree has the root of every commit: the newest roots in the manifest, the older roots
//! in version tree nodes.
//!
//! With arity 2^a, generations fall into groups of 2^a. The manifest holds the newest group inline;
//! a version leaf (height 0) holds one complete earlier group; a node of height h covers
//! 2^(a*(h+1)) generations. The manifest refers to at most one node for each height, with the
//! highest (oldest) first.
//!
//! ```text
//! version list: | num_versions n | generation_number | root_height u8 | data_file_id | offset | length |
//!               | num_keys | num_tree_bytes | num_indirect_value_bytes | commit_time u64le |   each x n
//! child list:   | num_children n | generation_number (of the last version inside) | data_file_id | offset |
//!               | length | num_generations | commit_time u64le (of the first) | entry_height u8 (*) |  each x n
//! version node: | version_tree_arity_log2 u8 | height u8 | data file table | version list or child list |
//! (*) in a manifest only
//! ```
//!
//! This module parses, checks and writes one list or node at a time. `arity` computes the position
//! of each generation, and `check` walks through the nodes.

use bytes::Bytes;

use crate::bytes::limits::OCDBT_NODE_LEN_MAX_BYTES;
use crate::bytes::varint::write_varint;
use crate::error::Result;

use super::arity::Arity;
use super::config::read_arity;
use super::envelope::{Body, Structure};
use super::fields::Fields;
use super::node::{NodeRef, Stats, check_range, read_stats, write_stats};
use super::rule::Rule;
use super::table::{self, DataFile};

/// The offset and the length that a version without a root states. Such a version has no keys.
const MISSING: u64 = u64::MAX;

/// The shortest entry of a version list, and of a child list.
const VERSION_LEN_MIN_BYTES: u64 = 16;
const CHILD_LEN_MIN_BYTES: u64 = 13;

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The number of the commit, from 1 on.
    pub generation: u64,
    /// The time of the commit, in nanoseconds since 1970-01-01 UTC.
    pub commit_time_ns: u64,
    /// Height of the root node, 0 for a leaf.
    pub root_height: u8,
    pub(super) root: Option<NodeRef>,
    pub(super) stats: Stats,
}

/// A reference to a version tree node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VersionChild {
    /// The generation of the last version in the node.
    pub(super) generation: u64,
    pub(super) reference: NodeRef,
    pub(super) num_generations: u64,
    /// The commit time of the first version in the node.
    pub(super) commit_time_ns: u64,
    pub(super) height: u8,
}

/// A version tree node.
#[derive(Debug)]
pub(super) struct VersionNode {
    pub(super) arity_log2: u8,
    pub(super) height: u8,
    pub(super) content: VersionContent,
}

#[derive(Debug)]
pub(super) enum VersionContent {
    Versions(Vec<Version>),
    Children(Vec<VersionChild>),
}

impl VersionNode {
    /// Parses a stored node that was reached by the path `transitive`.
    pub(super) fn parse(stored: &Bytes, transitive: &[u8]) -> Result<Self> {
        let body = Body::open(stored, Structure::VersionNode, OCDBT_NODE_LEN_MAX_BYTES)?;
        body.parse(|input| {
            let arity = Arity(read_arity(input)?);
            let height = input.u8("height")?;
            if height > arity.height_max() {
                return Err(input
                    .fail(Rule::VersionTree, "the version tree node is too high for its arity")
                    .expected(format_args!("at most {}", arity.height_max()), height));
            }
            let files = table::read(input, transitive, OCDBT_NODE_LEN_MAX_BYTES)?;
            let content = if height == 0 {
                VersionContent::Versions(read_versions(input, &files, arity)?)
            } else {
                let children = read_children(input, &files, arity, Some(height))?;
                check_node_children(input, arity, height, &children)?;
                VersionContent::Children(children)
            };
            Ok(Self { arity_log2: arity.0, height, content })
        })
    }

    pub(super) fn generation(&self) -> u64 {
        match &self.content {
            VersionContent::Versions(versions) => versions.last().map_or(0, |last| last.generation),
            VersionContent::Children(children) => children.last().map_or(0, |last| last.generation),
        }
    }
}

pub(super) fn read_versions(
    input: &mut Fields<'_>,
    files: &[DataFile],
    arity: Arity,
) -> Result<Vec<Version>> {
    let count = input.v64("num_versions")?;
    if !(1..=arity.fan_out()).contains(&count) {
        return Err(input
            .fail(Rule::VersionTree, "num_versions is out of range")
            .expected(format_args!("1 to {}", arity.fan_out()), count));
    }
    let count = input.fits(count, VERSION_LEN_MIN_BYTES, "num_versions")?;
    let generations = input.column(count, "generation_number", Fields::v64)?;
    let heights = input.column(count, "root_height", Fields::u8)?;
    let references = read_references(input, files, count)?;
    let stats = read_stats(input, count)?;
    let times = input.column(count, "commit_time", Fields::u64le)?;

    let mut versions: Vec<Version> = Vec::with_capacity(count);
    for (((generation, root_height), reference), (stats, commit_time_ns)) in
        generations.into_iter().zip(heights).zip(references).zip(stats.into_iter().zip(times))
    {
        let broken =
            |what: &str| input.fail(Rule::VersionTree, format_args!("generation {generation} {what}"));
        let missing = reference.offset_bytes == MISSING && reference.len_bytes == MISSING;
        if missing && (root_height > 0 || stats != Stats::default()) {
            return Err(broken("has no root, yet a height or statistics"));
        }
        if !missing {
            check_range(input, reference.offset_bytes, reference.len_bytes)?;
        }
        check_order(
            input,
            generation,
            commit_time_ns,
            versions.last().map(|v| (v.generation, v.commit_time_ns)),
        )?;
        let root = (!missing).then_some(reference);
        versions.push(Version { generation, commit_time_ns, root_height, root, stats });
    }
    if let (Some(first), Some(last)) = (versions.first(), versions.last()) {
        if last.generation > arity.generation_max() {
            return Err(input
                .fail(Rule::VersionTree, "a generation number is beyond what the version tree can hold")
                .expected(format_args!("at most {}", arity.generation_max()), last.generation));
        }
        let group_first = arity.first_generation(0, last.generation);
        if first.generation < group_first {
            return Err(input
                .fail(Rule::VersionTree, "a version list holds more than one group of generations")
                .expected(format_args!("{group_first} or later"), first.generation));
        }
    }
    Ok(versions)
}

/// Reads the child list of a node of height `height`, or of a manifest, where each child states its
/// height.
pub(super) fn read_children(
    input: &mut Fields<'_>,
    files: &[DataFile],
    arity: Arity,
    height: Option<u8>,
) -> Result<Vec<VersionChild>> {
    let count = input.v64("num_children")?;
    let most = if height.is_some() { arity.fan_out() } else { u64::from(arity.height_max()) };
    let least = u64::from(height.is_some());
    if !(least..=most).contains(&count) {
        return Err(input
            .fail(Rule::VersionTree, "num_children is out of range")
            .expected(format_args!("{least} to {most}"), count));
    }
    let count = input.fits(count, CHILD_LEN_MIN_BYTES, "num_children")?;
    let generations = input.column(count, "generation_number", Fields::v64)?;
    let references = read_references(input, files, count)?;
    let nums = input.column(count, "num_generations", Fields::v64)?;
    let times = input.column(count, "commit_time", Fields::u64le)?;
    let heights = match height {
        Some(height) => vec![height.saturating_sub(1); count],
        None => input.column(count, "entry_height", Fields::u8)?,
    };

    let mut children: Vec<VersionChild> = Vec::with_capacity(count);
    for (((generation, reference), num_generations), (commit_time_ns, child_height)) in
        generations.into_iter().zip(references).zip(nums).zip(times.into_iter().zip(heights))
    {
        check_range(input, reference.offset_bytes, reference.len_bytes)?;
        if height.is_none() && !(1..=arity.height_max()).contains(&child_height) {
            return Err(input
                .fail(Rule::VersionTree, "entry_height is out of range")
                .expected(format_args!("1 to {}", arity.height_max()), child_height));
        }
        let before = children.last().map(|child| (child.generation, child.commit_time_ns));
        check_order(input, generation, commit_time_ns, before)?;
        let most = generation - arity.first_generation(child_height, generation) + 1;
        if !(1..=most).contains(&num_generations) {
            return Err(input
                .fail(Rule::VersionTree, "num_generations is out of range")
                .expected(format_args!("1 to {most}"), num_generations));
        }
        children.push(VersionChild {
            generation,
            reference,
            num_generations,
            commit_time_ns,
            height: child_height,
        });
    }
    Ok(children)
}

fn read_references(input: &mut Fields<'_>, files: &[DataFile], count: usize) -> Result<Vec<NodeRef>> {
    let mut references = Vec::with_capacity(count);
    for _ in 0..count {
        let id = input.v64("data_file_id")?;
        let file = table::file_at(files, id, input)?.clone();
        references.push(NodeRef { file, offset_bytes: 0, len_bytes: 0 });
    }
    for reference in &mut references {
        reference.offset_bytes = input.v64("data_file_offset")?;
    }
    for reference in &mut references {
        reference.len_bytes = input.v64("data_file_length")?;
    }
    Ok(references)
}

/// Checks that generation numbers and commit times strictly increase along a list, and that no
/// generation is 0.
fn check_order(
    input: &Fields<'_>,
    generation: u64,
    commit_time_ns: u64,
    before: Option<(u64, u64)>,
) -> Result<()> {
    if generation == 0 {
        return Err(input.fail(Rule::VersionTree, "a generation number is 0"));
    }
    let Some((generation_before, time_before)) = before else { return Ok(()) };
    if generation <= generation_before {
        return Err(input.fail(
            Rule::VersionTree,
            format_args!("generation {generation} comes after generation {generation_before}"),
        ));
    }
    if commit_time_ns <= time_before {
        return Err(input.fail(
            Rule::VersionTree,
            format_args!("generation {generation} is not younger than generation {generation_before}"),
        ));
    }
    Ok(())
}

fn check_node_children(
    input: &Fields<'_>,
    arity: Arity,
    height: u8,
    children: &[VersionChild],
) -> Result<()> {
    let stride = arity.span(height.saturating_sub(1));
    for child in children {
        check_multiple(input, child.generation, stride)?;
    }
    let node_of = |child: &VersionChild| arity.first_generation(height, child.generation);
    if children.first().map(node_of) == children.last().map(node_of) {
        return Ok(());
    }
    Err(input.fail(Rule::VersionTree, "the children of a version tree node belong to two nodes"))
}

/// Checks the rules between the two lists of a manifest.
pub(super) fn check_manifest_children(
    input: &Fields<'_>,
    arity: Arity,
    versions: &[Version],
    children: &[VersionChild],
) -> Result<()> {
    let Some((first, last)) = versions.first().zip(versions.last()) else { return Ok(()) };
    let windows = arity.windows(last.generation);
    let mut height_before = u8::MAX;
    for child in children {
        check_multiple(input, child.generation, arity.span(child.height.saturating_sub(1)))?;
        if child.height >= height_before {
            return Err(input.fail(Rule::VersionTree, "the heights of version tree nodes do not decrease"));
        }
        height_before = child.height;
        let window = windows.iter().find(|(height, ..)| *height == child.height);
        let Some((_, lo, hi)) = window else {
            return Err(input.fail(
                Rule::VersionTree,
                format_args!(
                    "generation {} has no version tree node of height {}",
                    last.generation, child.height
                ),
            ));
        };
        if !(*lo..=*hi).contains(&child.generation) {
            return Err(input
                .fail(
                    Rule::VersionTree,
                    format_args!("the version tree node of height {} has a wrong end", child.height),
                )
                .expected(format_args!("generation {lo} to {hi}"), child.generation));
        }
    }
    if children.last().is_some_and(|child| child.commit_time_ns >= first.commit_time_ns) {
        return Err(
            input.fail(Rule::VersionTree, "a version tree node is not older than the first inline version")
        );
    }
    Ok(())
}

fn check_multiple(input: &Fields<'_>, generation: u64, stride: u64) -> Result<()> {
    if generation.is_multiple_of(stride) {
        return Ok(());
    }
    Err(input
        .fail(Rule::VersionTree, "a version tree node does not end with its group")
        .expected(format_args!("a multiple of {stride}"), generation))
}

/// The distinct files that versions and children point into, in order.
#[derive(Debug)]
pub(super) struct FileTable<'a>(Vec<(&'a [u8], &'a [u8])>);

/// The file name for a version without a root.
const NO_FILE: (&[u8], &[u8]) = (b"", b"");

impl<'a> FileTable<'a> {
    pub(super) fn new(versions: &'a [Version], children: &'a [VersionChild]) -> Self {
        let roots = versions.iter().map(|version| version.root.as_ref());
        let nodes = children.iter().map(|child| Some(&child.reference));
        let mut files: Vec<_> = roots.chain(nodes).map(name_of).collect();
        files.sort_unstable();
        files.dedup();
        Self(files)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        table::write(out, &self.0);
    }

    fn id_of(&self, reference: Option<&NodeRef>) -> u64 {
        // `new` has seen every reference, so the search always finds one.
        self.0.binary_search(&name_of(reference)).unwrap_or_else(|place| place) as u64
    }
}

fn name_of(reference: Option<&NodeRef>) -> (&[u8], &[u8]) {
    reference.map_or(NO_FILE, |reference| reference.file.base_and_relative())
}

pub(super) fn write_versions(out: &mut Vec<u8>, versions: &[Version], files: &FileTable<'_>) {
    let roots = || versions.iter().map(|version| version.root.as_ref());
    write_varint(out, versions.len() as u64);
    versions.iter().for_each(|version| write_varint(out, version.generation));
    versions.iter().for_each(|version| out.push(version.root_height));
    roots().for_each(|root| write_varint(out, files.id_of(root)));
    roots().for_each(|root| write_varint(out, root.map_or(MISSING, |root| root.offset_bytes)));
    roots().for_each(|root| write_varint(out, root.map_or(MISSING, |root| root.len_bytes)));
    write_stats(out, versions.iter().map(|version| version.stats));
    versions.iter().for_each(|version| out.extend_from_slice(&version.commit_time_ns.to_le_bytes()));
}

/// Appends a child list, with heights in a manifest.
pub(super) fn write_children(
    out: &mut Vec<u8>,
    children: &[VersionChild],
    files: &FileTable<'_>,
    with_heights: bool,
) {
    write_varint(out, children.len() as u64);
    children.iter().for_each(|child| write_varint(out, child.generation));
    children.iter().for_each(|child| write_varint(out, files.id_of(Some(&child.reference))));
    children.iter().for_each(|child| write_varint(out, child.reference.offset_bytes));
    children.iter().for_each(|child| write_varint(out, child.reference.len_bytes));
    children.iter().for_each(|child| write_varint(out, child.num_generations));
    children.iter().for_each(|child| out.extend_from_slice(&child.commit_time_ns.to_le_bytes()));
    if with_heights {
        children.iter().for_each(|child| out.push(child.height));
    }
}
