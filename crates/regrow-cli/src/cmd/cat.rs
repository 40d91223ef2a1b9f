//! `regrow cat`: the values of one leaf, or of a slice of it.

use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use regrow::array::{Array, Region};
use regrow::text::printable_lines;
use regrow::tree::{KeyPath, LeafData, LeafInfo};
use regrow::{Checkpoint, Error};
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;
use crate::slice::{self, Slice};
use crate::values;

/// Print one leaf, or a slice of it.
///
/// A slice reads just its own bytes. As NumPy would print it; with --json as nested lists, where
/// NaN, Infinity and -Infinity are strings and a complex number is [real, imaginary].
#[derive(Debug, clap::Args)]
pub struct Cat {
    /// The checkpoint.
    path: PathBuf,
    /// The leaf, by its key path (`.` for a pytree that is one leaf), and maybe a slice:
    /// `params/kernel[0:4,-1]`.
    #[arg(value_name = "LEAF[SLICE]")]
    leaf: String,
    /// The bytes themselves: elements in C order, little endian; UTF-8 for text.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Every element, however many; otherwise more than 1000 are shown by their edges.
    #[arg(long)]
    full: bool,
}

impl Cat {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let checkpoint = globals.open(&self.path)?;
        let (leaf, slice) = self.find(&checkpoint)?;
        let path = checkpoint.key_path(leaf)?;
        let info = checkpoint.info(leaf)?;
        if info.kind.is_array() {
            let array = read(&checkpoint, leaf, info, slice.as_ref())?;
            self.print_array(globals, out, &path, info, &array)?;
            return Ok(Exit::Fine);
        }
        if slice.is_some() {
            let what = format!("{path} is no array, and so has no slices");
            return Err(Failure::Usage(Error::invalid(what).at_leaf(&path)));
        }
        match checkpoint.read(leaf)?.data {
            LeafData::Text(text) => self.print_text(globals, out, &path, &text)?,
            _ => {
                let what = format!("{path} is a leaf of kind {} and has no data", info.kind.name());
                return Err(Failure::Engine(Error::unsupported(what).at_leaf(&path)));
            }
        }
        Ok(Exit::Fine)
    }

    /// The leaf's position, and the slice. A key path may itself end in brackets, so the whole text
    /// comes first.
    fn find(&self, checkpoint: &Checkpoint) -> Result<(usize, Option<Slice>), Failure> {
        let whole = match checkpoint.find(&self.leaf) {
            Ok(leaf) => return Ok((leaf, None)),
            Err(error) => error,
        };
        let Some((name, slice)) = slice::split(&self.leaf) else { return Err(Failure::Usage(whole)) };
        let leaf = checkpoint.find(name).map_err(Failure::Usage)?;
        Ok((leaf, Some(Slice::parse(slice)?)))
    }

    fn print_array(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        path: &KeyPath,
        info: &LeafInfo,
        array: &Array,
    ) -> Result<(), Failure> {
        if self.raw {
            out.write_all(&array.to_c_order()?)?;
        } else if globals.json {
            // Write the elements in parts: one JSON value of a large array would take many times
            // its size.
            let head = json!({
                "key_path": path.to_string(),
                "kind": info.kind.name(),
                "dtype": array.dtype().name(),
                "shape": array.shape().dims(),
            });
            write!(out, "{},\"value\":", head.to_string().trim_end_matches('}'))?;
            values::write_json(out, array)?;
            writeln!(out, "}}")?;
        } else {
            values::write_text(out, array, self.full)?;
        }
        Ok(())
    }

    fn print_text(
        &self,
        globals: &Globals,
        out: &mut impl Write,
        path: &KeyPath,
        text: &str,
    ) -> Result<(), Failure> {
        if self.raw {
            out.write_all(text.as_bytes())?;
        } else if globals.json {
            out::json(out, &json!({ "key_path": path.to_string(), "kind": "str", "value": text }))?;
        } else {
            writeln!(out, "{}", printable_lines(text))?;
        }
        Ok(())
    }
}

fn read(
    checkpoint: &Checkpoint,
    leaf: usize,
    info: &LeafInfo,
    slice: Option<&Slice>,
) -> Result<Array, Failure> {
    let Some(slice) = slice else {
        return Ok(checkpoint.region(leaf, &Region::whole(&info.shape))?);
    };
    let selection = slice.select(&info.shape)?;
    let part = checkpoint.region(leaf, &selection.region)?;
    let bytes: Bytes = part.to_c_order()?;
    Ok(Array::new(part.dtype(), selection.shape, bytes)?)
}
