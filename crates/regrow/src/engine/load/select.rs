//! Selects the leaves to load, and assigns their destinations.

use super::prune::{placeholder, prune};
use crate::array::Dtype;
use crate::engine::casts::check_casts;
use crate::engine::patterns::check_patterns;
use crate::engine::template::match_template;
use crate::engine::{Checkpoint, LoadOptions, TemplateLeaf};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{KeyPath, Leaf, LeafInfo, LeafKind, NodeKind, Tree};

/// A leaf that a load returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    /// The position of the leaf in the checkpoint.
    pub leaf: usize,
    /// The dtype in which the leaf is returned.
    pub dtype: Dtype,
}

impl Checkpoint {
    /// The leaves that a [`load`](Self::load) with these options returns. With a template: for each
    /// template leaf its stored leaf, or `None`. Without a template: the selected leaves, in
    /// flatten order. Reads no data.
    ///
    /// # Errors
    /// `NotFound` for patterns that match nothing; `Mismatch` if the template does not fit.
    #[doc(hidden)]
    pub fn select(&self, options: &LoadOptions) -> Result<Vec<Option<Selected>>> {
        self.check_patterns(options)?;
        let leaves = match &options.template {
            Some(template) => self.match_template(template, options)?,
            None => self.chosen(options).into_iter().map(Some).collect(),
        };
        let selected = |leaf: usize| {
            let info = self.tree().leaves().get(leaf)?;
            Some(Selected { leaf, dtype: self.cast_of(leaf, info, options).unwrap_or(info.dtype) })
        };
        Ok(leaves.into_iter().map(|leaf| leaf.and_then(selected)).collect())
    }

    pub(super) fn cast_of(&self, leaf: usize, info: &LeafInfo, options: &LoadOptions) -> Option<Dtype> {
        // Paths are computed only for patterns.
        let path = if options.cast.is_empty() { None } else { self.paths().get(leaf) };
        path.and_then(|path| options.cast_for(path, &info.kind, info.dtype))
    }

    fn check_patterns(&self, options: &LoadOptions) -> Result<()> {
        let casts = options.cast.iter().map(|(pattern, _)| pattern);
        let of_info = |info: &LeafInfo| (info.kind.clone(), info.dtype);
        check_patterns(self.tree(), options.only.iter().chain(casts))
            .and_then(|()| check_casts(self.tree(), &options.cast, options.casting, of_info))
            .map_err(|error| error.in_file(self.path()))
    }

    fn match_template(
        &self,
        template: &Tree<TemplateLeaf>,
        options: &LoadOptions,
    ) -> Result<Vec<Option<usize>>> {
        let is_cast = |leaf: usize| {
            self.tree().leaves().get(leaf).is_some_and(|info| self.cast_of(leaf, info, options).is_some())
        };
        let is_unread = |leaf: usize| options.unread.contains(&leaf);
        let by_names = self.reader().standing().has_guessed_tree;
        match_template(self.tree(), template, options.partial, by_names, is_cast, is_unread)
            .map_err(|error| error.in_file(self.path()))
    }

    fn chosen(&self, options: &LoadOptions) -> Vec<usize> {
        if options.only.is_empty() {
            return (0..self.tree().len()).collect();
        }
        let chosen = |path: &KeyPath| options.only.iter().any(|pattern| pattern.matches(path));
        let paths = self.paths().iter().enumerate();
        paths.filter(|(_, path)| chosen(path)).map(|(leaf, _)| leaf).collect()
    }

    pub(super) fn load_selected(
        &self,
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Tree<Leaf>> {
        self.check_patterns(options)?;
        match &options.template {
            Some(template) => self.load_as(template, options, outs),
            None if options.only.is_empty() => {
                let wanted: Vec<usize> = (0..self.tree().len()).collect();
                let leaves = self.read_all(&wanted, options, Vec::new())?;
                self.tree()
                    .with_leaves(leaves.into_iter().map(|leaf| leaf.unwrap_or_else(placeholder)).collect())
            }
            None => self.load_chosen(options),
        }
    }

    fn load_as(
        &self,
        template: &Tree<TemplateLeaf>,
        options: &LoadOptions,
        outs: Vec<Option<&mut [u8]>>,
    ) -> Result<Tree<Leaf>> {
        let matches = self.match_template(template, options)?;
        let wanted: Vec<usize> = matches.iter().flatten().copied().collect();
        let mut places: Vec<Option<&mut [u8]>> = Vec::new();
        if outs.iter().any(Option::is_some) {
            places.resize_with(self.tree().len(), || None);
            for ((leaf, out), want) in matches.iter().zip(outs).zip(template.leaves()) {
                let place = leaf.and_then(|leaf| places.get_mut(leaf).zip(Some(leaf)));
                if let (Some((place, leaf)), Some(out)) = (place, out) {
                    self.check_destination(leaf, options, want.dtype, out.len())?;
                    *place = Some(out);
                }
            }
        }
        let mut leaves = self.read_all(&wanted, options, places)?;
        let placed = matches.into_iter().map(|leaf| {
            leaf.and_then(|leaf| leaves.get_mut(leaf).and_then(Option::take)).unwrap_or_else(placeholder)
        });
        template.with_leaves(placed.collect())
    }

    /// Loads the leaves that `only` selects. The result has the part of the tree that contains
    /// them.
    fn load_chosen(&self, options: &LoadOptions) -> Result<Tree<Leaf>> {
        let chosen = |path: &KeyPath| options.only.iter().any(|pattern| pattern.matches(path));
        let wanted = self.chosen(options);
        let empty: Vec<bool> = self
            .tree()
            .walk()
            .map(|(path, node)| node.kind != NodeKind::Leaf && node.child_count == 0 && chosen(&path))
            .collect();
        prune(self.tree(), self.read_all(&wanted, options, Vec::new())?, &empty)
    }

    fn check_destination(
        &self,
        leaf: usize,
        options: &LoadOptions,
        dtype: Option<Dtype>,
        len: usize,
    ) -> Result<()> {
        let info = self.info(leaf)?;
        let becomes = self.cast_of(leaf, info, options).unwrap_or(info.dtype);
        let len_bytes = info.shape.len_bytes(becomes)?;
        let has_no_data = matches!(info.kind, LeafKind::Str | LeafKind::Placeholder | LeafKind::Unknown(_));
        if has_no_data || len_bytes == len as u64 && dtype.is_none_or(|dtype| dtype == becomes) {
            return Ok(());
        }
        let shown = dtype.map_or_else(String::new, |dtype| format!(" of {dtype}"));
        Err(Error::new(ErrorKind::Mismatch, "a destination does not fit its leaf")
            .in_file(self.path())
            .expected(format_args!("{len_bytes} bytes of {becomes}"), format_args!("{len} bytes{shown}"))
            .help("give an array of the leaf's shape and dtype, or pass `cast`")
            .at_leaf(&self.key_path(leaf)?))
    }
}
