//! Converts any layout to any other, one leaf at a time: open, select, rename, transpose, reshape,
//! cast, save.
//!
//! ```text
//! open --> plan: each leaf's new path, dtype and shape; losses are an error without `lossy`
//!      --> write: the target's writer reads pieces of each leaf through the rules --> commit
//! ```
//!
//! Nothing is written before the plan is complete and the target's writer has accepted it. A dry
//! run ends at this point ([`ConvertPlan::check`]).
//!
//! The conversion needs the memory of one band of the current leaf, for any size of the checkpoint.
//! A source that is compressed as a whole is also decoded as a whole. With a base, all leaves are
//! compared before the first leaf is written. The comparison needs the memory of one band for each
//! thread, within the budget. A leaf that cannot be linked to the base is then read a second time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::checks::{layouts_with, losses_refused};
use super::save::check_save;
use super::{Checkpoint, Intact, OpenOptions, SaveOptions, SaveReport, save_with};
use crate::array::{Array, Casting, Losses, Shape, transposed};
use crate::error::{Error, Result, ResultExt};
use crate::formats::{Loss, LossKind, ReaderExt, located};
use crate::location::{Location, ToLocation};
use crate::storage::Retries;
use crate::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, PathPattern, Tree};

mod adapt;
mod items;
mod kept;
mod left_out;
mod objects;
mod rename;
mod rules;
mod shared;
mod source;
mod steps;

pub use kept::ConvertRules;
#[doc(hidden)]
pub use kept::{CastRule, RenameRule, ReshapeRule, TransposeRule};
pub use rename::Rename;
pub(super) use rules::select;
#[doc(hidden)]
pub use shared::{ConvertShare, ConvertedShare, SharedConvert, convert_share};
use source::LeafSource;
pub use steps::{convert_steps, plan_convert_steps};

/// The options of a conversion.
#[derive(Debug, Clone, Default)]
pub struct ConvertOptions {
    /// The options to open the source.
    pub open: OpenOptions,
    /// The options of the save: layout, overwriting, durability, [base](SaveOptions::base), casts,
    /// monitor.
    pub save: SaveOptions,
    /// Convert only leaves whose source paths match one of these globs; all leaves if empty.
    pub only: Vec<PathPattern>,
    /// New key paths. The first rule that matches a leaf applies.
    pub rename: Vec<Rename>,
    /// After the renames, splits flat names at this text into nested dicts. With `.`,
    /// `params.kernel` becomes `params/kernel`.
    pub nest: Option<String>,
    /// A new order of axes, by the path in the source. The first pattern that matches applies.
    pub transpose: Vec<(PathPattern, Vec<usize>)>,
    /// New shapes, after the transpose. One extent may be -1 and is computed.
    pub reshape: Vec<(PathPattern, Vec<i64>)>,
    /// Also convert leaves that the target cannot hold: they become the nearest kind, or are left
    /// out.
    pub lossy: bool,
    /// Convert the intact leaves of a damaged checkpoint, as [`salvage`](super::salvage) loads
    /// them. The whole source is verified first. Lost leaves become placeholders, or are left out
    /// if the target cannot hold placeholders.
    pub salvage: bool,
    /// If the source has one item, make a checkpoint with one item. Without this option the item
    /// becomes a checkpoint without items.
    pub keep_items: bool,
}

/// The plan for one leaf.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedLeaf {
    /// The path in the source.
    pub from: KeyPath,
    /// The path in the target; `None` if the leaf is left out.
    pub to: Option<KeyPath>,
    /// Kind, dtype and shape in the source.
    pub source: LeafInfo,
    /// Kind, dtype and shape in the target.
    pub target: LeafInfo,
}

/// The plan of a conversion; nothing is written yet.
#[derive(Debug)]
pub struct ConvertPlan {
    /// Every chosen leaf, in the order of the target; left-out leaves come last.
    pub leaves: Vec<PlannedLeaf>,
    /// Losses in the target, the worst first.
    pub losses: Vec<Loss>,
    /// With [`salvage`](ConvertOptions::salvage): the reason for each lost leaf, and other damage.
    pub damage: Vec<Error>,
    source: Location,
    tree: Tree<Leaf>,
    /// The items of the target; `None` if the target is one pytree.
    items: Option<items::PlannedItems>,
    /// For each leaf, whether its cast has changed a value by more than rounding.
    is_lossy: Vec<Arc<AtomicBool>>,
    /// The metadata of the new checkpoint, from the options or else from the source; `None` if both
    /// have none, or if the target cannot store the metadata of the source.
    metadata: Option<serde_json::Value>,
}

/// The result of a conversion.
#[derive(Debug)]
pub struct ConvertReport {
    /// The report of the save.
    pub save: SaveReport,
    /// Losses in the target.
    pub losses: Vec<Loss>,
    /// With [`salvage`](ConvertOptions::salvage): the reason for each lost leaf, and other damage.
    pub damage: Vec<Error>,
}

impl ConvertPlan {
    pub(super) fn into_tree(self) -> Tree<Leaf> {
        self.tree
    }

    /// Whether the target keeps all data. Losses of kind [`LossKind::Note`] are allowed.
    pub fn is_lossless(&self) -> bool {
        self.losses.iter().all(|loss| loss.kind == LossKind::Note)
    }
}

/// Converts the checkpoint at `source` into one at `target`.
///
/// # Errors
/// The errors of opening, reading and saving; `Unsupported`, which lists all losses, if the target
/// cannot hold everything and `lossy` is not set; `InvalidArgument` for rules that cannot be
/// applied. No temporary files are left. If the source is replaced during the conversion, the
/// conversion starts again with the new checkpoint.
pub fn convert(
    source: impl ToLocation,
    target: impl ToLocation,
    options: &ConvertOptions,
) -> Result<ConvertReport> {
    let (source, target) = (located(source)?, located(target)?);
    Retries::until_unreplaced(|| plan_convert(&source, options)?.run(&target, options))
}

/// Plans the conversion of the checkpoint at `source`, as `--dry-run` shows it.
///
/// # Errors
/// Errors of opening; errors of [`Checkpoint::plan_convert`].
pub fn plan_convert(source: impl ToLocation, options: &ConvertOptions) -> Result<ConvertPlan> {
    if !options.salvage {
        let checkpoint = super::open_with(source, &options.open)?;
        left_out::refuse_many_steps(&checkpoint, options)?;
        return checkpoint.plan_convert(options);
    }
    let Intact { checkpoint, mut lost, damage, .. } =
        super::open_intact(source, &options.open, &options.save.monitor)?;
    left_out::refuse_many_steps(&checkpoint, options)?;
    let mut plan = checkpoint.plan_convert(options)?;
    lost.extend(damage);
    plan.damage = lost;
    Ok(plan)
}

impl Checkpoint {
    /// Plans a conversion, as `--dry-run` shows it. Reads only metadata and texts.
    /// [`ConvertPlan::check`] checks the target.
    ///
    /// # Errors
    /// `NotFound` for patterns that match nothing, `InvalidArgument` for rules that cannot be
    /// applied or have no effect, `NameCollision` if two leaves get the same path.
    pub fn plan_convert(&self, options: &ConvertOptions) -> Result<ConvertPlan> {
        let paths = self.paths();
        let positions = rules::select(self, options)?;
        let mut drafts = Vec::with_capacity(positions.len());
        for (to, &leaf) in positions.iter() {
            let from = paths.get(leaf).cloned().unwrap_or_default();
            let info = self.info(leaf)?;
            drafts.push(self.draft(leaf, info, &from, to, options).at_leaf(&from)?);
        }
        adapt::plan(self, &positions, drafts, options)
    }

    /// One leaf after its transformations, before it is adapted to the target.
    fn draft(
        &self,
        leaf: usize,
        info: &LeafInfo,
        from: &KeyPath,
        to: KeyPath,
        options: &ConvertOptions,
    ) -> Result<Draft> {
        let is_lossy = Arc::default();
        let axes = first(&options.transpose, from);
        let dims = first(&options.reshape, from);
        axes.map_or(Ok(()), |_| only_arrays(info, "transpose"))?;
        dims.map_or(Ok(()), |_| only_arrays(info, "reshape"))?;
        let data = match info.kind {
            LeafKind::Str => LeafData::Text(self.reader().read_text(leaf)?),
            LeafKind::Placeholder | LeafKind::Unknown(_) => LeafData::Absent,
            _ => {
                if info.len_bytes() == 0 {
                    // No later step reads an empty leaf, so read and check the leaf here.
                    self.read(leaf)?;
                }
                let source = LeafSource::new(self, leaf, info, &options.save.monitor);
                let mut array = Array::deferred(info.dtype, info.shape.clone(), Arc::new(source))?;
                if let Some((_, axes)) = axes {
                    transposed(&info.shape, axes)?;
                    array = array.transpose(axes)?;
                }
                if let Some((_, dims)) = dims {
                    array = array.reshape(infer(array.shape(), dims)?)?;
                }
                if let Some(dtype) = options.save.cast_for(from, &info.kind, info.dtype) {
                    let losses = match options.lossy {
                        false => Losses::Refused(Some(from.clone())),
                        true => Losses::Noted(Arc::clone(&is_lossy)),
                    };
                    array = array.cast_as(dtype, losses)?;
                }
                LeafData::Array(array)
            }
        };
        let (dtype, shape) = match &data {
            LeafData::Array(array) => (array.dtype(), array.shape().clone()),
            _ => (info.dtype, info.shape.clone()),
        };
        let target = LeafInfo {
            dtype,
            shape,
            name: Arc::from(to.join(".")),
            chunk_shape: None,
            write_shape: None,
            coding: Arc::from(""),
            ..info.clone()
        };
        let leaf = Leaf { kind: info.kind.clone(), data, sharding: info.sharding.clone() };
        Ok(Draft { from: from.clone(), to, source: info.clone(), target, leaf, is_lossy })
    }
}

/// A leaf during the planning.
#[derive(Debug)]
struct Draft {
    from: KeyPath,
    to: KeyPath,
    source: LeafInfo,
    target: LeafInfo,
    leaf: Leaf,
    /// Set when a cast of the leaf has changed a value by more than rounding, which was allowed.
    is_lossy: Arc<AtomicBool>,
}

impl ConvertPlan {
    /// Returns the errors of [`run`](Self::run) that `lossy` does not avoid: names that the target
    /// cannot hold, unknown options, an existing target. Writes nothing.
    ///
    /// # Errors
    /// The errors of `run`, word for word.
    pub fn check(&self, target: impl ToLocation, options: &ConvertOptions) -> Result<()> {
        let target = located(target)?;
        refuse_target_inside(&self.source, &target)?;
        let save_options = self.save_options(options);
        match &self.items {
            Some(items) => items.check(&self.tree, &target, &save_options),
            None => check_save(&target, &self.tree, &save_options),
        }
    }

    /// Writes the planned checkpoint.
    ///
    /// # Errors
    /// The errors of [`convert`].
    pub fn run(self, target: impl ToLocation, options: &ConvertOptions) -> Result<ConvertReport> {
        let target = located(target)?;
        let save_options = self.admit(&target, options)?;
        let save = match &self.items {
            Some(items) => items.save(&self.tree, &target, &save_options)?,
            None => save_with(target, &self.tree, &save_options)?,
        };
        let changed = self.changed_leaves();
        Ok(ConvertReport { save, losses: self.losses_with(&changed), damage: self.damage })
    }

    /// The positions of leaves in which a cast has changed a value by more than rounding.
    fn changed_leaves(&self) -> Vec<u32> {
        let flags = self.is_lossy.iter().zip(0..);
        flags.filter(|(flag, _)| flag.load(Ordering::Relaxed)).map(|(_, leaf)| leaf).collect()
    }

    /// All losses, including cast losses that were found while the data was read.
    fn losses_with(&self, changed: &[u32]) -> Vec<Loss> {
        let casts = changed.iter().filter_map(|&leaf| self.leaves.get(leaf as usize)).map(|leaf| Loss {
            kind: LossKind::Value,
            path: leaf.to.clone().unwrap_or_default(),
            what: format!(
                "the cast from {} to {} changed values beyond rounding",
                leaf.source.dtype, leaf.target.dtype
            ),
        });
        casts.chain(self.losses.iter().cloned()).collect()
    }

    /// Returns an error if there are losses and `lossy` is not set; otherwise the save options.
    fn admit(&self, target: &Location, options: &ConvertOptions) -> Result<SaveOptions> {
        if !options.lossy && !self.is_lossless() {
            // Report errors first that `lossy` would not avoid.
            self.check(target, options)?;
            return Err(refused(&self.losses, options));
        }
        refuse_target_inside(&self.source, target)?;
        Ok(self.save_options(options))
    }

    /// The options of the save: the leaves already have their casts, and losses are already
    /// checked.
    fn save_options(&self, options: &ConvertOptions) -> SaveOptions {
        SaveOptions {
            cast: Vec::new(),
            casting: Casting::Lossy,
            custom_metadata: self.metadata.clone(),
            ..options.save.clone()
        }
    }
}

fn first<'a, T>(rules: &'a [(PathPattern, T)], path: &KeyPath) -> Option<&'a (PathPattern, T)> {
    rules.iter().find(|(pattern, _)| pattern.matches(path))
}

fn only_arrays(info: &LeafInfo, what: &str) -> Result<()> {
    match info.kind {
        LeafKind::NumpyArray | LeafKind::JaxArray => Ok(()),
        _ => Err(Error::invalid(format!("a leaf of kind {} has no axes to {what}", info.kind.name()))),
    }
}

/// The shape with its one -1 computed.
fn infer(from: &Shape, dims: &[i64]) -> Result<Shape> {
    let bad = || {
        Error::invalid("a shape has numbers of at least 0, and at most one -1").expected(
            format_args!("{} elements, as in {from}", from.len_elements()),
            format_args!("{dims:?}"),
        )
    };
    let known: Option<u64> = dims
        .iter()
        .filter(|&&dim| dim != -1)
        .try_fold(1_u64, |product, &dim| product.checked_mul(u64::try_from(dim).ok()?));
    let known = known.ok_or_else(bad)?;
    let unknown = dims.iter().filter(|&&dim| dim == -1).count();
    if unknown > 1 || (unknown == 1 && (known == 0 || !from.len_elements().is_multiple_of(known))) {
        return Err(bad());
    }
    let missing = from.len_elements().checked_div(known).unwrap_or(0);
    Shape::new(dims.iter().map(|&dim| if dim == -1 { missing } else { dim as u64 }).collect::<Vec<_>>())
}

/// Returns an error if the target lies inside the source: it would become part of its own source.
pub(super) fn refuse_target_inside(source: &Location, target: &Location) -> Result<()> {
    match target.folders_above().any(|folder| folder.leads_to(source)) {
        true => Err(Error::invalid("the target is inside the source").in_file(target)),
        false => Ok(()),
    }
}

fn refused(losses: &[Loss], options: &ConvertOptions) -> Error {
    let refused: Vec<&Loss> = losses.iter().filter(|loss| loss.kind != LossKind::Note).collect();
    let what = format!("the layout {} would lose something", options.save.layout.name());
    let other = match options.save.features().is_exact {
        true => String::new(),
        false => format!("; or choose {}", layouts_with(|features| features.is_exact)),
    };
    losses_refused(what, &refused).help(format!("pass `lossy` to convert what can be converted{other}"))
}
