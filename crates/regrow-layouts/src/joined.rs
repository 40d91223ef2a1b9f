//! A checkpoint of several files with an index, as `transformers` and `diffusers` write it.
//!
//! ```text
//! pytorch_model.bin.index.json        {"metadata": {"total_size": 192}, "weight_map": {"embed.weight": FILE, …}}
//! pytorch_model-00001-of-00002.bin    each a checkpoint of its own layout
//! ```
//!
//! The reader of the files' layout opens each file. Each leaf of the checkpoint is a leaf of one
//! file.
//!
//! Source: transformers 4.57 `modeling_utils.py`, `modeling_flax_utils.py`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use super::safetensors::index::Index;
use super::{Description, Reader, Rest, Standing, path_tree};
use regrow_base::bytes::glance::Language;
use regrow_base::bytes::limits::JSON_LEN_MAX_BYTES;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_base::text::counted;
use regrow_storage::Entry;
use regrow_storage::location::Location;
use regrow_store::reads::{Source, Unreadable};
use regrow_tree::array::Region;
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, Tree};

const SEPARATOR: &str = "/";

const NOTES_SHOWN: usize = 20;

/// The file names of a checkpoint with an index: `pytorch_model-00001-of-00002.bin` and
/// `pytorch_model.bin.index.json`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub index: &'static str,
    pub suffix: &'static str,
    /// Whether the index has paths with `/` as the names of leaves.
    pub nests: bool,
}

impl Names {
    /// The index `at` a location, which is the index itself or its folder. If a folder has several
    /// indexes, takes the one with the usual name.
    ///
    /// # Errors
    /// `Corrupt` for a folder that has numbered files but has lost their index; errors of the
    /// storage.
    pub fn find(&self, at: &Location) -> Result<Option<Location>> {
        if !at.is_folder() {
            let is_one = at.name().to_str().is_some_and(|name| self.is_index(name)) && at.is_file();
            return Ok(is_one.then(|| at.clone()));
        }
        let usual = at.join(self.index);
        if !at.has_listings() || usual.is_file() {
            return Ok(usual.is_file().then_some(usual));
        }
        let files = at.entries()?.into_iter().filter(Entry::is_file);
        let names: Vec<String> = files.filter_map(|file| file.name.into_string().ok()).collect();
        let indexes: Vec<&String> = names.iter().filter(|name| self.is_index(name)).collect();
        match (indexes.as_slice(), names.iter().filter(|name| self.is_part(name)).min()) {
            ([only], _) => Ok(Some(at.join(only))),
            ([], None) => Ok(None),
            ([], Some(part)) => Err(Error::corrupt("the index of a checkpoint in several files is missing")
                .in_file(usual)
                .expected(self.index, format_args!("{part:?} without an index"))
                .help("copy the whole checkpoint again, or open one file by its own path")),
            (several, _) => Err(Error::corrupt("there are several indexes, and none has the usual name")
                .in_file(at)
                .expected(self.index, format_args!("{several:?}"))
                .help("open one of them by its own path")),
        }
    }

    /// Whether a file name is the name of an index. The index of a variant has a longer name
    /// (`pytorch_model.bin.index.fp16.json`).
    fn is_index(&self, name: &str) -> bool {
        name.ends_with(".json") && name.contains(&format!("{}.index.", self.suffix))
    }

    /// Whether a file name has a part number: `-00001-of-00002`.
    fn is_part(&self, name: &str) -> bool {
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let numbers = name.strip_suffix(self.suffix).and_then(|name| name.rsplit_once("-of-"));
        numbers.is_some_and(|(rest, count)| {
            digits(count) && rest.rsplit_once('-').is_some_and(|(_, number)| digits(number))
        })
    }
}

/// The reader of several files as one checkpoint.
#[derive(Debug)]
pub(super) struct Joined {
    description: Description,
    tree: Tree<LeafInfo>,
    places: Vec<Place>,
    parts: Vec<Box<dyn Reader>>,
}

#[derive(Debug)]
enum Place {
    /// The number of a file, and the number of a leaf in it.
    In(usize, usize),
    /// A leaf in a file that cannot be read, when a checkpoint is salvaged.
    Lost(Error),
}

impl Joined {
    /// Opens the files that an index lists, each with `open`, in the order of their names.
    ///
    /// # Errors
    /// `Corrupt` for a file that is missing, or has other leaves than the index lists; errors of
    /// `open`.
    pub fn open(
        index_at: &Location,
        names: Names,
        salvage: bool,
        mut open: impl FnMut(&Location) -> Result<Box<dyn Reader>>,
    ) -> Result<Self> {
        let json =
            index_at.read_document("the index of several files", Language::Json, JSON_LEN_MAX_BYTES)?;
        let json =
            json.ok_or_else(|| Error::corrupt("the index of several files is missing").in_file(index_at))?;
        let index = Index::parse(&json).in_file(index_at)?;
        let (mut parts, mut found, mut lost) = (Vec::new(), HashMap::new(), HashMap::new());
        for file in index.files() {
            let at = index_at.with_name(OsStr::new(file));
            match part(&at, &mut open) {
                Ok(reader) => {
                    for (leaf, (path, _)) in reader.tree().iter().enumerate() {
                        let name = path.join(SEPARATOR);
                        if index.file_of(&name) != Some(file) {
                            return Err(Error::corrupt(format!(
                                "a file has {name:?}, but the index does not list it"
                            ))
                            .in_file(&at)
                            .help("the files belong to two checkpoints: copy them again with their index"));
                        }
                        found.insert(name, (parts.len(), leaf, path));
                    }
                    parts.push(reader);
                }
                Err(why) if salvage && why.kind().is_damage() => {
                    lost.insert(file.to_owned(), why);
                }
                Err(why) => return Err(why),
            }
        }
        let (mut paths, mut places) = (Vec::new(), Vec::new());
        for (name, file) in index.tensors() {
            let place = match (found.remove(name), lost.get(file)) {
                (Some((part, leaf, path)), _) => (path, Place::In(part, leaf)),
                (None, Some(why)) => (names.path(name), Place::Lost(why.duplicate())),
                (None, None) => {
                    return Err(Error::corrupt(format!("the index lists {name:?} in a file that lacks it"))
                        .in_file(index_at.with_name(OsStr::new(file)))
                        .help("the files belong to two checkpoints: copy them again with their index"));
                }
            };
            paths.push(place.0);
            places.push(Some(place.1));
        }
        Self::of(&paths, places, parts, index.files().len()).in_file(index_at)
    }

    fn of(
        paths: &[KeyPath],
        mut places: Vec<Option<Place>>,
        parts: Vec<Box<dyn Reader>>,
        files: usize,
    ) -> Result<Self> {
        let (mut infos, mut order) = (Vec::new(), Vec::new());
        let paths: Vec<&KeyPath> = paths.iter().collect();
        let tree = path_tree::build(&paths, |build, key, number| {
            let Some(place) = places.get_mut(number).and_then(Option::take) else { return Ok(()) };
            let info = match &place {
                Place::In(part, leaf) => {
                    parts.get(*part).and_then(|part| part.tree().leaves().get(*leaf)).cloned()
                }
                Place::Lost(_) => None,
            };
            let name = paths.get(number).map(|path| path.join("."));
            let lost = || LeafInfo::without_data(LeafKind::Placeholder, &name.unwrap_or_default(), "none");
            infos.push(info.unwrap_or_else(lost));
            order.push(place);
            build.leaf(key, ())
        })?
        .finish()?;
        let first = parts.first().map(|part| part.description().clone()).unwrap_or_default();
        let mut description = Description {
            layout: first.layout,
            variant: format!("{} by an index", counted(files, "file", "files")),
            ..Description::default()
        };
        for part in &parts {
            let own = part.description();
            let new = own.notes.iter().filter(|note| !description.notes.contains(note));
            let new: Vec<String> =
                new.take(NOTES_SHOWN.saturating_sub(description.notes.len())).cloned().collect();
            description.notes.extend(new);
            description.warnings.extend(own.warnings.iter().cloned());
        }
        Ok(Self { description, tree: tree.with_leaves(infos)?, places: order, parts })
    }

    #[cfg(feature = "torch")]
    pub fn with_objects(mut self, objects: Option<String>) -> Self {
        self.description.objects = objects;
        self
    }

    fn place(&self, leaf: usize) -> Result<(&dyn Reader, usize)> {
        match self.places.get(leaf) {
            Some(Place::In(part, leaf)) => {
                let part = self.parts.get(*part).ok_or_else(|| Error::invalid("the file does not exist"))?;
                Ok((&**part, *leaf))
            }
            Some(Place::Lost(why)) => Err(why.duplicate()),
            None => Err(Error::invalid("the leaf does not exist")),
        }
    }
}

impl Names {
    fn path(&self, name: &str) -> KeyPath {
        match self.nests {
            true => name.split(SEPARATOR).map(Key::dict).collect(),
            false => KeyPath::from_iter([Key::dict(name)]),
        }
    }
}

fn part(
    at: &Location,
    open: &mut impl FnMut(&Location) -> Result<Box<dyn Reader>>,
) -> Result<Box<dyn Reader>> {
    if !at.is_file() {
        return Err(Error::corrupt("a file that the index names is missing")
            .in_file(at)
            .help("copy the whole checkpoint again"));
    }
    open(at).in_file(at)
}

impl Reader for Joined {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        if let Some(Place::Lost(why)) = self.places.get(leaf) {
            return Ok(Source::Unreadable(Unreadable::lost(why.duplicate())));
        }
        let (part, leaf) = self.place(leaf)?;
        part.source(leaf)
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (part, leaf) = self.place(leaf)?;
        part.read_region(leaf, region, out)
    }

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let (part, leaf) = self.place(leaf)?;
        part.holders(leaf)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut ranks: Vec<HashMap<usize, usize>> = Vec::new();
        for part in &self.parts {
            ranks.push(part.read_order().into_iter().enumerate().map(|(rank, leaf)| (leaf, rank)).collect());
        }
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.places.get(leaf) {
            Some(Place::In(part, leaf)) => {
                Some((*part, ranks.get(*part).and_then(|ranks| ranks.get(leaf)).copied()))
            }
            _ => None,
        });
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        let mut all = Rest::default();
        for part in &self.parts {
            let rest = part.check_rest()?;
            all.findings.extend(rest.findings);
            all.notes.extend(rest.notes);
        }
        Ok(all)
    }

    fn standing(&self) -> Standing<'_> {
        let has_data_checksums = self.parts.iter().all(|part| part.standing().has_data_checksums);
        Standing { has_data_checksums, ..Standing::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_and_its_files_are_told_by_their_names() {
        let names = Names { index: "pytorch_model.bin.index.json", suffix: ".bin", nests: false };
        for (name, is_index, is_part) in [
            ("pytorch_model.bin.index.json", true, false),
            ("pytorch_model.bin.index.fp16.json", true, false),
            ("diffusion_pytorch_model.bin.index.json", true, false),
            ("model.safetensors.index.json", false, false),
            ("pytorch_model-00001-of-00002.bin", false, true),
            ("pytorch_model.bin", false, false),
            ("x-1-of-2.bin", false, false),
            ("train-00001-of-00002.msgpack", false, false),
        ] {
            assert_eq!((names.is_index(name), names.is_part(name)), (is_index, is_part), "{name}");
        }
    }
}
