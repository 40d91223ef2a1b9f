//! The reader of a file of torch.save, or of another pickle.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::archive::TorchArchive;
use super::detect::Form;
use super::file::DataFile;
use super::legacy::Legacy;
use super::pickle::{Id, Pickle};
use super::record::{self, Record};
use super::storages::{Storage, swaps};
use super::tensors::{self, Tensor};
use super::tree::{Data, Decoded, unfold};
use crate::pieces::copy_pieces;
use crate::{Description, Reader, Rest, Sparse, Standing};
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_base::text::{brief, counted};
use regrow_storage::location::Location;
use regrow_store::reads::{CheckFor, Coded, Extent, Seal, Source, Text, Unreadable};
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{KeyPath, LeafInfo, Tree};

/// The most refused leaves and shared storages that one text lists.
const NAMED_MAX: usize = 10;

/// With more refused leaves than this, the error of each leaf does not list the other leaves.
const REFUSED_MAX: usize = 1000;

/// The longest file that is one pickle: positions in it have 32 bits.
const PICKLE_LEN_MAX_BYTES: u64 = 4_294_967_295;

/// The module of the class that joblib writes instead of an array.
const JOBLIB: &[u8] = b"joblib.numpy_pickle";

/// An opened file.
#[derive(Debug)]
pub(super) struct TorchReader {
    description: Description,
    tree: Tree<LeafInfo>,
    leaves: Vec<Leaf>,
    storages: Vec<Storage>,
    /// The record of objects that the tree cannot represent.
    objects: Record,
    /// The other members of the archive.
    rest: Vec<Storage>,
    file: Arc<DataFile>,
    big_endian: bool,
    has_checksums: bool,
}

/// The position of a leaf's data.
#[derive(Debug)]
enum Leaf {
    View(usize, Tensor),
    Memory(Bytes),
    Text(Arc<str>),
    Refused(Error),
    /// The reason why the leaf is lost, in a salvage.
    Lost(Error),
}

/// An opened file, by its form.
enum Opened {
    Zip(TorchArchive),
    Legacy(Legacy),
    /// A pickle without storages.
    Pickle,
}

impl Opened {
    /// The variant in words, and whether the file has checksums.
    fn variant(&self, storage_count: usize) -> (String, bool) {
        let storages = counted(storage_count, "storage", "storages");
        match self {
            Self::Zip(archive) => (format!("zip, {storages}"), archive.has_checksums),
            Self::Legacy(_) => (format!("legacy, {storages}"), false),
            Self::Pickle => ("pickle".to_owned(), false),
        }
    }

    /// The other members of the archive. Adds a note about bytes after the last storage.
    fn into_rest(self, file_len_bytes: u64, notes: &mut Vec<String>) -> Vec<Storage> {
        match self {
            Self::Zip(archive) => archive.into_rest(),
            Self::Legacy(legacy) if legacy.end_bytes < file_len_bytes => {
                let end = legacy.end_bytes;
                notes.push(format!("the file has bytes after its last storage, at byte {end}"));
                Vec::new()
            }
            Self::Legacy(_) | Self::Pickle => Vec::new(),
        }
    }
}

/// The storages of a file, in the order in which the leaves use them.
struct Storages<'p> {
    pickle: &'p Pickle<'p>,
    opened: Opened,
    found: Vec<Storage>,
    /// Numbers of the storages, by their keys in the file.
    by_key: HashMap<&'p str, usize>,
    /// The numbers of the storages, by the values in the pickle that refer to them.
    by_id: HashMap<Id, usize>,
    /// The leaves of each storage.
    shared: BTreeMap<usize, Vec<usize>>,
}

impl<'p> Storages<'p> {
    fn new(pickle: &'p Pickle<'p>, opened: Opened) -> Self {
        Self {
            pickle,
            opened,
            found: Vec::new(),
            by_key: HashMap::new(),
            by_id: HashMap::new(),
            shared: BTreeMap::new(),
        }
    }

    fn of_leaf(&mut self, leaf: usize, id: Id) -> Result<usize> {
        let number = match self.by_id.get(&id) {
            Some(&known) => known,
            None => self.find(id)?,
        };
        self.by_id.insert(id, number);
        self.shared.entry(number).or_default().push(leaf);
        Ok(number)
    }

    fn find(&mut self, id: Id) -> Result<usize> {
        let storage = tensors::storage(self.pickle, id)?;
        if let Some(&known) = self.by_key.get(storage.key) {
            return Ok(known);
        }
        let found = match &mut self.opened {
            Opened::Zip(archive) => archive.take(storage.key),
            Opened::Legacy(legacy) => legacy.storages.remove(storage.key),
            Opened::Pickle => None,
        };
        let found = found.ok_or_else(|| {
            self.pickle
                .corrupt(id, format!("the storage {:?} is not in the file", storage.key))
                .help("the file was cut short or damaged; copy it again")
        })?;
        if storage.len_bytes() != Some(found.len_bytes) {
            let what = format!("the length of storage {:?} differs from its tensors", storage.key);
            return Err(self.pickle.corrupt(id, what).expected(
                format_args!("{} elements of {}", storage.len_elements, storage.class),
                format_args!("{} bytes", found.len_bytes),
            ));
        }
        self.found.push(found);
        self.by_key.insert(storage.key, self.found.len() - 1);
        Ok(self.found.len() - 1)
    }

    /// Adds data that is in the pickle itself. Only a file without storages has such data.
    fn add_inside(&mut self, offset_bytes: u64, tensor: &Tensor) -> usize {
        self.found.push(Storage::at(offset_bytes, tensor.span_len_bytes()));
        self.found.len() - 1
    }

    /// Records the tensors that share a storage, or whose elements are not contiguous.
    fn record_views(&self, structure: &Tree<()>, leaves: &[Leaf], objects: &mut Record) {
        for (at_leaf, leaf) in leaves.iter().enumerate() {
            let Leaf::View(number, tensor) = leaf else { continue };
            let is_shared = self.shared.get(number).is_some_and(|leaves| leaves.len() > 1);
            if !is_shared && tensor.is_contiguous() {
                continue;
            }
            let path = structure.path_of(at_leaf);
            if let Some(storage) = self.found.get(*number).filter(|_| !objects.is_same(&path)) {
                objects.add(&path, record::of_view(tensor, *number, storage.len_bytes));
            }
        }
    }
}

impl TorchReader {
    /// Opens the file `at` a location: reads its pickle, but no storage. With `salvage`, storages
    /// may be missing.
    pub(super) fn open(at: &Location, form: Form, salvage: bool) -> Result<Self> {
        let file = Arc::new(DataFile::open(at)?);
        match form {
            Form::Zip => Self::open_within(&file, 0, file.len_bytes, salvage),
            Form::Legacy => {
                let legacy = Legacy::open(&file, salvage).in_file(at)?;
                let (bytes, big_endian, pickle_at) =
                    (legacy.pickle.clone(), legacy.big_endian, legacy.pickle_at);
                Self::of(file, Opened::Legacy(legacy), (&bytes, pickle_at), big_endian, salvage).in_file(at)
            }
            Form::Pickle => Self::open_pickle(file, salvage).in_file(at),
            Form::Tar => Err(Error::unsupported("this is a tar archive of PyTorch before 0.1.10")
                .in_file(at)
                .help("load it with torch.load of PyTorch up to 2.5, and save it again")),
        }
    }

    fn open_pickle(file: Arc<DataFile>, salvage: bool) -> Result<Self> {
        if file.len_bytes > PICKLE_LEN_MAX_BYTES {
            return Err(Error::new(ErrorKind::Limit, "a pickle is too long to be read")
                .expected(format_args!("at most {PICKLE_LEN_MAX_BYTES} bytes"), file.len_bytes)
                .help("load it in Python, if you trust its writer, and save it with regrow.save"));
        }
        let bytes = file.slice(0, file.len_bytes)?;
        let joblib = || bytes.windows(JOBLIB.len()).any(|window| window == JOBLIB);
        let pickle = match Pickle::read(&bytes) {
            // joblib writes arrays between the opcodes.
            Err(_) if joblib() => {
                return Err(Error::unsupported("this is a file of joblib, which regrow does not read").help(
                    "load it with joblib.load, if you trust its writer, and save it with regrow.save",
                ));
            }
            pickle => pickle?,
        };
        let len_bytes = pickle.len_bytes() as u64;
        if len_bytes < file.len_bytes {
            return Err(Error::unsupported("the file has more than one pickle, or bytes after it")
                .at_byte(len_bytes)
                .expected(format_args!("{len_bytes} bytes"), file.len_bytes)
                .help("load them in Python, if you trust their writer, and save them as one tree"));
        }
        drop(pickle);
        Self::of(file, Opened::Pickle, (&bytes, 0), false, salvage)
    }

    /// Opens the archive in `len_bytes` of a file, from `base_bytes` on.
    pub(super) fn open_within(
        file: &Arc<DataFile>,
        base_bytes: u64,
        len_bytes: u64,
        salvage: bool,
    ) -> Result<Self> {
        let name = file.describe();
        let archive = TorchArchive::open(file, base_bytes, len_bytes, salvage).in_file(&name)?;
        let pickle_at = archive.pickle_at(file)?;
        let (bytes, big_endian) = (archive.pickle.clone(), archive.big_endian);
        Self::of(Arc::clone(file), Opened::Zip(archive), (&bytes, pickle_at), big_endian, salvage)
            .in_file(name)
    }

    fn of(
        file: Arc<DataFile>,
        opened: Opened,
        (bytes, at): (&Bytes, u64),
        big_endian: bool,
        salvage: bool,
    ) -> Result<Self> {
        let pickle = Pickle::read(bytes).shift(at)?;
        let unfolded = unfold(&pickle, bytes, matches!(opened, Opened::Pickle)).shift(at)?;
        let mut storages = Storages::new(&pickle, opened);
        let (structure, notes) = (unfolded.tree.with_leaves(vec![(); unfolded.tree.len()])?, unfolded.notes);
        let (mut infos, mut leaves) =
            (Vec::with_capacity(structure.len()), Vec::with_capacity(structure.len()));
        for (at_leaf, Decoded { mut info, data }) in unfolded.tree.into_leaves().into_iter().enumerate() {
            let leaf = match data {
                Data::Tensor(tensor) => match storages.of_leaf(at_leaf, tensor.storage) {
                    Ok(number) => {
                        info.coding = coding(&tensor, big_endian).into();
                        Leaf::View(number, tensor)
                    }
                    Err(error) if salvage && error.kind().is_damage() => {
                        Leaf::Lost(error.shift(at).in_file(file.describe()))
                    }
                    Err(error) => return Err(error.shift(at).at_leaf(&structure.path_of(at_leaf))),
                },
                Data::Inside(offset_bytes, tensor) => {
                    let number = storages.add_inside(at.saturating_add(offset_bytes), &tensor);
                    Leaf::View(number, tensor)
                }
                Data::Memory(bytes) => Leaf::Memory(bytes),
                Data::Text(text) => Leaf::Text(text),
                Data::Refused(why) => Leaf::Refused(why.shift(at).in_file(file.describe())),
            };
            infos.push(info);
            leaves.push(leaf);
        }
        let mut objects = unfolded.record;
        storages.record_views(&structure, &leaves, &mut objects);
        name_all_refused(&mut leaves);
        let tree = structure.with_leaves(infos)?;
        let mut notes = notes;
        notes.extend(shared_note(&tree, &storages.shared));
        notes.extend(refused_note(&tree, &leaves));
        let Storages { opened, found: storages, .. } = storages;
        let (variant, has_checksums) = opened.variant(storages.len());
        if !has_checksums {
            notes.push("the file has no checksums: regrow cannot detect damage of its data".to_owned());
        }
        let rest = opened.into_rest(file.len_bytes, &mut notes);
        let description = Description {
            layout: "torch".to_owned(),
            variant,
            notes,
            objects: objects.to_text(),
            ..Description::default()
        };
        Ok(Self { description, tree, leaves, storages, objects, rest, file, big_endian, has_checksums })
    }

    /// The record of objects that the tree cannot represent, and the number of storages in it.
    pub(super) fn objects(&self) -> (&Record, usize) {
        (&self.objects, self.storages.len())
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, &Leaf)> {
        self.tree.leaves().get(leaf).zip(self.leaves.get(leaf)).ok_or_else(|| {
            Error::invalid(
                "the leaf \
            does not exist",
            )
        })
    }

    /// The bytes of a view, from its first element to its last.
    fn span_of(&self, number: usize, tensor: &Tensor) -> Result<Extent<'_>> {
        let offset_bytes = tensor.offset_elements.saturating_mul(tensor.dtype.size_bytes() as u64);
        let mut extent = self.storage(number)?.extent(&self.file, offset_bytes, tensor.span_len_bytes())?;
        extent.is_viewable = extent.offset_bytes.is_multiple_of(tensor.dtype.word_bytes() as u64);
        Ok(extent)
    }

    fn storage(&self, number: usize) -> Result<&Storage> {
        self.storages.get(number).ok_or_else(|| Error::invalid("the storage does not exist"))
    }
}

impl Reader for TorchReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let (info, leaf) = self.leaf(leaf)?;
        Ok(match leaf {
            Leaf::View(..) if info.shape.is_empty() => Source::Memory(Bytes::new()),
            Leaf::View(number, tensor) if !tensor.is_contiguous() || swaps(tensor.dtype, self.big_endian) => {
                let span = match swaps(tensor.dtype, self.big_endian) {
                    true => None,
                    false => Some(self.span_of(*number, tensor)?),
                };
                let seal = Whole { storage: self.storage(*number)?, file: &self.file };
                let working_len_bytes = Some(tensor.span_len_bytes());
                Source::Coded(Coded { working_len_bytes, seal: Some(Box::new(seal)), span })
            }
            Leaf::View(number, tensor) => Source::Raw(self.span_of(*number, tensor)?),
            Leaf::Memory(bytes) => Source::Memory(bytes.clone()),
            Leaf::Text(text) => Source::Text(Text::Known(text)),
            Leaf::Refused(why) => {
                let (why, seal) = (why.duplicate(), Box::new(InPickle));
                Source::Unreadable(Unreadable { why, seal, is_sound: true })
            }
            Leaf::Lost(why) => Source::Unreadable(Unreadable::lost(why.duplicate())),
        })
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, leaf) = self.leaf(leaf)?;
        match leaf {
            Leaf::View(number, tensor) => {
                self.storage(*number)?.read_region(&self.file, tensor, self.big_endian, region, out)
            }
            Leaf::Memory(bytes) => {
                copy_pieces(std::slice::from_ref(bytes), info.dtype, &info.shape, region, out)
            }
            Leaf::Text(text) => {
                let text = [Bytes::copy_from_slice(text.as_bytes())];
                copy_pieces(&text, Dtype::UInt8, &info.shape, region, out)
            }
            Leaf::Refused(why) | Leaf::Lost(why) => Err(why.duplicate()),
        }
    }

    fn sparse(&self, leaf: usize) -> Result<Option<Sparse>> {
        let (info, leaf) = self.leaf(leaf)?;
        let Leaf::View(_, tensor) = leaf else { return Ok(None) };
        let len_bytes = tensor.span_len_bytes();
        if len_bytes >= info.len_bytes() {
            return Ok(None);
        }
        let axes = tensor.shape.dims().iter().zip(&tensor.strides_elements);
        let dims: Vec<u64> = axes.map(|(&dim, &stride)| if stride == 0 { dim.min(1) } else { dim }).collect();
        Ok(Some(Sparse::Repeats(Shape::new(dims)?, len_bytes)))
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tree.len()).collect();
        order.sort_by_key(|&leaf| match self.leaves.get(leaf) {
            Some(Leaf::View(number, tensor)) => {
                self.storages.get(*number).map(|storage| (storage.order(), tensor.offset_elements))
            }
            _ => None,
        });
        order
    }

    fn check_rest(&self) -> Result<Rest> {
        let checks = self.rest.iter().map(|storage| storage.check(&self.file, CheckFor::Verify));
        Ok(Rest::default().found(checks.filter_map(Result::err)))
    }

    fn standing(&self) -> Standing<'_> {
        Standing { has_data_checksums: self.has_checksums, ..Standing::default() }
    }
}

fn coding(tensor: &Tensor, big_endian: bool) -> String {
    let mut out = "raw".to_owned();
    if !tensor.is_contiguous() {
        out.push_str(", strided");
    }
    if swaps(tensor.dtype, big_endian) {
        out.push_str(", big endian");
    }
    out
}

/// Adds the other refused leaves, at most `NAMED_MAX`, to the error of each refused leaf: a load of
/// all leaves reports only one error.
fn name_all_refused(leaves: &mut [Leaf]) {
    let refused = leaves.iter().filter_map(|leaf| match leaf {
        Leaf::Refused(why) => why.place().leaf.as_ref().map(|path| brief(&path.to_string()).into_owned()),
        _ => None,
    });
    let refused: Vec<String> = refused.collect();
    if refused.len() < 2 || refused.len() > REFUSED_MAX {
        return;
    }
    for leaf in leaves {
        let Leaf::Refused(why) = leaf else { continue };
        let own = why.place().leaf.as_ref().map(KeyPath::to_string).unwrap_or_default();
        let others = refused
            .iter()
            .filter(|path| **path != own)
            .take(NAMED_MAX)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let help = format!("{}; also refused: {others}", why.help_text().unwrap_or_default());
        *why = why.duplicate().help(help);
    }
}

fn shared_note(tree: &Tree<LeafInfo>, shared: &BTreeMap<usize, Vec<usize>>) -> Option<String> {
    let groups: Vec<&Vec<usize>> = shared.values().filter(|leaves| leaves.len() > 1).collect();
    let count: usize = groups.iter().map(|leaves| leaves.len()).sum();
    let name = |&leaf: &usize| brief(&tree.path_of(leaf).to_string()).into_owned();
    let texts = groups.iter().take(NAMED_MAX).map(|leaves| {
        let more = if leaves.len() > NAMED_MAX { " and more" } else { "" };
        format!("{}{more}", leaves.iter().take(NAMED_MAX).map(name).collect::<Vec<_>>().join(" = "))
    });
    let texts = texts.collect::<Vec<_>>().join("; ");
    let more = if groups.len() > NAMED_MAX { "; and more" } else { "" };
    (count > 0).then(|| {
        format!("{count} tensors share {}: {texts}{more}", counted(groups.len(), "storage", "storages"))
    })
}

fn refused_note(tree: &Tree<LeafInfo>, leaves: &[Leaf]) -> Option<String> {
    let refused = leaves.iter().enumerate().filter_map(|(leaf, data)| match data {
        Leaf::Refused(why) => Some((leaf, why)),
        _ => None,
    });
    let refused: Vec<(usize, &Error)> = refused.collect();
    let texts = refused.iter().take(NAMED_MAX).map(|(leaf, why)| {
        let path = tree.path_of(*leaf).to_string();
        let kind = tree.leaves().get(*leaf).map(|info| match &info.kind {
            regrow_tree::tree::LeafKind::Unknown(name) => name.to_string(),
            kind => kind.name().to_owned(),
        });
        let at = why.place().offset_bytes.unwrap_or_default();
        format!("{} ({}, byte {at})", brief(&path), kind.unwrap_or_default())
    });
    let texts = texts.collect::<Vec<_>>().join(", ");
    let more = if refused.len() > NAMED_MAX { " and more" } else { "" };
    let leaves = counted(refused.len(), "leaf is", "leaves are");
    (!refused.is_empty()).then(|| format!("{leaves} not read: {texts}{more}"))
}

/// The seal of a whole storage, which has one checksum.
#[derive(Debug)]
struct Whole<'r> {
    storage: &'r Storage,
    file: &'r DataFile,
}

impl Seal for Whole<'_> {
    fn check(&self) -> Result<()> {
        self.storage.check(self.file, CheckFor::Views)
    }
}

/// The seal of values in the pickle, which are checked with the pickle.
#[derive(Debug)]
struct InPickle;

impl Seal for InPickle {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}
