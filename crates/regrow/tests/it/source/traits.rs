//! Traits are small: at most 10 methods, and no default method that only returns an error.
//!
//! A method that some implementors cannot have belongs to a trait of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// The most methods of a trait.
const METHODS_MAX: usize = 10;

/// Traits with more methods, and why.
const LARGE: [(&str, &str); 3] = [
    ("Blob", "not split yet"),
    ("Number", "one conversion for each dtype"),
    ("Pytree", "users implement two methods, mostly by a derive"),
];

#[test]
fn traits_have_few_methods_and_no_default_that_is_an_error() {
    let mut found = Vec::new();
    for file in sources() {
        found.extend(traits(&fs::read_to_string(&file).unwrap()));
    }
    assert!(found.len() > 20, "few traits were found: {}", found.len());
    let large = found.iter().filter(|one| one.methods.len() > METHODS_MAX);
    let large: Vec<String> = large.map(|one| one.name.clone()).collect();
    assert_eq!(large, LARGE.map(|(name, _)| name), "traits with more than {METHODS_MAX} methods");
    let refusals = found.iter().flat_map(|one| {
        one.methods
            .iter()
            .filter(|(_, refuses)| *refuses)
            .map(|(method, _)| format!("{}::{method}", one.name))
    });
    let refusals: Vec<String> = refusals.collect();
    assert!(refusals.is_empty(), "default methods that are an error: {refusals:?}");
}

#[test]
fn methods_and_refusals_are_found() {
    let text = "\
pub(crate) trait One: Debug {
    fn a(&self) -> Result<()>;

    #[cfg(unix)]
    fn b(&self) -> Result<()> {
        Err(refused())
    }

    fn c(
        &self,
    ) -> Result<()> {
        // Why.
        return Err(refused());
    }

    fn d(&self) -> Result<()> {
        inner(|| Err(refused()))
    }
}
unsafe trait Two<T>
where
    T: Send,
{
    const X: u8;
    unsafe fn e();
}
trait Three {}
";
    let found = traits(text);
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["One", "Two", "Three"]);
    let methods = |at: usize| -> Vec<(&str, bool)> {
        found[at].methods.iter().map(|(name, refuses)| (name.as_str(), *refuses)).collect()
    };
    assert_eq!(methods(0), [("a", false), ("b", true), ("c", true), ("d", false)]);
    assert_eq!(methods(1), [("e", false)]);
    assert_eq!(methods(2), []);
}

struct Trait {
    name: String,
    /// Each with whether it has a body that only returns an error.
    methods: Vec<(String, bool)>,
}

/// The traits of a file that rustfmt has formatted.
fn traits(text: &str) -> Vec<Trait> {
    let mut found: Vec<Trait> = Vec::new();
    let mut is_inside = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(name) = after_word(line, "trait").filter(|_| !line.starts_with(' ')) {
            is_inside = !line.ends_with("{}");
            found.push(Trait { name, methods: Vec::new() });
        } else if line == "}" {
            is_inside = false;
        } else if is_inside
            && line.starts_with("    ")
            && !line.starts_with("     ")
            && let Some(name) = after_word(line.trim_start(), "fn")
            && let Some(last) = found.last_mut()
        {
            let mut end = line;
            while !end.ends_with(['{', ';', '}']) {
                end = lines.next().unwrap();
            }
            let body = if end.ends_with('{') { lines.clone().find(|line| !is_comment(line)) } else { None };
            let body = body.map_or("", str::trim_start);
            let refuses = body.strip_prefix("return ").unwrap_or(body).starts_with("Err(");
            last.methods.push((name, refuses));
        }
    }
    found
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The name after `trait` or `fn`, if the line declares one.
fn after_word(line: &str, word: &str) -> Option<String> {
    let (before, after) = line.split_once(&format!("{word} "))?;
    let is_declared = before
        .split_whitespace()
        .all(|word| matches!(word, "unsafe" | "const" | "async") || word.starts_with("pub"));
    let name: String = after.chars().take_while(|sign| sign.is_alphanumeric() || *sign == '_').collect();
    (is_declared && !is_comment(line)).then_some(name)
}

/// The source files of all crates, sorted, without tests.
fn sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut left: Vec<PathBuf> =
        fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    left.push(crates.join("../python/src"));
    let mut files = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
