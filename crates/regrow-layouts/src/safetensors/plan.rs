//! Plans the name, the stored form and the file of every tensor, before the first write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::SafetensorsOptions;
use super::layout::{F4, can_be_packed, has_dtype, stored_as, writing_rank};
use crate::options::{Compression, SaveOptions};
use crate::refusals::Refusals;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_tree::array::{Dtype, Shape};
use regrow_tree::tree::{KeyPath, Leaf, LeafData, LeafInfo, LeafKind, Tree};

/// The stored form of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    pub tag: &'static str,
    pub dims: Vec<u64>,
    pub len_bytes: u64,
}

impl Form {
    /// The form of an array: packed if safetensors packs its dtype, otherwise byte for byte as in
    /// memory.
    pub fn of(dtype: Dtype, shape: &Shape) -> Result<Self> {
        let len_bytes = shape.len_bytes(dtype)?;
        if can_be_packed(dtype, shape) {
            return Ok(Self { tag: F4, dims: shape.dims().to_vec(), len_bytes: len_bytes / 2 });
        }
        let (tag, dims) = stored_as(dtype, shape);
        Ok(Self { tag, dims, len_bytes })
    }

    pub fn is_packed(&self) -> bool {
        self.tag == F4
    }
}

/// One tensor of a file.
#[derive(Debug)]
pub(super) struct PlannedTensor {
    /// The number of the leaf, in flatten order.
    pub leaf: usize,
    pub name: Arc<str>,
    pub form: Form,
}

/// The plan of a save.
#[derive(Debug)]
pub(super) struct Plan {
    pub infos: Vec<LeafInfo>,
    /// For each file, its tensors in the order of their bytes. There is at least one file.
    pub files: Vec<Vec<PlannedTensor>>,
}

impl Plan {
    /// Plans the save of `tree` in one file. With `header_len_max_bytes`, uses enough files to keep
    /// each header below that length and the data of each file below `max_shard_bytes`.
    pub fn new(
        tree: &Tree<Leaf>,
        save: &SaveOptions,
        options: &SafetensorsOptions,
        header_len_max_bytes: Option<usize>,
    ) -> Result<Self> {
        if matches!(save.compression, Some(Compression::Zstd(_))) {
            return Err(Error::invalid("safetensors files cannot be compressed")
                .help("save in the default layout, or leave `compression` out"));
        }
        if header_len_max_bytes.is_none() && options.max_shard_bytes.is_some() {
            return Err(Error::invalid("`max_shard_bytes` makes several files, and the target is one")
                .help("give a folder as the target, a name that does not end in .safetensors"));
        }
        if let Some(path) = tree.first_equal_keys() {
            let what = "two children of one container have the same key";
            return Err(Error::new(ErrorKind::NameCollision, what).at_leaf(&path));
        }
        let (mut infos, mut tensors) = (Vec::with_capacity(tree.len()), Vec::with_capacity(tree.len()));
        let mut refusals = Refusals::default();
        let mut taken: HashMap<Arc<str>, KeyPath> = HashMap::with_capacity(tree.len());
        for (at, (path, leaf)) in tree.iter().enumerate() {
            let name: Arc<str> = Arc::from(path.join(&options.separator));
            let info = info(leaf, name.clone())?;
            if let Some(error) = refusal(&info, options) {
                refusals.add(&path, error);
            }
            if leaf.as_array().is_some() {
                match taken.entry(name.clone()) {
                    Entry::Occupied(first) => refusals.add(&path, collision(&name, first.get())),
                    Entry::Vacant(free) => {
                        free.insert(path.clone());
                    }
                }
                let form = Form::of(info.dtype, &info.shape).map_err(|error| error.at_leaf(&path))?;
                tensors.push(PlannedTensor { leaf: at, name, form });
            }
            infos.push(info);
        }
        refusals.finish("cannot be written to safetensors files like this")?;
        let max_shard_bytes = options.max_shard_bytes.map_or(u64::MAX, |size| size.0);
        let mut files = match header_len_max_bytes {
            Some(header_len_max_bytes) => split(tensors, max_shard_bytes, header_len_max_bytes),
            None => vec![tensors],
        };
        for file in &mut files {
            // The order of safetensors' writer: by descending alignment, so that each tensor begins
            // at a multiple of its own alignment.
            file.sort_by(|a, b| {
                let rank = |tensor: &PlannedTensor| writing_rank(tensor.form.tag);
                rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name))
            });
        }
        Ok(Self { infos, files })
    }
}

fn info(leaf: &Leaf, name: Arc<str>) -> Result<LeafInfo> {
    let (dtype, shape) = match &leaf.data {
        LeafData::Array(array) => (array.dtype(), array.shape().clone()),
        LeafData::Text(text) => (Dtype::UInt8, Shape::new(vec![text.len() as u64])?),
        LeafData::Absent => (Dtype::UInt8, Shape::scalar()),
    };
    Ok(LeafInfo {
        kind: leaf.kind.clone(),
        dtype,
        shape,
        name,
        chunk_shape: None,
        write_shape: None,
        sharding: leaf.sharding.clone(),
        coding: Arc::from(""),
    })
}

/// The reason why a leaf cannot be written; `None` if it can.
pub(super) fn refusal(info: &LeafInfo, options: &SafetensorsOptions) -> Option<Error> {
    let keep = "keep the structure, which says what the leaf was";
    match &info.kind {
        LeafKind::Unknown(name) => {
            Some(Error::unsupported(format!("a leaf of the unknown type {name:?}")).help("leave it out"))
        }
        _ if options.structure => None,
        LeafKind::Str => Some(Error::unsupported("text is not a tensor").help(keep)),
        LeafKind::NumpyOther(dtype) => {
            Some(Error::unsupported(format!("safetensors has no dtype {dtype}")).help(keep))
        }
        kind if !kind.is_array() || has_dtype(info.dtype) || can_be_packed(info.dtype, &info.shape) => None,
        _ if info.dtype == Dtype::Float4E2m1fn => Some(
            Error::unsupported("float4_e2m1fn goes in pairs, and the last axis is odd or there is none")
                .help(keep),
        ),
        _ => Some(
            Error::unsupported(format!("safetensors has no dtype {}", info.dtype))
                .help("cast it, or keep the structure, which says what the leaf was"),
        ),
    }
}

fn collision(name: &str, first: &KeyPath) -> Error {
    Error::new(ErrorKind::NameCollision, format!("its name {name:?} is also that of {first}"))
        .help("choose another separator or rename a key")
}

/// Divides the tensors between files, in flatten order. A tensor above `max_len_bytes` has a file
/// of its own.
fn split(
    tensors: Vec<PlannedTensor>,
    max_len_bytes: u64,
    header_len_max_bytes: usize,
) -> Vec<Vec<PlannedTensor>> {
    let (mut files, mut current) = (Vec::new(), Vec::new());
    let (mut len_bytes, mut header_len_bytes) = (0_u64, 0_usize);
    for tensor in tensors {
        if tensor.form.len_bytes > max_len_bytes {
            files.push(vec![tensor]);
            continue;
        }
        // Escaping can make six bytes of one; offsets, dtype and punctuation fit in the rest.
        let entry_len_bytes = 6 * tensor.name.len() + 21 * tensor.form.dims.len() + 100;
        let is_full = len_bytes.saturating_add(tensor.form.len_bytes) > max_len_bytes
            || header_len_bytes + entry_len_bytes > header_len_max_bytes;
        if is_full && !current.is_empty() {
            files.push(std::mem::take(&mut current));
            (len_bytes, header_len_bytes) = (0, 0);
        }
        len_bytes = len_bytes.saturating_add(tensor.form.len_bytes);
        header_len_bytes += entry_len_bytes;
        current.push(tensor);
    }
    if !current.is_empty() || files.is_empty() {
        files.push(current);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, len_bytes: u64) -> PlannedTensor {
        let form = Form { tag: "U8", dims: vec![len_bytes], len_bytes };
        PlannedTensor { leaf: 0, name: Arc::from(name), form }
    }

    fn names(files: &[Vec<PlannedTensor>]) -> Vec<String> {
        files.iter().map(|file| file.iter().map(|tensor| &*tensor.name).collect()).collect()
    }

    #[test]
    fn files_fill_up_in_order() {
        let tensors = || vec![tensor("a", 4), tensor("b", 4), tensor("c", 9), tensor("d", 4), tensor("e", 8)];
        assert_eq!(names(&split(tensors(), u64::MAX, 1 << 20)), ["abcde"]);
        assert_eq!(names(&split(tensors(), 8, 1 << 20)), ["c", "ab", "d", "e"]);
        assert_eq!(names(&split(tensors(), 1, 1 << 20)), ["a", "b", "c", "d", "e"]);
        assert_eq!(names(&split(tensors(), u64::MAX, 300)), ["ab", "cd", "e"]);
        assert_eq!(names(&split(Vec::new(), 1, 1)), [""]);
        assert_eq!(names(&split(tensors(), u64::MAX, 0)), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn pairs_are_packed_and_all_else_is_raw() {
        let form = |dtype, dims: &[u64]| Form::of(dtype, &Shape::new(dims).unwrap()).unwrap();
        let packed = form(Dtype::Float4E2m1fn, &[3, 4]);
        assert_eq!((packed.tag, packed.len_bytes, packed.is_packed()), ("F4", 6, true));
        let odd = form(Dtype::Float4E2m1fn, &[4, 3]);
        assert_eq!((odd.tag, odd.len_bytes, odd.is_packed()), ("U8", 12, false));
        assert_eq!(form(Dtype::Float4E2m1fn, &[]).tag, "U8");
        assert_eq!(form(Dtype::Float4E2m1fn, &[3, 0]).len_bytes, 0);
        assert_eq!(form(Dtype::Float6E2m3fn, &[4]).tag, "U8");
        assert_eq!(form(Dtype::Complex128, &[2]).dims, [2, 2]);
    }
}
