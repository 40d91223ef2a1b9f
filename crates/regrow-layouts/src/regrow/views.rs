//! Checks that the three views of a checkpoint agree: `regrow.json`, the headers of the safetensors
//! files, and Orbax' files.
//!
//! Each file has a checksum. But checksums do not prove that the files agree: a wrong value has a
//! correct checksum, too.
//!
//! ```text
//! regrow.json     name, dtype, shape, file and offset of each leaf; the pytree
//! safetensors     the same in the header of each data file; the pytree again, in the first one
//! Orbax           the same through _METADATA, the database and its zarr.json; texts; shardings
//! ```

use std::collections::HashMap;
use std::fmt::Display;

use super::manifest::{DataFile, LeafPlace, PartRecord};
use super::reader::RegrowReader;
use super::stored_dtype;
use crate::options::OpenOptions;
use crate::orbax::Orbax;
use crate::safetensors::SUFFIX;
use crate::safetensors::layout::{Header, LENGTH_LEN_BYTES, stored_as};
use crate::structure::Structure;
use crate::{Format, Reader, ReaderExt};
use regrow_base::bytes::limits::allocate;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_store::reads::{CheckFor, Extent, Source};
use regrow_store::{ByteRange, ReadPath, Store};
use regrow_tree::array::Region;
use regrow_tree::tree::{LeafInfo, LeafKind, Tree};

/// The most disagreements that one check reports.
const NAMED_MAX: usize = 100;

/// If positions cannot be compared, leaves up to this length are decoded by both readers and
/// compared.
const DECODED_LEN_MAX_BYTES: u64 = 1 << 20;

const HELP: &str = "other programs would read other values: copy the checkpoint again; if that does not \
    help, save it again";

/// The leaves of a record, and their positions in its data files.
struct Recorded<'r> {
    tree: &'r Tree<LeafInfo>,
    places: &'r [LeafPlace],
}

impl RegrowReader {
    /// The errors for all disagreements between the views.
    pub(super) fn check_views(&self) -> Vec<Error> {
        let mut found = self.check_headers();
        found.extend(self.check_orbax());
        // Web servers and buckets may return this error for missing files, and some of Orbax' files
        // are optional.
        if self.location().local_path().is_err() {
            found.retain(|error| error.kind() != ErrorKind::PermissionDenied);
        }
        found.truncate(NAMED_MAX);
        found
    }

    fn check_headers(&self) -> Vec<Error> {
        let recorded = Recorded { tree: self.tree(), places: self.places() };
        let mut found = Vec::new();
        for (at, file) in self.data_files().enumerate() {
            match self.check_header(at, file, &recorded, &mut found) {
                Ok(Some(header)) => {
                    let differs = self.check_structure(&header);
                    let place = || self.store().describe(file.name.as_bytes());
                    found.extend(differs.err().map(|error| error.in_file(place())));
                }
                Ok(None) => {}
                Err(error) => found.push(error),
            }
        }
        for part in self.store().parts() {
            found.extend(self.check_part(part).unwrap_or_else(|error| vec![error]));
        }
        found
    }

    fn check_part(&self, part: &PartRecord) -> Result<Vec<Error>> {
        let manifest = self.store().manifest_of(part)?;
        let read = || {
            let tree = manifest.structure.regrow()?.tree;
            let places = manifest.places(tree.len())?;
            Ok((tree, places))
        };
        let place = || self.store().describe(part.file.name.as_bytes());
        let (tree, places) = read().map_err(|error: Error| error.in_file(place()))?;
        let recorded = Recorded { tree: &tree, places: &places };
        let mut found = Vec::new();
        for (at, file) in manifest.data_files.iter().enumerate() {
            if let Err(error) = self.check_header(at, file, &recorded, &mut found) {
                found.push(error);
            }
        }
        Ok(found)
    }

    /// Compares the header of a data file with the records of its leaves, and adds the errors to
    /// `found`. Returns the header; `None` if the file has no header, or `found` has too many
    /// errors.
    fn check_header(
        &self,
        at: usize,
        file: &DataFile,
        recorded: &Recorded<'_>,
        found: &mut Vec<Error>,
    ) -> Result<Option<Header>> {
        if !file.name.ends_with(SUFFIX) {
            return Ok(None);
        }
        let place = self.store().describe(file.name.as_bytes());
        let header = self.header(file).in_file(&place)?;
        let mut tensors: HashMap<&str, _> =
            header.tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect();
        let leaves = recorded.tree.leaves().iter().zip(recorded.places).enumerate();
        for (leaf, (info, leaf_place)) in leaves {
            let LeafPlace::Raw { file: in_file, offset_bytes } = *leaf_place else { continue };
            if in_file != at {
                continue;
            }
            let (tag, dims) = stored_as(info.dtype, &info.shape);
            let expected = format!("{} as {tag} {dims:?} at byte {offset_bytes}", info.name);
            let shown = match tensors.remove(&*info.name) {
                Some(tensor)
                    if tensor.tag == tag
                        && tensor.shape.dims() == dims
                        && (tensor.offset_bytes == offset_bytes || info.shape.is_empty()) =>
                {
                    continue;
                }
                Some(tensor) => {
                    format!("{} {:?} at byte {}", tensor.tag, tensor.shape.dims(), tensor.offset_bytes)
                }
                None => "no such tensor".to_owned(),
            };
            found.push(
                differ("the header of a data file and regrow.json differ")
                    .expected(expected, shown)
                    .in_file(&place)
                    .at_leaf(&recorded.tree.path_of(leaf)),
            );
            if found.len() >= NAMED_MAX {
                return Ok(None);
            }
        }
        if let Some(name) = tensors.keys().min() {
            let error = differ("the header of a data file has a tensor that regrow.json lacks");
            found.push(error.expected("only tensors of regrow.json", name).in_file(&place));
        }
        Ok(Some(header))
    }

    fn header(&self, file: &DataFile) -> Result<Header> {
        let head = ByteRange::Span { offset_bytes: 0, len_bytes: file.data_offset };
        let head = self.store().get(file.name.as_bytes(), head)?.unwrap_or_default();
        let first = head.first_chunk::<LENGTH_LEN_BYTES>().copied().unwrap_or_default();
        let len_bytes = Header::len_bytes(first, file.len_bytes)?;
        let json = head.get(LENGTH_LEN_BYTES..).unwrap_or_default();
        if json.len() as u64 != len_bytes {
            return Err(differ("the end of the header of a data file differs from regrow.json")
                .at_byte(0)
                .expected(format_args!("{} bytes", json.len()), format_args!("{len_bytes} bytes")));
        }
        Header::parse(json, file.len_bytes)
    }

    fn check_structure(&self, header: &Header) -> Result<()> {
        let entries = header.metadata.iter().flatten();
        let Some((_, text)) = entries.into_iter().find(|(name, _)| name == "regrow") else { return Ok(()) };
        let repeated = Structure::from_json(text)?.regrow()?;
        let is_same = |(a, b): (&LeafInfo, &LeafInfo)| {
            a.kind == b.kind
                && a.dtype == b.dtype
                && a.shape == b.shape
                && a.name == b.name
                && a.sharding == b.sharding
        };
        let (tree, other) = (self.tree(), &repeated.tree);
        let leaves_differ = tree.leaves().iter().zip(other.leaves()).position(|pair| !is_same(pair));
        let error = || differ("the pytree in the header of a data file differs from regrow.json");
        if let Some(leaf) = leaves_differ {
            return Err(error().at_leaf(&tree.path_of(leaf)));
        }
        match tree.nodes() == other.nodes() && *self.texts() == repeated.texts {
            true => Ok(()),
            false => Err(error()),
        }
    }

    /// Compares the leaves that Orbax' reader gives with `regrow.json`, and checks the database by
    /// all of the database's own rules.
    fn check_orbax(&self) -> Vec<Error> {
        let view = match Orbax.open(self.location(), &OpenOptions::default()) {
            Ok(view) => view,
            Err(error) => return vec![error],
        };
        let mut found = match view.check_rest() {
            Ok(rest) => rest.findings.into_iter().map(|finding| finding.error).collect(),
            Err(error) => vec![error],
        };
        let leaves = view.tree().leaves();
        let mut by_name: HashMap<&str, usize> =
            leaves.iter().enumerate().map(|(at, info)| (&*info.name, at)).collect();
        for (leaf, info) in self.tree().leaves().iter().enumerate() {
            let other = by_name.remove(&*info.name);
            let is_told = info.kind == LeafKind::Str || info.kind.is_array() && !info.shape.is_empty();
            if !is_told {
                continue;
            }
            let compared = match other.and_then(|at| Some((at, leaves.get(at)?))) {
                Some((at, told)) => {
                    self.check_leaf_of_orbax(leaf, info, &Told { view: &*view, leaf: at, info: told })
                }
                None => Err(differ("regrow.json has a leaf that Orbax' metadata lacks")),
            };
            if let Err(error) = compared {
                found.push(error.in_file(self.location()).at_leaf(&self.tree().path_of(leaf)));
            }
            if found.len() >= NAMED_MAX {
                return found;
            }
        }
        let mut more: Vec<usize> = by_name.into_values().collect();
        more.sort_unstable();
        let more = more
            .into_iter()
            .filter(|&at| leaves.get(at).is_some_and(|info| info.kind != LeafKind::Placeholder));
        found.extend(more.map(|at| {
            differ("Orbax' metadata has a leaf that regrow.json lacks")
                .in_file(self.location())
                .at_leaf(&view.tree().path_of(at))
        }));
        found
    }

    fn check_leaf_of_orbax(&self, leaf: usize, info: &LeafInfo, told: &Told<'_>) -> Result<()> {
        if info.kind == LeafKind::Str {
            let (own, other) = (self.read_text(leaf)?, told.view.read_text(told.leaf)?);
            return match own == other {
                true => Ok(()),
                false => Err(leaf_differs(format_args!("{own:?}"), format_args!("{other:?}"))),
            };
        }
        if stored_dtype(info.dtype) != told.info.dtype || info.shape != told.info.shape {
            return Err(leaf_differs(
                format_args!("{} {}", stored_dtype(info.dtype), info.shape),
                format_args!("{} {}", told.info.dtype, told.info.shape),
            ));
        }
        if let (Some(own), Some(other)) = (&info.sharding, &told.info.sharding)
            && own != other
        {
            return Err(leaf_differs(own.to_json(), other.to_json()));
        }
        match (self.source(leaf)?, told.view.source(told.leaf)?) {
            (Source::Raw(own), Source::Raw(other)) => check_place(&own, &other),
            (Source::Raw(own), Source::Memory(other)) => check_bytes(&own, &other),
            // For some dtypes, such as bool, the zarr reader checks each element, so it gives no
            // position.
            (Source::Raw(own), Source::Coded(_)) if own.len_bytes <= DECODED_LEN_MAX_BYTES => {
                self.check_elements(leaf, info, own.len_bytes, told)
            }
            _ => Ok(()),
        }
    }

    fn check_elements(&self, leaf: usize, info: &LeafInfo, len_bytes: u64, told: &Told<'_>) -> Result<()> {
        let region = Region::whole(&info.shape);
        let (mut own, mut other) = (allocate(len_bytes)?, allocate(len_bytes)?);
        if self.read_region(leaf, &region, &mut own).is_err() {
            return Ok(());
        }
        // An error of Orbax' reader is not a wrong value.
        match told.view.read_region(told.leaf, &region, &mut other).is_err() || own == other {
            true => Ok(()),
            false => Err(leaf_differs("the bytes in the data file", "others")),
        }
    }
}

/// A leaf as Orbax reads it.
struct Told<'v> {
    view: &'v dyn Reader,
    leaf: usize,
    info: &'v LeafInfo,
}

fn check_place(own: &Extent<'_>, other: &Extent<'_>) -> Result<()> {
    let is_same = other.blob.describe() == own.blob.describe()
        && (other.offset_bytes, other.len_bytes) == (own.offset_bytes, own.len_bytes);
    let show = |extent: &Extent<'_>| {
        let (offset, len) = (extent.offset_bytes, extent.len_bytes);
        format!("{len} bytes at byte {offset} of {}", extent.blob.describe().display())
    };
    if is_same { Ok(()) } else { Err(leaf_differs(show(own), show(other))) }
}

fn check_bytes(own: &Extent<'_>, other: &[u8]) -> Result<()> {
    // Damaged bytes are reported for the leaf itself. They are not a disagreement of the views.
    if own.check(CheckFor::Verify).is_err() {
        return Ok(());
    }
    let mut bytes = allocate(own.len_bytes)?;
    own.blob.read(own.offset_bytes, &mut bytes, ReadPath::Cached)?;
    let what = format!("the {} bytes in the data file", bytes.len());
    if bytes == other { Ok(()) } else { Err(leaf_differs(what, "others in the database")) }
}

fn leaf_differs(own: impl Display, other: impl Display) -> Error {
    differ("a leaf differs between Orbax' metadata and regrow.json").expected(own, other)
}

fn differ(what: &str) -> Error {
    Error::corrupt(what).help(HELP)
}
