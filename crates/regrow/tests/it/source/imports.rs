//! Two modules of one folder do not import each other: code that both need is in a third module.
//!
//! ```text
//! formats/flax/files.rs   use super::steps::Steps;      \  refused: each file needs the other one
//! formats/flax/steps.rs   use super::files::list;       /
//! ```
//!
//! A folder's `mod.rs` may use its files, and the files may use `mod.rs`. If a `mod.rs` names an
//! item again (`pub use file::Name`), a use of this name counts as an import of the file. Tests may
//! import all modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

/// The folders that keep the rule: the crate, and the folder below its `src`.
const FOLDERS: [(&str, &str); 10] = [
    ("regrow-layouts", ""),
    ("regrow-protection", ""),
    ("regrow", "engine"),
    ("regrow", "manager"),
    ("regrow-coordination", ""),
    ("regrow-storage", ""),
    ("regrow-store", ""),
    ("regrow-ocdbt", ""),
    ("regrow-tree", "sharding"),
    ("regrow-base", "system"),
];

/// Pairs that need each other, and why.
const INSEPARABLE: [&str; 3] = [
    // A layout reads the options of a save, and the options of a save have a layout.
    "regrow-layouts: format and options",
    // A step of Orbax may be in the default layout, which writes Orbax' documents.
    "regrow-layouts: orbax and regrow",
    "regrow-storage/object: keys and listing",
];

/// A module by the names that lead to it from the crate's root.
type Module = Vec<String>;

#[test]
fn no_two_modules_of_a_folder_import_each_other() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pairs = |(name, folder): (&'static str, &str)| {
        let modules = modules_below(&crates.join(name).join("src"), folder);
        mutual_imports(&modules).into_iter().map(move |pair| match pair.starts_with(':') {
            true => format!("{name}{pair}"),
            false => format!("{name}/{pair}"),
        })
    };
    let found: Vec<String> = FOLDERS.into_iter().flat_map(pairs).collect();
    let new: Vec<&str> =
        found.iter().map(String::as_str).filter(|pair| !INSEPARABLE.contains(pair)).collect();
    assert!(
        new.is_empty(),
        "these import each other; move what both need into a file of its own:\n  {}",
        new.join("\n  ")
    );
    let old: Vec<&str> =
        INSEPARABLE.into_iter().filter(|pair| !found.iter().any(|found| found == pair)).collect();
    assert!(old.is_empty(), "these no longer need each other, strike them from the list: {}", old.join(", "));
}

#[test]
fn every_way_to_write_an_import_is_seen() {
    let module = |path: &str, text: &str| (path.split("::").map(str::to_owned).collect(), text.to_owned());
    let pairs = |texts: &[(&str, &str)]| {
        mutual_imports(&texts.iter().map(|(path, text)| module(path, text)).collect::<BTreeMap<_, _>>())
    };
    for (one, other) in [
        ("use super::b::X;", "use crate::f::a::{self, Y};"),
        ("use super::{c::Z, b::{self, X}};", "fn y() -> super::a::Y {}"),
        ("use super::X;", "use super::a;"),
        ("#[cfg(test)]\nuse super::c;\nfn x() { super::b::x() }", "use super::a::inner::Deep;"),
    ] {
        let folder = "mod a;\npub use b::X;\npub(super) use self::c::Z;";
        let texts = [("f", folder), ("f::a", one), ("f::b", other), ("f::c", ""), ("f::a::inner", "")];
        assert_eq!(pairs(&texts), ["f: a and b"], "{one} {other}");
    }
    for (one, other) in [
        ("use super::b::X;", "// use super::a::Y;\nuse super::c;"),
        ("use super::b::X;", "fn f() {}\n#[cfg(test)]\nmod tests { use super::super::a; }"),
        ("use super::b::X;", "fn f() -> &'static str { \"super::a::X\" }"),
        ("use super::Own;", "use super::a::Y;"),
    ] {
        let texts = [("f", "struct Own; mod a; mod b;"), ("f::a", one), ("f::b", other)];
        assert_eq!(pairs(&texts), Vec::<String>::new(), "{one} {other}");
    }
}

/// The pairs of sibling modules that import each other, or something below each other.
fn mutual_imports(texts: &BTreeMap<Module, String>) -> Vec<String> {
    let code: BTreeMap<&Module, Vec<String>> = texts.iter().map(|(at, text)| (at, words(text))).collect();
    let again: BTreeMap<&Module, BTreeMap<String, Module>> =
        code.iter().map(|(at, words)| (*at, named_again(at, words, texts))).collect();
    // From one child of a parent to another.
    let mut imports: BTreeSet<(Module, String, String)> = BTreeSet::new();
    for (at, words) in &code {
        for used in paths(words) {
            let Some(target) = resolved(at, &used.path, texts, &again) else { continue };
            let shared = at.iter().zip(&target).take_while(|(a, b)| a == b).count();
            // Else one is above the other: a parent and what is in it.
            if let (Some(from), Some(to)) = (at.get(shared), target.get(shared)) {
                imports.insert((at[..shared].to_vec(), from.clone(), to.clone()));
            }
        }
    }
    imports
        .iter()
        .filter(|(parent, a, b)| a < b && imports.contains(&(parent.clone(), b.clone(), a.clone())))
        .map(|(parent, a, b)| format!("{}: {a} and {b}", parent.join("::")))
        .collect()
}

/// Words and signs of Rust code, without comments, strings and the tests at its end. `::` is one
/// sign.
fn words(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut words = Vec::new();
    for line in code.lines() {
        let line = line.split("//").next().unwrap_or(line).replace("\\\"", "").replace("'\"'", "");
        // What stands between quotes is every other piece.
        for piece in line.split('"').step_by(2) {
            let mut left = piece.trim_start();
            while let Some(first) = left.chars().next() {
                let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
                let len = match left.find(|sign| !is_word(sign)).unwrap_or(left.len()) {
                    0 if left.starts_with("::") => 2,
                    0 => first.len_utf8(),
                    len => len,
                };
                words.push(left[..len].to_owned());
                left = left[len..].trim_start();
            }
        }
    }
    words
}

/// A path of the code, each with the name it has here.
struct Used {
    path: Vec<String>,
    name: String,
    /// In a `use`, behind `pub` or not, rather than in the midst of code.
    is_import: bool,
}

/// Every path that begins at the crate, at the parent or here, with `{...}` written out.
fn paths(words: &[String]) -> Vec<Used> {
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| words.get(at)).map_or("", String::as_str);
        let goes_on = words.get(at + 1).is_some_and(|next| next == "::");
        // `pub use file::Name` of a folder begins at the folder.
        let is_import = before == "use";
        if is_import || goes_on && before != "::" && matches!(word.as_str(), "crate" | "super" | "self") {
            let from = found.len();
            branch(words, at, &[], &mut found);
            found[from..].iter_mut().for_each(|used| used.is_import = is_import);
        }
    }
    found
}

/// Adds the paths that begin with `before` and go on at a word; where they end.
fn branch(words: &[String], mut at: usize, before: &[String], found: &mut Vec<Used>) -> usize {
    let sign = |at: usize| words.get(at).map_or("", String::as_str);
    let mut path = before.to_vec();
    loop {
        if sign(at) == "{" {
            while !matches!(sign(at), "}" | "") {
                at = branch(words, at + 1, &path, found);
            }
            return at + 1;
        }
        // The `}` behind a last comma.
        let is_end = !sign(at).starts_with(|first: char| first.is_alphabetic() || matches!(first, '_' | '*'));
        if is_end {
            return at;
        }
        if sign(at) != "self" || path.is_empty() {
            path.push(sign(at).to_owned());
        }
        at += 1;
        if sign(at) != "::" {
            break;
        }
        at += 1;
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if sign(at) == "as" {
        name = sign(at + 1).to_owned();
        at += 2;
    }
    found.push(Used { path, name, is_import: false });
    at
}

/// The names that a module's own imports give it, with what they lead to.
fn named_again(at: &Module, words: &[String], texts: &BTreeMap<Module, String>) -> BTreeMap<String, Module> {
    let imports = paths(words).into_iter().filter(|used| used.is_import);
    imports.filter_map(|used| Some((used.name, resolved(at, &used.path, texts, &BTreeMap::new())?))).collect()
}

/// The module that a path written in the module `at` leads to or into; `None` for another crate.
fn resolved(
    at: &Module,
    path: &[String],
    texts: &BTreeMap<Module, String>,
    again: &BTreeMap<&Module, BTreeMap<String, Module>>,
) -> Option<Module> {
    let mut here = at.clone();
    let is_own = |here: &Module, name: &String| texts.contains_key(&[&here[..], from_ref(name)].concat());
    let first = path.first()?;
    if !matches!(first.as_str(), "crate" | "super" | "self") && !is_own(&here, first) {
        return None;
    }
    for name in path {
        match name.as_str() {
            "crate" => here.clear(),
            "super" => drop(here.pop()),
            "self" => {}
            _ if is_own(&here, name) => here.push(name.clone()),
            _ => match again.get(&here).and_then(|names| names.get(name)) {
                Some(there) => here = there.clone(),
                None => break,
            },
        }
    }
    Some(here)
}

/// The modules of a folder, without the files that are tests.
fn modules_below(source: &Path, folder: &str) -> BTreeMap<Module, String> {
    let mut modules = BTreeMap::new();
    let mut left: Vec<PathBuf> = vec![source.join(folder)];
    while let Some(path) = left.pop() {
        let name = path.file_stem().unwrap().to_string_lossy();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let below = path.strip_prefix(source).unwrap().with_extension("");
        let mut module: Module =
            below.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        if name == "mod" || name == "lib" {
            module.pop();
        }
        modules.insert(module, fs::read_to_string(&path).unwrap());
    }
    modules
}
