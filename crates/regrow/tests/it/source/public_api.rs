//! The public items of the crate, one on each line. The test compares the items with
//! `public_api.txt`, so that a review sees each change.
//!
//! ```text
//! make api        writes the file again (REGROW_WRITE_API=1)
//! ```
//! The test reads source text in the form of `cargo fmt`: items, fields, variants, methods and
//! implemented traits. An item of a private module counts if a `pub use` names it. The test does
//! not see items that macros make. Items with `#[doc(hidden)]` are for regrow's own programs, and
//! are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "const", "static", "type", "use", "mod"];

/// What a user of checkpoints has to look through.
const LINES_MAX: usize = 700;

#[test]
fn public_items_equal_the_snapshot() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("public_api.txt");
    let now = public_items(&sources(&root.join("src")));
    assert!(
        now.len() <= LINES_MAX,
        "the public API has {} items; hide what only regrow's programs use",
        now.len()
    );
    if std::env::var_os("REGROW_WRITE_API").is_some() {
        fs::write(&file, now.join("\n") + "\n").unwrap();
        return;
    }
    let before = fs::read_to_string(&file).unwrap();
    let before: BTreeSet<&str> = before.lines().collect();
    let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
    let mut changes: Vec<String> = before.difference(&now).map(|line| format!("- {line}")).collect();
    changes.extend(now.difference(&before).map(|line| format!("+ {line}")));
    assert!(changes.is_empty(), "the public API changes; if it is to, run make api\n{}", changes.join("\n"));
}

#[test]
fn the_list_holds_exactly_the_public_items() {
    let texts = [
        ("", "pub mod a;\nmod b;\npub use b::Shown;\n"),
        (
            "a",
            "/// A.\n#[derive(Debug, Clone)]\n#[non_exhaustive]\npub struct A<T> {\n    /// Its x.\n    pub x: Option<\n        T,\n    >,\n    y: u8,\n}\n\
             impl<T: X> A<T> {\n    /// New.\n    pub fn new(\n        x: T,\n    ) -> Self\n    where\n        T: Y,\n    {\n        loop {}\n    }\n    #[doc(hidden)]\n    pub fn hidden() {\n    }\n    fn own() {}\n}\n#[doc(hidden)]\npub fn also_hidden() {\n}\n\
             impl<T> Default for A<T> {\n    fn default() -> Self {\n    }\n}\nimpl Hidden {\n    pub fn z(self) {}\n}\n\
             pub(crate) struct Hidden;\npub const N: [u8; 2] = [\n    1,\n    2,\n];\n\
             #[cfg(test)]\nmod tests {\n    pub struct T;\n}\npub fn after() {\n    let x = 1;\n}\n",
        ),
        (
            "b",
            "pub struct Shown(pub u8, i32);\npub struct Unshown;\npub enum E {\n    One,\n}\n\
             pub trait Shown {\n    /// Does.\n    fn does(&self) -> u8;\n    fn may(&self) {\n        self.does();\n    }\n}\n",
        ),
    ];
    let sources = texts.map(|(module, text)| (module.to_owned(), text.to_owned()));
    assert_eq!(
        public_items(&BTreeMap::from(sources)),
        [
            "regrow: pub mod a",
            "regrow: pub use b::Shown",
            "regrow::a: #[derive(Debug, Clone)] #[non_exhaustive] pub struct A<T>",
            "regrow::a: A: pub fn new(x: T) -> Self where T: Y",
            "regrow::a: A::x: Option<T>",
            "regrow::a: impl<T> Default for A<T>",
            "regrow::a: pub const N: [u8; 2]",
            "regrow::a: pub fn after()",
            "regrow::b: Shown::fn does(&self) -> u8",
            "regrow::b: Shown::fn may(&self)",
            "regrow::b: pub struct Shown(pub u8, i32)",
            "regrow::b: pub trait Shown",
        ]
    );
}

/// The text of each module, by the names that lead to it: `engine::load`.
fn sources(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(String::new(), folder.to_owned())];
    while let Some((module, folder)) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            let inner = if module.is_empty() { stem.to_owned() } else { format!("{module}::{stem}") };
            if path.is_dir() {
                folders.push((inner, path));
            } else if matches!(stem, "mod" | "lib") {
                found.insert(module.clone(), fs::read_to_string(path).unwrap());
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.insert(inner, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

fn public_items(sources: &BTreeMap<String, String>) -> Vec<String> {
    let blocks: BTreeMap<&str, Vec<Block>> =
        sources.iter().map(|(module, text)| (module.as_str(), blocks(text))).collect();
    let named_again: BTreeSet<&str> = blocks
        .values()
        .flatten()
        .filter(|block| block.head.contains("pub use "))
        .flat_map(|block| words(&block.head))
        .collect();
    let mut public_types = BTreeSet::new();
    for (module, blocks) in &blocks {
        let names = blocks.iter().filter(|block| is_public(module, block, sources, &named_again));
        public_types.extend(names.filter_map(|block| item_name(&block.head)));
    }
    let mut lines = BTreeSet::new();
    for (module, blocks) in &blocks {
        let at = if module.is_empty() { "regrow".to_owned() } else { format!("regrow::{module}") };
        for block in blocks {
            if block.head.starts_with("impl") {
                let name = self_type(&block.head);
                if public_types.contains(name) && block.head.contains(" for ") {
                    lines.insert(format!("{at}: {}", block.head));
                } else if public_types.contains(name) {
                    let methods =
                        members(&block.body).into_iter().filter(|member| member.starts_with("pub "));
                    lines.extend(methods.map(|member| format!("{at}: {name}: {member}")));
                }
            } else if is_public(module, block, sources, &named_again) {
                lines.insert(format!("{at}: {}", block.head));
                let name = item_name(&block.head).unwrap_or_default();
                let has_members = !words(&block.head).any(|word| word == "fn");
                for member in has_members.then(|| members(&block.body)).into_iter().flatten() {
                    if !block.head.contains("pub struct ") {
                        lines.insert(format!("{at}: {name}::{member}"));
                    } else if let Some(field) = member.strip_prefix("pub ") {
                        lines.insert(format!("{at}: {name}::{field}"));
                    }
                }
            }
        }
    }
    lines.into_iter().collect()
}

/// An item without its body, on one line and with the attributes that matter, and the lines of its
/// body.
struct Block {
    head: String,
    body: Vec<String>,
}

/// The items that begin at the edge of a file, without its tests.
fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut attributes = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes.push_str(line);
            attributes.push(' ');
        } else if line.starts_with(|c: char| c.is_ascii_lowercase()) {
            let (head, has_body) = head(line, &mut lines);
            let mut body = Vec::new();
            if has_body {
                body.extend(lines.by_ref().take_while(|line| !line.starts_with('}')).map(str::to_owned));
            }
            let kept = kept(&attributes);
            if !attributes.contains("#[cfg(test)]") && !attributes.contains("#[doc(hidden)]") {
                found.push(Block { head: format!("{kept}{head}"), body });
            }
            attributes.clear();
        }
    }
    found
}

/// The attributes that callers see.
fn kept(attributes: &str) -> String {
    let kept = attributes.split_inclusive("] ").filter(|each| {
        ["#[derive", "#[non_exhaustive", "#[cfg(feature"].iter().any(|kind| each.starts_with(kind))
    });
    kept.collect()
}

/// A signature from its first line on, and whether a body follows it on lines of its own.
fn head<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> (String, bool) {
    let mut text = first.trim().to_owned();
    // A comma ends a field or a variant, and nothing that can have bounds or a list.
    let has_bounds = ["fn ", "impl", "struct ", "enum ", "trait "].iter().any(|word| text.contains(word));
    let ends: &[char] = match (text.contains("use "), has_bounds) {
        (true, _) => &[';'],
        (false, true) => &['{', ';', '}'],
        (false, false) => &['{', ';', '}', ','],
    };
    while !text.ends_with(ends) || !is_value(&text) && unbalanced(&text) {
        let Some(line) = lines.next() else { break };
        text.push(' ');
        text.push_str(line.trim());
    }
    let has_body = text.ends_with('{');
    let mut text = text.split(" = ").next().filter(|_| is_value(&text)).unwrap_or(&text).to_owned();
    if !text.contains("use ") {
        text = text.trim_end_matches("{}").trim_end_matches(['{', ' ']).to_owned();
    }
    (one_line(text.trim_end_matches([';', ',', ' '])), has_body)
}

fn is_value(text: &str) -> bool {
    text.contains("const ") && !text.contains("fn ") || text.contains("static ")
}

/// Whether parentheses or angle brackets are open, at a comma.
fn unbalanced(text: &str) -> bool {
    let count = |c: char| text.matches(c).count();
    count('(') > count(')')
        || count('<') > count('>') - text.matches("->").count() - text.matches("=>").count()
}

/// Without what `cargo fmt` adds where it breaks a line.
fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    [("( ", "("), (", )", ")"), (" )", ")"), ("< ", "<"), (", >", ">"), ("{ ", "{"), (", }", "}")]
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}

/// Fields, variants and methods: what begins one step in.
fn members(body: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_hidden = false;
    let mut lines = body.iter().map(String::as_str);
    while let Some(line) = lines.next() {
        let Some(text) = line.strip_prefix("    ") else { continue };
        is_hidden |= text.starts_with("#[doc(hidden)]");
        if text.starts_with([' ', '/', '#', '}', ')']) || text.trim().is_empty() {
            continue;
        }
        let (head, has_body) = head(text, &mut lines);
        let is_left_out = std::mem::take(&mut is_hidden);
        if has_body && head.contains("fn ") {
            lines.by_ref().take_while(|line| !line.starts_with("    }")).for_each(drop);
            found.extend((!is_left_out).then_some(head));
        } else if has_body {
            // A variant with fields.
            let fields = lines.by_ref().take_while(|line| !line.starts_with("    }"));
            let fields: Vec<&str> = fields.filter(|line| !line.trim().starts_with(['/', '#'])).collect();
            found.push(one_line(&format!("{head} {{ {} }}", fields.join(" "))));
        } else if !is_left_out {
            found.push(head);
        }
    }
    found
}

fn is_public(
    module: &str,
    block: &Block,
    sources: &BTreeMap<String, String>,
    named_again: &BTreeSet<&str>,
) -> bool {
    let is_item = ITEMS.iter().any(|kind| {
        ["", "unsafe ", "async ", "const "]
            .iter()
            .any(|more| block.head.contains(&format!("pub {more}{kind} ")))
    });
    is_item
        && (is_reached(module, sources)
            || item_name(&block.head).is_some_and(|name| named_again.contains(name)))
}

/// Whether each module on the way is public.
fn is_reached(module: &str, sources: &BTreeMap<String, String>) -> bool {
    let Some((above, name)) = module.rsplit_once("::").or((!module.is_empty()).then_some(("", module)))
    else {
        return true;
    };
    let declared = format!("\npub mod {name};");
    sources.get(above).is_some_and(|text| format!("\n{text}").contains(&declared))
        && is_reached(above, sources)
}

/// The name behind `struct`, `fn` and so on.
fn item_name(head: &str) -> Option<&str> {
    let mut words = words(head).skip_while(|word| *word != "pub").skip(1).skip_while(|word| {
        matches!(*word, "unsafe" | "async") || *word == "const" && head.contains("const fn")
    });
    words.next().filter(|word| ITEMS.contains(word) && !matches!(*word, "use" | "mod"))?;
    words.next()
}

/// Of `impl<T> Trait for Type<T>` and `impl Type`, `Type`.
fn self_type(head: &str) -> &str {
    let after = match head.split_once(" for ") {
        Some((_, after)) => after,
        None if head.starts_with("impl<") => head.split_once("> ").map_or("", |(_, after)| after),
        None => head.strip_prefix("impl ").unwrap_or_default(),
    };
    let path = after.split(['<', ' ']).next().unwrap_or_default();
    path.rsplit("::").next().unwrap_or_default()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
