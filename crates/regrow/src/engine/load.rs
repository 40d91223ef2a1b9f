//! Loading: all of it, or a selection.
//!
//! What is stored raw and whole in files that nobody writes into comes back as a view of the map, checked first, in the
//! order in which it lies on disk; where the page cache does not have it and memory has room, it is read past the cache
//! into memory, which is faster. Files of other programs, which write them in place, are read into memory unless the
//! caller asks for maps. Everything else is decoded straight into its destination by a few threads; an array of many
//! chunks is cut into bands along its first axis so that one leaf can keep all of them busy. Memory that the caller
//! gives is filled in place, and what goes there is checked on the way.

use std::cell::LazyCell;
use std::cmp::Reverse;

use super::arena::Arena;
use super::bands::for_each_band;
use super::patterns::check_patterns;
use super::retry::Retries;
use super::template::match_template;
use super::{BUDGET_DEFAULT_BYTES, Checkpoint, LoadOptions};
use crate::array::{Array, Dtype, Region, cast_bytes};
use crate::bytes::available::is_available;
use crate::bytes::limits::allocate;
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{CheckFor, Reader};
use crate::location::ToLocation;
use crate::monitor::Stage;
use crate::store::LONG_LEN_MIN_BYTES;
use crate::text::counted;
use crate::threads::pool;
use crate::tree::{Key, KeyPath, Leaf, LeafData, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// Arrays above this size are read in bands by several threads.
const BAND_LEN_BYTES: u64 = 8 << 20;

/// Fewest threads that read and decode: on two processors two decode while the others wait for the disk.
const THREADS_MIN: usize = 5;

/// Views are checked this many bytes ahead of where they are handed out.
const AHEAD_LEN_BYTES: u64 = 256 << 20;

/// Loads the whole checkpoint at `path` as the tree it is, every block checked.
///
/// [`regrow::load`](crate::load) makes a value of it, of any type that is [`Pytree`](crate::Pytree).
///
/// # Errors
/// As [`open`](super::open), and `Corrupt` with file, leaf and offset.
pub fn load(path: impl ToLocation) -> Result<Tree<Leaf>> {
    load_with(path, &LoadOptions::default())
}

/// Loads what `options` select.
///
/// # Errors
/// As [`load`]; `Mismatch` if a template does not fit, with all differences.
pub fn load_with(path: impl ToLocation, options: &LoadOptions) -> Result<Tree<Leaf>> {
    let at = path.to_location()?;
    Retries::until_unreplaced(|| {
        let checkpoint = super::open_with(&at, &options.open)?;
        match checkpoint.load(options) {
            // Also where the error is one of a checkpoint that is whole: the one that took its place may have none.
            Err(error) if error.kind() != ErrorKind::Cancelled && checkpoint.is_replaced() => {
                Err(checkpoint.was_replaced())
            }
            loaded => loaded,
        }
    })
}

impl Checkpoint {
    /// Loads what `options` select.
    ///
    /// # Errors
    /// As [`load_with`]: `NotFound` also for patterns that match nothing, all of them named.
    pub fn load(&self, options: &LoadOptions) -> Result<Tree<Leaf>> {
        self.load_watched(options, Vec::new())
    }

    /// Loads into memory that the caller has: `outs` has, for each leaf of the template, where its bytes go in C
    /// order, or `None`. Leaves that were filled come back as [`LeafData::Absent`], the others as from
    /// [`load`](Self::load); text is never filled in.
    ///
    /// Raw leaves are read straight to where they go and checked in the same pass, by several threads.
    ///
    /// # Errors
    /// As for `load`; `InvalidArgument` without a template; `Mismatch` if a destination has another length than its
    /// leaf (as cast), or the template another dtype. After an error the contents of all destinations are unspecified.
    pub fn load_into_memory(
        &self,
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Tree<Leaf>> {
        let template_len = options.template.as_ref().map(Tree::len);
        if template_len != Some(outs.len()) {
            return Err(Error::invalid(
                "a load into memory needs a template, and a place for each of its leaves",
            )
            .expected(counted(template_len.unwrap_or(0), "place", "places"), outs.len()));
        }
        self.load_watched(options, outs)
    }

    fn load_watched(&self, options: &LoadOptions, outs: Vec<Option<&mut [u8]>>) -> Result<Tree<Leaf>> {
        let monitor = &options.monitor;
        let running = monitor.begin();
        let loaded = running.and_then(|_running| {
            monitor.timed(Stage::Read, 0, || self.unless_replaced(self.load_selected(options, outs)))
        });
        monitor.conclude(loaded)
    }

    fn load_selected(&self, options: &LoadOptions, outs: Vec<Option<&mut [u8]>>) -> Result<Tree<Leaf>> {
        let casts = options.cast.iter().map(|(pattern, _)| pattern);
        check_patterns(self.tree(), options.only.iter().chain(casts))
            .map_err(|error| error.in_file(self.path()))?;
        let cast_for =
            |path: &KeyPath| options.cast.iter().find(|(pattern, _)| pattern.matches(path)).map(|c| c.1);
        match &options.template {
            Some(template) => {
                let matches =
                    match_template(self.tree(), template, options.partial, |path| cast_for(path).is_some())
                        .map_err(|error| error.in_file(self.path()))?;
                let wanted: Vec<usize> = matches.iter().flatten().copied().collect();
                let mut places: Vec<Option<&mut [u8]>> = Vec::new();
                if outs.iter().any(Option::is_some) {
                    places.resize_with(self.tree().len(), || None);
                    for ((leaf, out), want) in matches.iter().zip(outs).zip(template.leaves()) {
                        let place = leaf.and_then(|leaf| places.get_mut(leaf).zip(Some(leaf)));
                        if let (Some((place, leaf)), Some(out)) = (place, out) {
                            let cast = self.paths().get(leaf).and_then(cast_for);
                            self.check_destination(leaf, cast, want.dtype, out.len())?;
                            *place = Some(out);
                        }
                    }
                }
                let mut leaves: Vec<Option<Leaf>> = self.read_all(&wanted, options, places)?;
                let placed = matches.into_iter().map(|leaf| {
                    leaf.and_then(|leaf| leaves.get_mut(leaf).and_then(Option::take))
                        .unwrap_or_else(placeholder)
                });
                template.with_leaves(placed.collect())
            }
            None if options.only.is_empty() => {
                let wanted: Vec<usize> = (0..self.tree().len()).collect();
                let leaves = self.read_all(&wanted, options, Vec::new())?;
                self.tree()
                    .with_leaves(leaves.into_iter().map(|leaf| leaf.unwrap_or_else(placeholder)).collect())
            }
            None => {
                let chosen = |path: &KeyPath| options.only.iter().any(|pattern| pattern.matches(path));
                let wanted: Vec<usize> = self
                    .paths()
                    .iter()
                    .enumerate()
                    .filter(|(_, path)| chosen(path))
                    .map(|(leaf, _)| leaf)
                    .collect();
                let empty: Vec<bool> = self
                    .tree()
                    .walk()
                    .map(|(path, node)| node.kind != NodeKind::Leaf && node.child_count == 0 && chosen(&path))
                    .collect();
                prune(self.tree(), self.read_all(&wanted, options, Vec::new())?, &empty)
            }
        }
    }

    fn check_destination(
        &self,
        leaf: usize,
        cast: Option<Dtype>,
        dtype: Option<Dtype>,
        len: usize,
    ) -> Result<()> {
        let info = self.info(leaf)?;
        let becomes = cast.filter(|_| info.kind.is_castable()).unwrap_or(info.dtype);
        let len_bytes = info.shape.len_bytes(becomes)?;
        let has_no_data = matches!(info.kind, LeafKind::Str | LeafKind::Placeholder | LeafKind::Unknown(_));
        if has_no_data || len_bytes == len as u64 && dtype.is_none_or(|dtype| dtype == becomes) {
            return Ok(());
        }
        let shown = dtype.map_or_else(String::new, |dtype| format!(" of {dtype}"));
        Err(Error::new(ErrorKind::Mismatch, "a destination does not fit its leaf")
            .in_file(self.path())
            .expected(format_args!("{len_bytes} bytes of {becomes}"), format_args!("{len} bytes{shown}"))
            .help("give an array of the leaf's shape and dtype, or ask for the cast")
            .at_leaf(&self.key_path(leaf)?))
    }

    /// Reads the `wanted` leaves; the result has a place for every leaf of the checkpoint. Those that have one in
    /// `outs` are read there.
    fn read_all(
        &self,
        wanted: &[usize],
        options: &LoadOptions,
        mut outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Vec<Option<Leaf>>> {
        let reader = self.reader();
        let infos = self.tree().leaves();
        // Paths of all leaves would take longer than opening: they are for a cast's patterns, and for the one error.
        let at = |leaf: usize| move |error: Error| error.at_leaf(&self.tree().path_of(leaf));
        let mut is_wanted = vec![false; infos.len()];
        for &leaf in wanted {
            if let Some(slot) = is_wanted.get_mut(leaf) {
                *slot = true;
            }
        }
        let order: Vec<usize> =
            reader.read_order().into_iter().filter(|&leaf| is_wanted.get(leaf) == Some(&true)).collect();
        let cast_of = |leaf: usize, info: &LeafInfo| {
            let cast = options
                .cast
                .iter()
                .find(|(pattern, _)| self.paths().get(leaf).is_some_and(|path| pattern.matches(path)));
            cast.map(|(_, to)| *to).filter(|&to| info.kind.is_castable() && to != info.dtype)
        };
        let monitor = &options.monitor;
        let wanted_bytes = order.iter().filter_map(|&leaf| infos.get(leaf)).map(LeafInfo::len_bytes);
        let wanted_bytes = wanted_bytes.fold(0, u64::saturating_add);
        monitor.expect(wanted_bytes);
        monitor.enter(Stage::Read);
        let mut data: Vec<Option<LeafData>> = vec![None; infos.len()];
        // What is to be decoded or cast: leaves, and the dtypes they will have.
        let (mut decoded, mut decoded_memory) = (Vec::<(usize, Dtype)>::new(), Arena::default());
        let mut given: Vec<(usize, Dtype, &mut [u8])> = Vec::new();
        // Views whose bytes are not in memory yet: they are read past the page cache.
        let (mut cold, mut cold_memory) = (Vec::<usize>::new(), Arena::default());
        let has_room = LazyCell::new(|| is_available(wanted_bytes));
        let is_mapped = options.mapped || self.is_mapped();
        let has_views = is_mapped || self.has_views();
        // What others may write into is no place for a view: its numbers would change, or fault, with the file.
        let view = |leaf: usize| if has_views { reader.view(leaf) } else { Ok(None) };
        let (mut ahead_to, mut is_counted, mut is_cold) = (0, false, false);
        for (place, &leaf) in order.iter().enumerate() {
            let Some(info) = infos.get(leaf) else { continue };
            if place == ahead_to && has_views && !options.unverified {
                let portion = order.get(place..).unwrap_or_default();
                let portion = portion.get(..portion_len(infos, portion)).unwrap_or(portion);
                ahead_to += portion.len().max(1);
                let is_view = |&leaf: &usize| {
                    let is_given = matches!(outs.get(leaf), Some(Some(_)));
                    !is_given && infos.get(leaf).is_some_and(|info| cast_of(leaf, info).is_none())
                };
                let views: Vec<usize> = portion.iter().copied().filter(is_view).collect();
                let views_len_bytes =
                    views.iter().filter_map(|&leaf| infos.get(leaf)).map(LeafInfo::len_bytes);
                let is_long = views_len_bytes.fold(0, u64::saturating_add) >= LONG_LEN_MIN_BYTES;
                is_cold = !is_mapped && is_long && is_mostly_cold(reader, &views) && *has_room;
                is_counted = is_cold || reader.check_ahead(&views, CheckFor::Views, monitor)?;
            }
            let cast = cast_of(leaf, info);
            let out = outs.get_mut(leaf).and_then(Option::take);
            let found = match info.kind {
                LeafKind::Str => Some(LeafData::Text(reader.read_text(leaf).map_err(at(leaf))?)),
                LeafKind::Placeholder => Some(LeafData::Absent),
                LeafKind::Unknown(_) => {
                    reader.check_unknown(leaf).map_err(at(leaf))?;
                    Some(LeafData::Absent)
                }
                _ if let Some(out) = out => {
                    given.push((leaf, cast.unwrap_or(info.dtype), out));
                    Some(LeafData::Absent)
                }
                _ => match view(leaf).map_err(at(leaf))?.filter(|_| cast.is_none()) {
                    Some(_) if is_cold && info.len_bytes() > 0 => {
                        cold_memory.add(info.len_bytes()).map_err(at(leaf))?;
                        cold.push(leaf);
                        None
                    }
                    Some(view) => {
                        if !options.unverified {
                            reader.check_view(leaf).map_err(at(leaf))?;
                        }
                        if !is_counted {
                            monitor.done(Stage::Read, info.len_bytes())?;
                        }
                        Some(LeafData::Array(Array::new(info.dtype, info.shape.clone(), view)?))
                    }
                    None => {
                        let dtype = cast.unwrap_or(info.dtype);
                        let len_bytes = info.shape.len_bytes(dtype).map_err(at(leaf))?;
                        decoded_memory.add(len_bytes).map_err(at(leaf))?;
                        decoded.push((leaf, dtype));
                        None
                    }
                },
            };
            if let Some(slot) = data.get_mut(leaf) {
                *slot = found;
            }
        }
        let cold: Vec<(usize, Dtype)> =
            cold.into_iter().filter_map(|leaf| Some((leaf, infos.get(leaf)?.dtype))).collect();
        let pages = cold_memory.pages();
        for (leaves, memory) in [(&cold, &mut cold_memory), (&decoded, &mut decoded_memory)] {
            given.extend(leaves.iter().zip(memory.slices()).map(|(&(leaf, dtype), out)| (leaf, dtype, out)));
        }
        pages.made_during(|| self.fill(given, options))?;
        monitor.finish()?;
        let cold = cold.into_iter().zip(cold_memory.into_bytes());
        for ((leaf, dtype), bytes) in cold.chain(decoded.into_iter().zip(decoded_memory.into_bytes())) {
            if let (Some(info), Some(slot)) = (infos.get(leaf), data.get_mut(leaf)) {
                *slot = Some(LeafData::Array(Array::new(dtype, info.shape.clone(), bytes)?));
            }
        }
        let leaf = |(info, data): (&LeafInfo, Option<LeafData>)| {
            data.map(|data| Leaf { kind: info.kind.clone(), data, sharding: info.sharding.clone() })
        };
        Ok(infos.iter().zip(data).map(leaf).collect())
    }

    /// Reads leaves whole, each as that dtype, to where they are to go.
    fn fill(&self, places: Vec<(usize, Dtype, &mut [u8])>, options: &LoadOptions) -> Result<()> {
        let (reader, monitor, infos) = (self.reader(), &options.monitor, self.tree().leaves());
        let is_cast = |leaf: usize, dtype: Dtype| infos.get(leaf).is_some_and(|info| info.dtype != dtype);
        let (cast, raw): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|(leaf, dtype, _)| is_cast(*leaf, *dtype));
        let raw = raw.into_iter().map(|(leaf, _, out)| (leaf, out)).collect();
        let not_raw = reader.read_raw(raw, options.unverified, monitor)?;
        let mut bands = Vec::new();
        let not_raw = not_raw.into_iter().map(|(leaf, out)| (leaf, None, out));
        for (leaf, dtype, out) in
            not_raw.chain(cast.into_iter().map(|(leaf, dtype, out)| (leaf, Some(dtype), out)))
        {
            if let Some(info) = infos.get(leaf) {
                cut_into_bands(leaf, info, dtype.unwrap_or(info.dtype), out, &mut bands)?;
            }
        }
        // A band that is to be cast is held as it was stored, too.
        let cost = |band: &Band<'_>| {
            let stored = infos.get(band.leaf).and_then(|info| band.source_len_bytes(info));
            let working = reader.working_len_bytes(band.leaf, stored.unwrap_or(band.out.len() as u64));
            working.saturating_add(stored.unwrap_or(0))
        };
        // What keeps one thread long comes first, so that the others do not wait for it at the end; the rest in the
        // order of the disk.
        let long = |band: &Band<'_>| Some(band.out.len()).filter(|&len| len as u64 > 2 * BAND_LEN_BYTES);
        bands.sort_by_key(|band| Reverse(long(band)));
        let wanted_bytes: u64 = bands.iter().map(|band| band.out.len() as u64).sum();
        let threads_min = if wanted_bytes < BAND_LEN_BYTES { 1 } else { THREADS_MIN };
        let threads = pool::thread_count().max(threads_min);
        let budget_bytes = options.budget_bytes.unwrap_or(BUDGET_DEFAULT_BYTES);
        pool::for_each_parallel(threads, bands, budget_bytes, cost, |band| {
            let Some(info) = infos.get(band.leaf) else { return Ok(()) };
            let len_bytes = band.region.len_elements() * info.dtype.size_bytes() as u64;
            let leaf = band.leaf;
            band.read(reader, info).map_err(|error| error.at_leaf(&self.tree().path_of(leaf)))?;
            monitor.done(Stage::Read, len_bytes)
        })
    }
}

/// Whether the page cache lacks most of these leaves, which lie side by side: a few of them are looked at.
fn is_mostly_cold(reader: &dyn Reader, leaves: &[usize]) -> bool {
    let last = leaves.len().saturating_sub(1);
    let looks = [0, last / 4, last / 2, last / 4 * 3, last];
    let cached =
        looks.iter().filter_map(|&at| leaves.get(at)).filter(|&&leaf| reader.is_cached(leaf)).count();
    !leaves.is_empty() && cached < looks.len().div_ceil(2)
}

/// How many of the leaves make up the bytes that are checked ahead at once.
fn portion_len(infos: &[LeafInfo], leaves: &[usize]) -> usize {
    let mut len_bytes = 0_u64;
    let is_within = |&&leaf: &&usize| {
        let within = len_bytes < AHEAD_LEN_BYTES;
        len_bytes = len_bytes.saturating_add(infos.get(leaf).map_or(0, LeafInfo::len_bytes));
        within
    };
    leaves.iter().take_while(is_within).count()
}

/// A part of a leaf, and where it goes.
struct Band<'a> {
    leaf: usize,
    region: Region,
    dtype: Dtype,
    out: &'a mut [u8],
}

impl Band<'_> {
    /// Bytes of the band as it is stored, if it has to be cast.
    fn source_len_bytes(&self, info: &LeafInfo) -> Option<u64> {
        (self.dtype != info.dtype).then(|| self.region.len_elements() * info.dtype.size_bytes() as u64)
    }

    fn read(self, reader: &dyn Reader, info: &LeafInfo) -> Result<()> {
        let Some(len_bytes) = self.source_len_bytes(info) else {
            return reader.read_region(self.leaf, &self.region, self.out);
        };
        let mut source = allocate(len_bytes)?;
        reader.read_region(self.leaf, &self.region, &mut source)?;
        cast_bytes(&source, info.dtype, self.dtype, self.out)
    }
}

/// Cuts a leaf into bands of whole chunk rows along its first axis; their bytes follow each other in `out`.
fn cut_into_bands<'a>(
    leaf: usize,
    info: &LeafInfo,
    dtype: Dtype,
    out: &'a mut [u8],
    bands: &mut Vec<Band<'a>>,
) -> Result<()> {
    let mut rest = out;
    for_each_band(info, BAND_LEN_BYTES, |region, count| {
        let (band, after) = std::mem::take(&mut rest).split_at_mut(count as usize * dtype.size_bytes());
        rest = after;
        bands.push(Band { leaf, region: region.clone(), dtype, out: band });
        Ok(())
    })
}

fn placeholder() -> Leaf {
    Leaf { kind: LeafKind::Placeholder, data: LeafData::Absent, sharding: None }
}

/// The tree with only the leaves that are there, and those nodes without children that are chosen (`empty`, for each
/// node). Others vanish from dicts (with dicts that become empty), and become placeholders in sequences, so that
/// positions keep their meaning.
fn prune(tree: &Tree<LeafInfo>, leaves: Vec<Option<Leaf>>, empty: &[bool]) -> Result<Tree<Leaf>> {
    let nodes = tree.nodes();
    // Whether a node has a chosen leaf below: children come after their parent, so go from the back.
    let mut keeps = vec![false; nodes.len()];
    let mut sizes = vec![1_usize; nodes.len()];
    let mut next_leaf = leaves.len();
    for (at, node) in nodes.iter().enumerate().rev() {
        let mut child = at + 1;
        let mut keep = empty.get(at) == Some(&true);
        if node.kind == NodeKind::Leaf {
            next_leaf -= 1;
            keep = leaves.get(next_leaf).is_some_and(Option::is_some);
        }
        for _ in 0..node.child_count {
            keep |= keeps.get(child) == Some(&true);
            child += sizes.get(child).copied().unwrap_or(1);
        }
        if let (Some(k), Some(s)) = (keeps.get_mut(at), sizes.get_mut(at)) {
            (*k, *s) = (keep, child - at);
        }
    }
    let mut build = TreeBuilder::new();
    let mut leaves = leaves.into_iter();
    // For each open container: children still to come, and whether it is a sequence.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut at = 0;
    while let Some(node) = nodes.get(at) {
        while let Some((0, _)) = open.last() {
            open.pop();
            build.close()?;
        }
        let in_sequence = open.last_mut().is_some_and(|(left, sequence)| {
            *left -= 1;
            *sequence
        });
        let keep = keeps.get(at) == Some(&true);
        let size = sizes.get(at).copied().unwrap_or(1);
        if !keep {
            // Skip the whole subtree, and its leaves.
            let below = nodes.get(at..at + size).unwrap_or_default();
            for _ in below.iter().filter(|node| node.kind == NodeKind::Leaf) {
                leaves.next();
            }
            if in_sequence {
                build.leaf(node.key.clone(), placeholder())?;
            }
            at += size;
            continue;
        }
        if node.kind == NodeKind::Leaf {
            let leaf = leaves.next().flatten().unwrap_or_else(placeholder);
            build.leaf(node.key.clone(), leaf)?;
        } else {
            build.open(node.key.clone(), node.kind.clone())?;
            let sequence =
                !matches!(node.kind, NodeKind::Dict | NodeKind::OrderedDict | NodeKind::DefaultDict);
            open.push((node.child_count, sequence));
        }
        at += 1;
    }
    for _ in open {
        build.close()?;
    }
    if build.is_empty() {
        build.open(Key::Index(0), NodeKind::Dict)?;
        build.close()?;
    }
    build.finish()
}
