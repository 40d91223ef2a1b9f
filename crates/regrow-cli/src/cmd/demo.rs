//! `regrow demo`: a demonstration with its own data, which takes a second.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::{Layout, OrbaxOptions};
use regrow::tree::{Key, Leaf, NodeKind, Scalar, Tree, TreeBuilder};
use regrow::{Error, ErrorKind, SaveOptions};
use regrow_base::text::{counted, printable_lines};
use serde_json::{Value, json};

use crate::Globals;
use crate::exit::{self, Exit, Failure};
use crate::out;

const FLIPPED_BIT: u8 = 1 << 4;

const EXAMPLES: &str = "\
Examples:
  regrow demo --keep /tmp/regrow-demo";

/// Show regrow at work: save, open, verify, find a flipped bit.
///
/// Saves a small pytree in the layouts regrow and orbax, opens and verifies both, then damages a
/// copy. The files are in a temporary folder, which is removed at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// Work in this new folder and keep all files.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

impl Demo {
    pub fn paths(&self) -> Vec<&Path> {
        self.keep.iter().map(PathBuf::as_path).collect()
    }

    pub fn run(&self, globals: &Globals, out: &mut impl Write) -> Result<Exit, Failure> {
        let temporary;
        let kept = self.keep.as_deref().map(|folder| globals.locate(folder)).transpose()?;
        let folder = match &kept {
            Some(folder) => {
                let folder = folder.local_path()?;
                fs::create_dir(folder).map_err(|error| cannot("cannot create the folder", folder, error))?;
                folder
            }
            None => {
                temporary = tempfile::Builder::new()
                    .prefix("regrow-demo-")
                    .tempdir()
                    .map_err(|error| cannot("cannot create a folder", &std::env::temp_dir(), error))?;
                temporary.path()
            }
        };
        let mut story = Story { out, silent: globals.json, steps: Vec::new() };
        let found = tell(&mut story, folder)?;
        if globals.json {
            let Story { out, steps, .. } = story;
            out::json(out, &json!({ "steps": steps, "damage_found": found }))?;
        } else if let Some(folder) = &self.keep {
            let folder = folder.display();
            story.say(&format!("everything is still in {folder}: try `regrow ls {folder}/step_1`"))?;
        }
        Ok(if found { Exit::Fine } else { Exit::FoundWrong })
    }
}

/// Prints each event when it happens, or collects the events for JSON.
struct Story<'a, W> {
    out: &'a mut W,
    silent: bool,
    steps: Vec<Value>,
}

impl<W: Write> Story<'_, W> {
    fn say(&mut self, line: &str) -> io::Result<()> {
        if self.silent {
            return Ok(());
        }
        writeln!(self.out, "{}", printable_lines(line))?;
        self.out.flush()
    }

    fn step(&mut self, line: &str, facts: Value) -> io::Result<()> {
        self.steps.push(facts);
        self.say(line)
    }
}

/// Runs the demonstration. Returns whether the damage was found.
fn tell(story: &mut Story<'_, impl Write>, folder: &Path) -> Result<bool, Failure> {
    let tree = sample()?;
    let data: u64 = tree.leaves().iter().filter_map(Leaf::as_array).map(Array::len_bytes).sum();
    let leaves = counted(tree.len(), "leaf", "leaves");
    story.say(&format!(
        "a pytree of {leaves}, {}: a small model, its optimizer, a step counter",
        out::size(data)
    ))?;

    let orbax = SaveOptions { layout: Layout::Orbax(OrbaxOptions::default()), ..SaveOptions::default() };
    for (name, layout, options) in
        [("step_1", "regrow", SaveOptions::default()), ("step_1_orbax", "orbax", orbax)]
    {
        let path = folder.join(name);
        let begin = Instant::now();
        let saved = regrow::save_with(&path, &tree, &options)?;
        let millis = begin.elapsed().as_secs_f64() * 1e3;
        let size = out::size(saved.stored_bytes);
        story.step(
            &format!("saved    {name:13} layout {layout:7} {size:>10} on disk, synced, in {millis:.1} ms"),
            json!({ "did": "save", "layout": layout, "stored_bytes": saved.stored_bytes, "milliseconds": millis }),
        )?;
        let checkpoint = regrow::open(&path)?;
        let about = checkpoint.description();
        story.step(
            &format!("opened   {name:13} it says: {} ({})", about.layout, about.variant),
            json!({ "did": "open", "layout": about.layout, "variant": about.variant }),
        )?;
        let same = same_bytes(&tree, &regrow::load(&path)?);
        let words = if same { "all leaves are bit-identical" } else { "IT DIFFERS from what was saved" };
        story
            .step(&format!("loaded   {name:13} {words}"), json!({ "did": "load", "bit_identical": same }))?;
        let report = regrow::verify(&path)?;
        let sound = report.findings.is_empty();
        let words = if sound { "sound" } else { "DAMAGED" };
        let checked = out::size(report.checked_bytes);
        story.step(
            &format!("verified {name:13} {words}, {checked} read"),
            json!({ "did": "verify", "sound": sound, "checked_bytes": report.checked_bytes }),
        )?;
        if !(same && sound) {
            return Ok(false);
        }
    }
    damage(story, folder)
}

/// Flips a bit in a copy, and prints the error that loading it returns.
fn damage(story: &mut Story<'_, impl Write>, folder: &Path) -> Result<bool, Failure> {
    let (whole, copy) = (folder.join("step_1"), folder.join("step_1_damaged"));
    copy_folder(&whole, &copy).map_err(|error| cannot("cannot copy", &whole, error))?;
    let file = copy.join("model.safetensors");
    let mut bytes = fs::read(&file).map_err(|error| cannot("cannot read", &file, error))?;
    // The header is padded to a page, so the byte at three quarters belongs to a leaf.
    let at = bytes.len() / 4 * 3;
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= FLIPPED_BIT;
    }
    fs::write(&file, bytes).map_err(|error| cannot("cannot write", &file, error))?;
    story.say(&format!(
        "\nflipped one bit of a copy, in byte {at} of {}; loading that says:\n",
        file.display()
    ))?;
    match regrow::engine::load(&copy) {
        Err(error) => {
            story.step(&error.to_string(), json!({ "did": "damage", "error": exit::error_json(&error) }))?;
            story.say("\nno wrong number reached the program")?;
            Ok(error.kind() == ErrorKind::Corrupt)
        }
        Ok(_) => {
            story.step("NOTHING: the damage was not detected", json!({ "did": "damage", "error": null }))?;
            Ok(false)
        }
    }
}

/// A dense layer in two precisions, the named tuple of its optimizer, and other typical leaves of a
/// training state.
fn sample() -> Result<Tree<Leaf>, Error> {
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict)?;
    build.open(Key::dict("params"), NodeKind::Dict)?;
    build.open(Key::dict("dense"), NodeKind::Dict)?;
    build.leaf(Key::dict("bias"), Leaf::array(ramp(Dtype::BFloat16, &[128])?))?;
    build.leaf(Key::dict("kernel"), Leaf::array(ramp(Dtype::Float32, &[256, 128])?))?;
    build.close()?;
    build.close()?;
    build.open(Key::dict("opt_state"), NodeKind::Tuple)?;
    build.open(Key::Index(0), NodeKind::NamedTuple("optax.ScaleByAdamState".into()))?;
    build.leaf(Key::attr("count"), Leaf::array(ramp(Dtype::Int32, &[])?))?;
    build.leaf(Key::attr("mu"), Leaf::array(ramp(Dtype::Float32, &[256, 128])?))?;
    build.leaf(Key::attr("nu"), Leaf::array(ramp(Dtype::Float32, &[256, 128])?))?;
    build.close()?;
    build.close()?;
    build.leaf(Key::dict("step"), Leaf::scalar(Scalar::Int(1)))?;
    build.leaf(Key::dict("note"), Leaf::text("made by regrow demo"))?;
    build.close()?;
    build.finish()
}

/// An array with finite values that follow a simple rule, so that every run makes the same bytes.
fn ramp(dtype: Dtype, dims: &[u64]) -> Result<Array, Error> {
    let shape = Shape::new(dims)?;
    let value = |i: u64| (i.wrapping_mul(2_654_435_761) % 2000) as f32 / 1000.0 - 1.0;
    let data: Vec<u8> = match dtype {
        Dtype::Float32 => (0..shape.len_elements()).flat_map(|i| value(i).to_le_bytes()).collect(),
        // The upper half of a float32 is the number truncated to bfloat16.
        Dtype::BFloat16 => (0..shape.len_elements())
            .flat_map(|i| ((value(i).to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        _ => vec![1; usize::try_from(shape.len_bytes(dtype)?).unwrap_or(usize::MAX)],
    };
    Array::new(dtype, shape, Bytes::from(data))
}

fn same_bytes(a: &Tree<Leaf>, b: &Tree<Leaf>) -> bool {
    let arrays = |tree: &Tree<Leaf>| -> Vec<(String, Bytes)> {
        tree.iter()
            .filter_map(|(path, leaf)| Some((path.to_string(), leaf.as_array()?.to_c_order().ok()?)))
            .collect()
    };
    let (mut a, mut b) = (arrays(a), arrays(b));
    // Orbax stores the leaves of a dict in another order.
    a.sort();
    b.sort();
    a == b
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn cannot(what: &str, path: &Path, error: io::Error) -> Failure {
    // Only a folder that the user names can already exist.
    let is_there = error.kind() == io::ErrorKind::AlreadyExists;
    let error = Error::io(what, path, error);
    if is_there {
        Failure::Usage(error.help("name a folder that does not exist"))
    } else {
        Failure::Engine(error)
    }
}
