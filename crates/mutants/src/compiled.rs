//! Copies the repository, puts the changes into the copy, and builds the tests of the copy. Changes
//! that do not compile are left out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::Failure;
use crate::listed::Mutant;
use crate::schemata::{Schemata, ids_of, of_file};

/// The crates whose sources may be changed. The engine is first: its tests run the code of all
/// crates.
pub const CRATES: [&str; 7] =
    ["regrow", "regrow-base", "regrow-tree", "regrow-store", "regrow-storage", "regrow-ocdbt", "regrow-zarr"];

/// The crate that all other crates use. Its copy gets the switch.
const SWITCHED: &str = "regrow-base";

/// The most rounds of the compiler.
const ROUNDS_MAX: usize = 40;

pub struct Compiled {
    /// The programs with the tests.
    pub binaries: Vec<PathBuf>,
    /// The changes that cannot get a condition: in constants, and in conditions that bind.
    pub without_a_place: BTreeSet<usize>,
    pub refused: BTreeSet<usize>,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    message: Option<Diagnostic>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
    spans: Vec<DiagnosticSpan>,
    children: Vec<Diagnostic>,
}

#[derive(Deserialize)]
struct DiagnosticSpan {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
}

/// Copies the files of the repository, puts the changes in, and builds the tests. With `unit_alone`
/// it builds only the unit tests.
pub fn compile(
    repository: &Path,
    out: &Path,
    mutants: &[Mutant],
    unit_alone: bool,
) -> Result<Compiled, Failure> {
    let tree = out.join("tree");
    let changed: HashSet<&Path> = mutants.iter().map(|mutant| mutant.file.as_path()).collect();
    copy_tree(repository, &tree, &changed)?;
    let mut refused = BTreeSet::new();
    for round in 1..=ROUNDS_MAX {
        let files = write_changes(repository, &tree, mutants, &refused)?;
        let messages =
            cargo(&tree, out, &[&["check", "--lib", "--profile", "test"][..], &of_crates()].concat())?;
        let bad = to_blame(&messages, &files)?;
        println!("round {round}: {} changes refused by the compiler", bad.len());
        if bad.is_empty() {
            let placed: HashSet<usize> = files.values().flat_map(ids_of).collect();
            let without = (0..mutants.len()).filter(|id| !placed.contains(id) && !refused.contains(id));
            let without_a_place = without.collect();
            return Ok(Compiled { binaries: build(&tree, out, unit_alone)?, without_a_place, refused });
        }
        refused.extend(bad);
    }
    Err("the compiler refuses one change after another".into())
}

/// The arguments of cargo that select the crates.
fn of_crates() -> Vec<&'static str> {
    let packages = CRATES.into_iter().flat_map(|name| ["-p", name]);
    packages.chain(["--features", "regrow/cloud"]).collect()
}

fn build(tree: &Path, out: &Path, unit_alone: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut arguments = [&["test", "--no-run", "--lib"][..], &of_crates()].concat();
    if !unit_alone {
        arguments.push("--tests");
    }
    let messages = cargo(tree, out, &arguments)?;
    if let Some(error) = errors(&messages).next() {
        return Err(error.rendered.clone().unwrap_or_default().into());
    }
    let is_test = |message: &Message| message.profile.as_ref().is_some_and(|profile| profile.test);
    Ok(messages.into_iter().filter(is_test).filter_map(|message| message.executable).collect())
}

fn copy_tree(repository: &Path, tree: &Path, changed: &HashSet<&Path>) -> Result<(), Failure> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(repository)
        .output()?;
    for name in String::from_utf8(listed.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (repository.join(name), tree.join(name));
        if changed.contains(Path::new(name)) || !from.is_file() {
            continue;
        }
        write_if_new(&to, &fs::read(&from)?)?;
    }
    let switch = include_str!("switch.rs.txt");
    for name in CRATES {
        let root = Path::new("crates").join(name).join("src/lib.rs");
        let added = if name == SWITCHED { "pub mod mutants;" } else { "use regrow_base::mutants;" };
        let text = fs::read_to_string(repository.join(&root))?;
        write_if_new(&tree.join(&root), format!("{text}\n{added}\n").as_bytes())?;
    }
    write_if_new(&tree.join("crates").join(SWITCHED).join("src/mutants.rs"), switch.as_bytes())
}

/// Writes a file, unless it already has these bytes: cargo compiles a written file again.
fn write_if_new(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, bytes)?)
}

fn write_changes(
    repository: &Path,
    tree: &Path,
    mutants: &[Mutant],
    refused: &BTreeSet<usize>,
) -> Result<HashMap<PathBuf, Schemata>, Failure> {
    let mut by_file: HashMap<&Path, Vec<(usize, &Mutant)>> = HashMap::new();
    for (id, mutant) in mutants.iter().enumerate() {
        let of_this_file = by_file.entry(&mutant.file).or_default();
        if !refused.contains(&id) {
            of_this_file.push((id, mutant));
        }
    }
    let mut files = HashMap::new();
    for (file, of_this_file) in by_file {
        let source = fs::read_to_string(repository.join(file))?;
        let schemata =
            of_file(&source, &of_this_file).map_err(|error| format!("{}: {error}", file.display()))?;
        write_if_new(&tree.join(file), schemata.text.as_bytes())?;
        files.insert(file.to_owned(), schemata);
    }
    Ok(files)
}

fn cargo(tree: &Path, out: &Path, arguments: &[&str]) -> Result<Vec<Message>, Failure> {
    let mut command = Command::new("cargo");
    command.args(arguments).args(["--locked", "--message-format=json"]).current_dir(tree);
    command.env("CARGO_TARGET_DIR", out.join("build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    let output = command.stderr(Stdio::inherit()).output()?;
    let lines = String::from_utf8(output.stdout)?;
    let messages: Vec<Message> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match messages.iter().any(|message| message.reason == "build-finished") {
        true => Ok(messages),
        false => Err("cargo did not even begin to build".into()),
    }
}

fn errors(messages: &[Message]) -> impl Iterator<Item = &Diagnostic> {
    let diagnostics = messages.iter().filter(|message| message.reason == "compiler-message");
    diagnostics
        .filter_map(|message| message.message.as_ref())
        .filter(|found| found.level.starts_with("error"))
}

/// The changes that cause the errors: the changes whose text an error points at. If an error points
/// at no change, the innermost changes around the error.
fn to_blame(messages: &[Message], files: &HashMap<PathBuf, Schemata>) -> Result<BTreeSet<usize>, Failure> {
    let mut bad = BTreeSet::new();
    for error in errors(messages).filter(|error| !error.spans.is_empty()) {
        let of_children = error.children.iter().flat_map(|child| &child.spans);
        let spans: Vec<&DiagnosticSpan> = error.spans.iter().chain(of_children).collect();
        let before = bad.len();
        bad.extend(spans.iter().flat_map(|span| pointed_at(span, files)));
        if bad.len() == before && !spans.iter().any(|span| pointed_at(span, files).next().is_some()) {
            let around = spans.iter().filter_map(|span| innermost(span, files));
            let found: Vec<usize> = around.flatten().collect();
            if found.is_empty() {
                return Err(error.rendered.clone().unwrap_or_default().into());
            }
            bad.extend(found);
        }
    }
    Ok(bad)
}

fn of_span<'a>(span: &DiagnosticSpan, files: &'a HashMap<PathBuf, Schemata>) -> Option<&'a Schemata> {
    files.get(Path::new(&span.file_name))
}

fn pointed_at<'a>(
    span: &'a DiagnosticSpan,
    files: &'a HashMap<PathBuf, Schemata>,
) -> impl Iterator<Item = usize> + 'a {
    let pieces = of_span(span, files).into_iter().flat_map(|schemata| &schemata.pieces);
    let is_in = |added: &std::ops::Range<usize>| added.start <= span.byte_start && span.byte_end <= added.end;
    pieces.filter(move |piece| is_in(&piece.added)).map(|piece| piece.id)
}

fn innermost(span: &DiagnosticSpan, files: &HashMap<PathBuf, Schemata>) -> Option<Vec<usize>> {
    let schemata = of_span(span, files)?;
    let is_around =
        |place: &std::ops::Range<usize>| place.start < span.byte_end && span.byte_start < place.end;
    let around: Vec<_> = schemata.pieces.iter().filter(|piece| is_around(&piece.place)).collect();
    let least = around.iter().map(|piece| piece.place.len()).min()?;
    Some(around.iter().filter(|piece| piece.place.len() == least).map(|piece| piece.id).collect())
}
