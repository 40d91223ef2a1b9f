//! The engine and the manager name no layout. They ask the layouts, so a new layout needs no change
//! in the engine.
//!
//! ```text
//! engine/seal/mod.rs   if layout == "regrow"                          refused
//!                      if format.file_names().record.is_some()        allowed
//! ```
//! The list of layouts in `regrow_layouts` has the names and the variants of `Layout`.

use std::path::Path;

use regrow_layouts::formats;

use super::file_names::code;

/// The folders that name no layout.
const FOLDERS: [&str; 2] = ["regrow/engine/", "regrow/manager/"];

/// Functions of `Layout`, which look like variants.
const FUNCTIONS: [&str; 3] = ["Layout::default", "Layout::for_target", "Layout::from_name"];

#[test]
fn the_engine_names_no_layout() {
    let mut found = Vec::new();
    let mut count = 0;
    for (file, line) in code().into_iter().filter(|(file, _)| is_above(file)) {
        count += 1;
        found.extend(named(&line).map(|name| format!("{file}: {name}")));
    }
    assert!(count > 10_000, "few lines were read: {count}");
    assert!(found.is_empty(), "ask the layout instead:\n{}", found.join("\n"));
}

#[test]
fn names_of_layouts_are_found_in_code() {
    let code = [
        ("if layout == \"regrow\" {", "\"regrow\""),
        ("matches!(layout, \"flax\" | x)", "\"flax\""),
        ("Layout::Npy(_) => 1,", "Layout::N"),
        ("use crate::formats::orbax::steps::STEP_MAX;", "formats::orbax"),
        ("use crate::formats::{flax, located};", "formats::{flax"),
        ("let x = regrow_layouts::trak::Trak;", "regrow_layouts::trak"),
    ];
    for (line, name) in code {
        assert_eq!(named(line).collect::<Vec<_>>(), [name], "{line}");
    }
    for line in
        ["Layout::default()", "use crate::formats::container;", "help(\"see regrow\")", "sharding::Layout"]
    {
        assert_eq!(named(line).count(), 0, "{line}");
    }
}

fn is_above(file: &str) -> bool {
    FOLDERS.iter().any(|folder| file.starts_with(folder)) && Path::new(file).extension().is_some()
}

/// The names of layouts in a line of code.
fn named(line: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    for name in formats().map(|format| format.name()) {
        let text = format!("\"{name}\"");
        let modules = ["formats::", "formats::{", "regrow_layouts::", "regrow_layouts::{"];
        let paths = modules.into_iter().map(|module| format!("{module}{name}"));
        found.extend(paths.chain([text]).filter(|text| line.contains(text)));
    }
    for (at, _) in line.match_indices("Layout::") {
        let is_function = FUNCTIONS.iter().any(|function| line[at..].starts_with(function));
        let variant = line[at..].chars().nth("Layout::".len()).filter(char::is_ascii_uppercase);
        found.extend(variant.filter(|_| !is_function).map(|first| format!("Layout::{first}")));
    }
    found.into_iter()
}
