//! `regrow cat`: the values of one leaf, or of a slice of it.

use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use regrow::array::{Array, Region};
use regrow::tree::{KeyPath, LeafData, LeafInfo};
use regrow::{Checkpoint, Error};
use regrow_base::text::printable_lines;
use serde_json::json;

use crate::Globals;
use crate::exit::{Exit, Failure};
use crate::out;
use crate::slice::{self, Slice};
use crate::values;

const EXAMPLES: &str = "\
Examples:
  regrow cat step_100 params/dense/bias
  regrow cat step_100 'params/dense/kernel[0:4,-1]'
  regrow cat step_100 params/dense/bias --raw > bias.bin";

/// Print one leaf, or a slice of it.
///
/// Slices are NumPy's, without steps. A slice reads only its own bytes. Quote it: shells expand
/// brackets. With --json the values are nested lists; NaN and infinities are strings, and a complex
/// number is [real, imaginary].
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Cat {
    /// The checkpoint.
    path: PathBuf,
    /// Key path of the leaf, and a slice if wanted. A pytree that is one leaf is `.`.
    #[arg(value_name = "LEAF[SLICE]")]
    leaf: String,
    /// Write the raw bytes: elements in C order, little endian; text as UTF-8.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Print every element. Without it arrays of more than 1000 elements are shortened.
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
            let what = format!("{path} is not an array, so it has no slices");
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

    /// The position of the leaf, and the slice. A key path may end in brackets itself, so the whole
    /// text is tried as a key path first.
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
            // Write the elements in parts, because a single JSON value of a large array would take
            // many times its size.
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
