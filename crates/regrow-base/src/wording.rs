//! Options in help texts, in the caller's language.
//!
//! A help text names an option in backticks: "pass `overwrite`". In Python this is
//! `overwrite=True`, and in the command `--overwrite`. [`WORDS`] is the one table of these words;
//! [`Error::in_words_of`] applies it.

use crate::error::Error;

/// The caller's language, in which errors are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Caller {
    /// The Python package.
    Python,
    /// The command.
    Shell,
}

/// Phrases in the texts of the engine, and their forms in Python and in the shell.
///
/// A longer phrase must come before a phrase that it contains.
pub const WORDS: &[[&str; 3]] = &[
    // Options of many calls.
    ["`overwrite`", "`overwrite=True`", "`--overwrite`"],
    ["`lossy`", "`lossy=True`", "`--lossy`"],
    ["`wait`", "`wait=SECONDS`", "`--wait SECONDS`"],
    ["`cast`", "`cast=\"...\"`", "`--cast`"],
    ["`only`", "`only=\"...\"`", "`--only`"],
    ["`partial`", "`extra=\"drop\"`", "`partial`"],
    [
        "leave missing leaves out of the template",
        "pass `missing=\"keep\"` to keep missing leaves as they are",
        "leave missing leaves out of the template",
    ],
    ["a `template`", "a template (`like=`)", "a template"],
    ["`step`", "`step=N`", "`--step N`"],
    ["`all_steps`", "`all_steps=True`", "`--all-steps`"],
    ["`item`", "`item=\"NAME\"`", "`--item NAME`"],
    ["`force`", "`force=True`", "`--force`"],
    ["`read_only`", "`read_only=True`", "`read_only`"],
    // Rare settings of any call.
    [
        "pass `LostFiles::Warn`",
        "pass `options=regrow.Options(lost_files=\"warn\")`",
        "leave out `--lost-files error`",
    ],
    ["`arrays_only`", "`options=regrow.Options(arrays_only=True)`", "`--arrays-only`"],
    ["`nest`", "`options=regrow.Options(nest=...)`", "`--nest`"],
    ["`salvage`", "`options=regrow.Options(salvage=True)`", "`regrow convert --salvage`"],
    ["`ignore_seal`", "`options=regrow.Options(ignore_seal=True)`", "`--ignore-seal`"],
    // Options of one layout.
    ["pass `zarr3`", "pass `layout=regrow.layouts.Orbax(zarr3=True)`", "pass `--option zarr3=true`"],
    ["pass `ocdbt`", "pass `layout=regrow.layouts.Orbax(ocdbt=True)`", "pass `--option ocdbt=true`"],
    [
        "save without `strict`",
        "save without `layout=regrow.layouts.Regrow(strict=True)`",
        "save without `--option strict=true`",
    ],
    ["pass `form`", "pass `layout=regrow.layouts.Npy(form=\"npz\")`", "pass `--option form=npz`"],
    ["pass `compress`", "pass `layout=regrow.layouts.Npy(compress=True)`", "pass `--option compress=true`"],
    [
        "pass `structure`",
        "pass `layout=regrow.layouts.Npy(structure=True)`",
        "pass `--option structure=true`",
    ],
    [
        "pass `integer_keys`",
        "pass `layout=regrow.layouts.Flax(integer_keys=True)`",
        "pass `--option integer_keys=true`",
    ],
    [
        "pass `native_dtypes`",
        "pass `layout=regrow.layouts.PytreeData(native_dtypes=True)`",
        "pass `--option native_dtypes=true`",
    ],
    [
        "pass `prng_keys`",
        "pass `layout=regrow.layouts.Equinox(prng_keys=True)`",
        "pass `--option prng_keys=true`",
    ],
    [
        "pass `hyperparameters`",
        "pass `layout=regrow.layouts.Equinox(hyperparameters=...)`",
        "pass `--option hyperparameters=...`",
    ],
    // Other calls.
    ["`regrow verify`", "`regrow.verify(path)`", "`regrow verify`"],
    ["`regrow ls`", "`list(regrow.open(path))`", "`regrow ls`"],
    ["`regrow cp`", "`regrow.copy(path, target)`", "`regrow cp`"],
    ["`regrow repair`", "`regrow.protect.repair(path)`", "`regrow repair`"],
    [
        "`regrow repair --from COPY`",
        "`regrow.protect.repair(path, from_=COPY)`",
        "`regrow repair --from COPY`",
    ],
    ["`--from`", "`from_=`", "`--from`"],
    ["`regrow seal`", "`regrow.protect.seal(path)`", "`regrow seal`"],
    ["`regrow seal --remove`", "`regrow.protect.seal(path, remove=True)`", "`regrow seal --remove`"],
    ["`regrow parity`", "`regrow.protect.add_parity(path)`", "`regrow parity`"],
    [
        "`regrow parity --remove`",
        "`regrow.protect.add_parity(path, remove=True)`",
        "`regrow parity --remove`",
    ],
    ["`regrow sign`", "`regrow.protect.sign(path, key)`", "`regrow sign`"],
    ["`regrow rm --unfinished`", "`regrow.remove(path, unfinished=True)`", "`regrow rm --unfinished`"],
];

/// Replaces the phrases in `text` by those of `caller`.
pub fn in_words_of(caller: Caller, text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, [engine, python, shell]| {
        let theirs = match caller {
            Caller::Python => python,
            Caller::Shell => shell,
        };
        // Most texts hold none of these words, so avoid the copy.
        if text.contains(engine) { text.replace(engine, theirs) } else { text }
    })
}

impl Error {
    /// The same error, with options in the words of `caller`.
    #[must_use]
    pub fn in_words_of(&self, caller: Caller) -> Self {
        let said = self.duplicate().reworded(in_words_of(caller, self.what()));
        match self.help_text() {
            Some(help) => said.help(in_words_of(caller, help)),
            None => said,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Options with the same name everywhere, and words in backticks that are not options.
    const SAME: &[&str] = &[
        "_",
        "_extensions",
        "align",
        "archive",
        "check_checkpoint",
        "checkpoint",
        "cloud",
        "compress",
        "compression",
        "equality_only",
        "finalize_scores",
        "form",
        "hyperparameters",
        "integer_keys",
        "max_shard_bytes",
        "metadata",
        "paths",
        "protection",
        "recompute_zero_rows",
        "repair",
        "separator",
        "set",
        "sort_keys",
        "to",
        "torch",
        "write",
    ];

    #[test]
    fn options_are_said_in_the_callers_language() {
        let error = Error::invalid("x").help("pass `overwrite` or `lossy`; `regrow repair --from COPY`");
        let python = error.in_words_of(Caller::Python);
        let shell = error.in_words_of(Caller::Shell);
        assert_eq!(
            python.help_text(),
            Some("pass `overwrite=True` or `lossy=True`; `regrow.protect.repair(path, from_=COPY)`")
        );
        assert_eq!(shell.help_text(), Some("pass `--overwrite` or `--lossy`; `regrow repair --from COPY`"));
        assert!(Error::invalid("x").in_words_of(Caller::Python).help_text().is_none());
    }

    #[test]
    fn words_are_not_translated_twice() {
        for caller in [Caller::Python, Caller::Shell] {
            for [engine, ..] in WORDS {
                let once = in_words_of(caller, engine);
                assert_eq!(in_words_of(caller, &once), once, "{engine}");
            }
        }
    }

    #[test]
    fn every_word_occurs_in_a_text_of_the_engine() {
        let texts = texts();
        for [engine, ..] in WORDS {
            assert!(texts.contains(engine), "no text of the engine has {engine}");
        }
    }

    #[test]
    fn every_option_in_a_text_is_in_the_table() {
        for (count, word) in texts().split('`').enumerate() {
            let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            let is_known = SAME.contains(&word)
                || WORDS.iter().any(|[engine, ..]| engine.contains(&format!("`{word}`")));
            assert!(count % 2 == 0 || !is_name || is_known, "`{word}` is neither in WORDS nor in SAME");
        }
    }

    /// The code of the engine, one line for each file, without comments, tests and this file.
    fn texts() -> String {
        let mut texts = String::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in [
            "regrow",
            "regrow-base",
            "regrow-coordination",
            "regrow-layouts",
            "regrow-ocdbt",
            "regrow-protection",
            "regrow-storage",
            "regrow-store",
            "regrow-tree",
            "regrow-zarr",
        ] {
            gather(&crates.join(name).join("src"), &mut texts);
        }
        texts
    }

    fn gather(folder: &Path, texts: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                gather(&path, texts);
            } else if name.ends_with(".rs") && name != "wording.rs" && !name.contains("test") {
                let code = fs::read_to_string(&path).unwrap();
                let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
                for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                    texts.push_str(
                        line.split_once(" // ").map_or(line, |(code, _)| code).trim_end_matches('\\'),
                    );
                }
                // An unpaired backtick gets a partner, so that it does not affect the next file.
                if texts.matches('`').count() % 2 == 1 {
                    texts.push('`');
                }
                texts.push('\n');
            }
        }
    }
}
