//! The values of a pickle as a pytree: containers become nodes, and all other values become leaves
//! with the position of their data.
//!
//! Values may be shared, and a list may contain itself. So the walk has a limit of depth, and a
//! limit of nodes that depends on the length of the pickle. A pickle that would expand a few bytes
//! into gigabytes is refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::numpy::{NumpyValue, Payload};
use super::objects::{Object, Refusal, object};
use super::pickle::{Id, Pickle, Span, Value};
use super::pointer::pointer;
use super::record::{self, Record};
use super::tensors::{StorageRef, Tensor};
use regrow_base::bytes::limits::allocate;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::brief;
use regrow_tree::array::{Dtype, Region, Shape};
use regrow_tree::tree::{Key, KeyPath, LeafInfo, LeafKind, NodeKind, Tree, TreeBuilder};

/// The most nested containers. Python's picklers stop below this.
const DEPTH_MAX: usize = 1024;

/// The most nodes of a pickle: a constant, and more for each opcode. A shared value is a node at
/// each of its positions.
const NODES_MIN: u64 = 1 << 16;
const NODES_PER_OP: u64 = 4;

/// The most bytes of the names of all nodes together.
const NAMES_LEN_MAX_BYTES: usize = 1 << 28;

/// The most bytes that are decoded for each byte of a pickle: texts that mean bytes, numbers of the
/// other byte order.
const DECODED_PER_BYTE: u64 = 4;
const DECODED_MIN_BYTES: u64 = 1 << 20;

/// Arrays with fewer bytes are copied out of a pickle.
const INSIDE_LEN_MIN_BYTES: usize = 4096;

/// A leaf and the position of its data.
#[derive(Debug)]
pub(super) struct Decoded {
    pub info: LeafInfo,
    pub data: Data,
}

/// The position of a leaf's data.
#[derive(Debug)]
pub(super) enum Data {
    Tensor(Tensor),
    /// Elements that lie in the pickle as they are, from this byte of the pickle on.
    Inside(u64, Tensor),
    Memory(Bytes),
    Text(Arc<str>),
    Refused(Error),
}

/// A pytree, the notes about it, and the record of its Python objects.
#[derive(Debug)]
pub(super) struct Unfolded {
    pub tree: Tree<Decoded>,
    pub notes: Vec<String>,
    pub record: Record,
}

/// Unfolds the values of a pickle whose bytes are `bytes`. With `is_whole_file` long arrays stay
/// where they are.
///
/// # Errors
/// `Corrupt`, `Unsupported`, `Limit`; with key path and offset.
pub(super) fn unfold(pickle: &Pickle<'_>, bytes: &Bytes, is_whole_file: bool) -> Result<Unfolded> {
    let mut walk = Walk {
        pickle,
        bytes,
        is_whole_file,
        path: KeyPath::root(),
        open: Vec::new(),
        build: TreeBuilder::new(),
        keys: HashMap::new(),
        decoded: HashMap::new(),
        nodes_left: NODES_MIN.saturating_add(pickle.op_count().saturating_mul(NODES_PER_OP)),
        names_left: NAMES_LEN_MAX_BYTES,
        decoded_left_bytes: DECODED_MIN_BYTES
            .saturating_add((pickle.len_bytes() as u64).saturating_mul(DECODED_PER_BYTE)),
        notes: Vec::new(),
        tensors: HashMap::new(),
        record: Record::default(),
    };
    match walk.unfold() {
        Ok(()) => Ok(Unfolded { tree: walk.build.finish()?, notes: walk.notes, record: walk.record }),
        Err(error) if walk.path.is_root() => Err(error),
        Err(error) => Err(error.at_leaf(&walk.path)),
    }
}

struct Walk<'p, 'b> {
    pickle: &'p Pickle<'b>,
    bytes: &'p Bytes,
    is_whole_file: bool,
    /// The key path of the current value. After an error, the path of the error.
    path: KeyPath,
    open: Vec<std::vec::IntoIter<(Key, Id)>>,
    build: TreeBuilder<Decoded>,
    /// Texts that are keys: each is copied once.
    keys: HashMap<Id, Arc<str>>,
    /// Texts that stand for bytes: each is decoded once.
    decoded: HashMap<Span, Bytes>,
    nodes_left: u64,
    names_left: usize,
    decoded_left_bytes: u64,
    notes: Vec<String>,
    /// The first key path of each tensor, as a JSON pointer.
    tensors: HashMap<Id, String>,
    record: Record,
}

impl<'p> Walk<'p, '_> {
    fn unfold(&mut self) -> Result<()> {
        self.value(Key::Index(0), self.pickle.root())?;
        while let Some(open) = self.open.last_mut() {
            let Some((key, id)) = open.next() else {
                self.open.pop();
                self.build.close()?;
                self.path.pop();
                continue;
            };
            self.path.push(key.clone());
            self.value(key, id)?;
        }
        Ok(())
    }

    /// Adds a value, a container up to its first child.
    fn value(&mut self, key: Key, id: Id) -> Result<()> {
        self.charge(id)?;
        let pickle: &'p Pickle<'_> = self.pickle;
        let leaf = match object(pickle, id)? {
            Object::None => {
                self.build.open(key, NodeKind::None)?;
                self.build.close()?;
                self.path.pop();
                return Ok(());
            }
            Object::Sequence(kind, items) => return self.sequence(key, kind, items, id),
            Object::Set(items) => {
                self.note("is a set, shown as a list");
                self.record.add(&self.path, record::of_set(pickle, id));
                return self.sequence(key, NodeKind::List, items, id);
            }
            Object::Size(dims) => {
                self.record.add(&self.path, json!({"is": "size"}));
                return self.size(key, &dims);
            }
            Object::Dict(kind, pairs) => match self.children(pairs)? {
                Ok(children) => {
                    if let Some(entry) = record::of_dict(pickle, id) {
                        self.record.add(&self.path, entry);
                    }
                    return self.enter(key, kind, children, id);
                }
                Err(refused) => self.refused(refused),
            },
            Object::Number(value) => {
                let (dtype, bytes) = value.to_element();
                self.leaf(LeafKind::Scalar, dtype, Shape::scalar(), Data::Memory(bytes.into()))
            }
            Object::BigInt(digits) => {
                self.note("is an integer beyond 64 bits, shown as text");
                self.record.add(&self.path, json!({"is": "int"}));
                self.text(&digits)?
            }
            Object::Text(span) => self.text(pickle.text_of(span))?,
            Object::Name(name) => {
                self.record.add(&self.path, record::of_name(&name));
                self.text(&name)?
            }
            Object::Bytes(payload) => self.bytes(id, payload)?,
            Object::Tensor(tensor) => {
                self.tell(id, &tensor);
                let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                self.leaf(LeafKind::NumpyArray, dtype, shape, Data::Tensor(tensor))
            }
            Object::Storage(storage) => self.storage(&storage)?,
            Object::Numpy(value) => self.numpy(id, &value)?,
            Object::Refused(refusal) => self.refused(refusal),
        };
        self.build.leaf(key, leaf)?;
        self.path.pop();
        Ok(())
    }

    /// Counts a node and its name against the limits of all nodes and names.
    fn charge(&mut self, id: Id) -> Result<()> {
        self.nodes_left = self.nodes_left.checked_sub(1).ok_or_else(|| {
            self.limit(id, "the containers of a pickle contain each other too often".to_owned())
        })?;
        let name_len: usize = self.path.keys().iter().map(|key| key.text().len() + 1).sum();
        self.names_left = self
            .names_left
            .checked_sub(name_len)
            .ok_or_else(|| self.limit(id, "the names of all leaves are too long together".to_owned()))?;
        Ok(())
    }

    fn bytes(&mut self, id: Id, payload: Payload) -> Result<Decoded> {
        let bytes = self.payload(id, payload)?;
        let shape = Shape::new(vec![bytes.len() as u64])?;
        Ok(self.leaf(LeafKind::Bytes, Dtype::UInt8, shape, Data::Memory(bytes)))
    }

    /// Records the properties of a tensor besides its elements. If the same tensor occurred before,
    /// records only its first path.
    fn tell(&mut self, id: Id, tensor: &Tensor) {
        if let Some(first) = self.tensors.get(&id) {
            self.record.add(&self.path, json!({"same": first}));
            return;
        }
        self.tensors.insert(id, pointer(&self.path));
        if let Some(entry) = record::of_tensor(self.pickle, tensor) {
            self.record.add(&self.path, entry);
        }
    }

    fn sequence(&mut self, key: Key, kind: NodeKind, items: &[Id], id: Id) -> Result<()> {
        let children = items.iter().enumerate().map(|(at, &item)| (Key::Index(at), item)).collect();
        self.enter(key, kind, children, id)
    }

    fn enter(&mut self, key: Key, kind: NodeKind, children: Vec<(Key, Id)>, id: Id) -> Result<()> {
        if self.open.len() >= DEPTH_MAX {
            let what = format!("containers are nested deeper than {DEPTH_MAX} levels");
            return Err(self.limit(id, what));
        }
        if children.len() as u64 > self.nodes_left {
            return Err(self.limit(id, "the containers of a pickle contain each other too often".to_owned()));
        }
        self.build.open(key, kind)?;
        self.open.push(children.into_iter());
        Ok(())
    }

    fn size(&mut self, key: Key, dims: &[u64]) -> Result<()> {
        self.build.open(key, NodeKind::Tuple)?;
        for (at, &dim) in dims.iter().enumerate() {
            self.path.push(Key::Index(at));
            let bytes = Bytes::copy_from_slice(&dim.to_le_bytes());
            let leaf = self.leaf(LeafKind::Scalar, Dtype::Int64, Shape::scalar(), Data::Memory(bytes));
            self.build.leaf(Key::Index(at), leaf)?;
            self.path.pop();
        }
        self.build.close()?;
        self.path.pop();
        Ok(())
    }

    /// The items of a dict by their keys; a dict with other keys than texts and integers is refused
    /// as a whole.
    fn children(&mut self, pairs: &[(Id, Id)]) -> Result<Result<Vec<(Key, Id)>, Refusal>> {
        if pairs.len() as u64 > self.nodes_left {
            return Err(Error::new(
                ErrorKind::Limit,
                "the containers of a pickle contain each other too \
                often",
            ));
        }
        let mut children = Vec::with_capacity(pairs.len());
        let mut known = HashSet::with_capacity(pairs.len());
        for &(key_id, value) in pairs {
            let key = match self.pickle.value(key_id) {
                Value::Text(span) => {
                    let text = || Arc::from(self.pickle.text_of(*span));
                    Key::Dict(self.keys.entry(key_id).or_insert_with(text).clone())
                }
                Value::Int(number) => Key::DictInt(*number),
                _ => {
                    let why = self
                        .pickle
                        .unsupported(key_id, "a dict has a key that is neither text nor an integer")
                        .help("read the other leaves with `only`, or save the dict with other keys");
                    return Ok(Err(Refusal { name: "dict".to_owned(), why }));
                }
            };
            if !known.insert(key.clone()) {
                self.path.push(key);
                return Err(self.pickle.corrupt(key_id, "a key of a dict occurs twice"));
            }
            children.push((key, value));
        }
        Ok(Ok(children))
    }

    fn text(&mut self, text: &str) -> Result<Decoded> {
        let shape = Shape::new(vec![text.len() as u64])?;
        // One text of the pickle may occur in the tree many times.
        self.decoded_left_bytes =
            self.decoded_left_bytes.checked_sub(text.len() as u64).ok_or_else(|| {
                Error::new(ErrorKind::Limit, "the texts of a pickle occur in the tree too often")
            })?;
        Ok(self.leaf(LeafKind::Str, Dtype::UInt8, shape, Data::Text(Arc::from(text))))
    }

    /// All of a storage, as an array of one axis.
    fn storage(&mut self, storage: &StorageRef<'_>) -> Result<Decoded> {
        let super::dtypes::Element::Known(dtype) = storage.element else {
            let why =
                self.pickle.unsupported(storage.at, format!("regrow does not read a {}", storage.class));
            return Ok(self.refused(Refusal { name: format!("torch.{}", storage.class), why }));
        };
        let shape = Shape::new(vec![storage.len_elements])?;
        shape.len_bytes(dtype).map_err(|error| error.at_byte(self.pickle.offset(storage.at)))?;
        let tensor = Tensor {
            storage: storage.at,
            dtype,
            shape: shape.clone(),
            strides_elements: vec![1],
            offset_elements: 0,
            requires_grad: false,
            is_parameter: false,
        };
        Ok(self.leaf(LeafKind::NumpyArray, dtype, shape, Data::Tensor(tensor)))
    }

    fn numpy(&mut self, id: Id, value: &NumpyValue) -> Result<Decoded> {
        if !value.is_scalar {
            self.record.add(&self.path, json!({"is": "numpy"}));
        }
        let record = &value.record;
        let stored = self.payload(id, value.payload)?;
        if stored.len() as u64 != record.len_bytes() {
            return Err(self
                .pickle
                .corrupt(id, "the data of a NumPy array does not fit its shape")
                .expected(format_args!("{} bytes", record.len_bytes()), stored.len()));
        }
        let kind = match (&record.kind, value.is_scalar) {
            (LeafKind::NumpyArray, true) => LeafKind::NumpyScalar,
            (LeafKind::NumpyArray, false) if value.is_jax => LeafKind::JaxArray,
            (LeafKind::NumpyOther(descr), true) => LeafKind::NumpyOtherScalar(descr.clone()),
            (kind, _) => kind.clone(),
        };
        if let Payload::Raw(span) = value.payload
            && let Some(range) = span.range().filter(|range| range.len() >= INSIDE_LEN_MIN_BYTES)
            && self.is_whole_file
            && record.is_raw()
        {
            let tensor = Tensor {
                storage: id,
                dtype: record.dtype,
                shape: record.shape.clone(),
                strides_elements: record.shape.strides_elements(),
                offset_elements: 0,
                requires_grad: false,
                is_parameter: false,
            };
            let data = Data::Inside(range.start as u64, tensor);
            return Ok(self.leaf(kind, record.dtype, record.shape.clone(), data));
        }
        let bytes = if record.is_raw() {
            stored
        } else {
            self.pay(id, record.len_bytes())?;
            let mut out = allocate(record.len_bytes())?;
            record.copy_region(stored, &Region::whole(&record.shape), &mut out)?;
            out.into()
        };
        Ok(self.leaf(kind, record.dtype, record.shape.clone(), Data::Memory(bytes)))
    }

    fn payload(&mut self, id: Id, payload: Payload) -> Result<Bytes> {
        let span = match payload {
            Payload::Empty => return Ok(Bytes::new()),
            Payload::Raw(span) => {
                // The bytes of a whole file may be a map, which changes with the file. So copy
                // short bytes.
                let range =
                    span.range().filter(|range| !self.is_whole_file || range.len() >= INSIDE_LEN_MIN_BYTES);
                let copy = || Bytes::copy_from_slice(self.pickle.span(span));
                return Ok(range.map_or_else(copy, |range| self.bytes.slice(range)));
            }
            Payload::Latin1(span) => span,
        };
        if let Some(known) = self.decoded.get(&span) {
            return Ok(known.clone());
        }
        let text = self.pickle.text_of(span);
        self.pay(id, text.len() as u64)?;
        let bytes: Option<Vec<u8>> = text.chars().map(|letter| u8::try_from(letter).ok()).collect();
        let bytes = Bytes::from(
            bytes.ok_or_else(|| self.pickle.corrupt(id, "a text that encodes bytes is not Latin-1"))?,
        );
        self.decoded.insert(span, bytes.clone());
        Ok(bytes)
    }

    fn pay(&mut self, id: Id, len_bytes: u64) -> Result<()> {
        self.decoded_left_bytes = self
            .decoded_left_bytes
            .checked_sub(len_bytes)
            .ok_or_else(|| self.limit(id, "the data within a pickle are decoded too often".to_owned()))?;
        Ok(())
    }

    fn refused(&self, refusal: Refusal) -> Decoded {
        let shape = Shape::new(vec![0]).unwrap_or_default();
        let why = if self.path.is_root() { refusal.why } else { refusal.why.at_leaf(&self.path) };
        self.leaf(LeafKind::Unknown(refusal.name.into()), Dtype::UInt8, shape, Data::Refused(why))
    }

    fn leaf(&self, kind: LeafKind, dtype: Dtype, shape: Shape, data: Data) -> Decoded {
        let info = LeafInfo {
            kind,
            dtype,
            shape,
            name: self.path.join(".").into(),
            chunk_shape: None,
            write_shape: None,
            sharding: None,
            coding: "raw".into(),
        };
        Decoded { info, data }
    }

    fn note(&mut self, what: &str) {
        const NOTES_MAX: usize = 20;
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{} {what}", brief(&self.path.to_string())));
        }
    }

    fn limit(&self, id: Id, what: String) -> Error {
        Error::new(ErrorKind::Limit, what).at_byte(self.pickle.offset(id))
    }
}
