//! The Rust examples of the guide compile and run: each page is one program, from its top to its
//! end.
//!
//! The fenced blocks of Rust of a page are the body of `run`. A comment that begins with `<!--
//! hidden rust` has more lines of the program: values that the page assumes, and checks.
//!
//! `REGROW_WRITE_PAGES=1 cargo test -p regrow --test pages` copies the pages into `tests/pages`.

use std::fs;
use std::path::Path;

mod pages {
    #[rustfmt::skip]
    pub mod derive;
    #[rustfmt::skip]
    pub mod progress;
    #[rustfmt::skip]
    pub mod rust;
}

/// The program of a page; `None` for a page without Rust.
fn program(page: &str) -> Option<String> {
    let mut body = String::new();
    let mut end = None;
    let mut has_block = false;
    for line in page.lines() {
        match (end, line) {
            (Some(last), line) if line == last => end = None,
            (Some(_), line) => body.extend([line, "\n"]),
            (None, "```rust") => (end, has_block) = (Some("```"), true),
            (None, "<!-- hidden rust") => end = Some("-->"),
            (None, _) => {}
        }
    }
    let head = "#![allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]";
    let run = "pub fn run() -> regrow::Result<()> {\n";
    has_block.then(|| format!("{head}\n\n{run}{body}Ok(())\n}}\n"))
}

#[test]
fn rust_of_every_page_of_the_guide_runs() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = Vec::new();
    for page in fs::read_dir(crate_folder.join("../../docs/guide")).unwrap() {
        let page = page.unwrap().path();
        let Some(program) = fs::read_to_string(&page).ok().as_deref().and_then(program) else { continue };
        let name = page.file_stem().unwrap().to_string_lossy().into_owned();
        let copy = crate_folder.join("tests/pages").join(&name).with_extension("rs");
        if std::env::var_os("REGROW_WRITE_PAGES").is_some() {
            fs::write(&copy, &program).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&copy).unwrap_or_default(),
            program,
            "REGROW_WRITE_PAGES=1 copies {name}"
        );
        names.push(name);
    }
    names.sort();
    assert_eq!(names, ["derive", "progress", "rust"]);
    for run in [pages::derive::run, pages::progress::run, pages::rust::run] {
        run().unwrap();
    }
}
