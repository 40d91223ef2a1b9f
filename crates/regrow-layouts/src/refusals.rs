//! One error for all leaves of a tree that cannot be written: their number, and the first reason of
//! up to 20 leaves. It is returned before the first write.

use std::collections::HashSet;
use std::fmt::Write;

use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::text::brief;
use regrow_tree::tree::KeyPath;

/// Most leaves that one report lists. The report gives only the number of further ones.
const NAMED_MAX: usize = 20;

/// Errors of single leaves, gathered; the first one of each leaf counts.
#[derive(Debug, Default)]
pub struct Refusals {
    named: Vec<Error>,
    refused: HashSet<KeyPath>,
}

impl Refusals {
    /// Adds the error of the leaf at `path`.
    pub fn add(&mut self, path: &KeyPath, error: Error) {
        if self.refused.insert(path.clone()) && self.named.len() < NAMED_MAX {
            self.named.push(error.at_leaf(path));
        }
    }

    /// The value of `result`; for an error, adds the error and returns `None`.
    pub(crate) fn keep<T>(&mut self, path: &KeyPath, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(path, error)).ok()
    }

    /// Returns an error that lists the refused leaves, each with its reason; `Ok` if no leaf was
    /// refused. For several leaves, the error begins with their number and `what`.
    ///
    /// # Errors
    /// The kind that all gathered errors have in common; otherwise `Unsupported`.
    pub fn finish(mut self, what: &str) -> Result<()> {
        let count = self.refused.len();
        if count <= 1 {
            return self.named.pop().map_or(Ok(()), Err);
        }
        let kind = self.named.first().map_or(ErrorKind::Unsupported, Error::kind);
        let kind =
            if self.named.iter().all(|error| error.kind() == kind) { kind } else { ErrorKind::Unsupported };
        let mut what = format!("{count} leaves {what}");
        let mut help: Vec<&str> = Vec::new();
        for error in &self.named {
            let path = error.place().leaf.as_ref().map(KeyPath::to_string).unwrap_or_default();
            // Writing into a String cannot fail.
            let _ = write!(what, "\n  {}: {}", brief(&path), error.what());
            if let Some((expected, found)) = error.expected_found() {
                let _ = write!(what, " (expected {expected}, found {found})");
            }
            help.extend(error.help_text().filter(|text| !help.contains(text)));
        }
        if count > self.named.len() {
            let _ = write!(what, "\n  and {} more", count - self.named.len());
        }
        let error = Error::new(kind, what);
        Err(if help.is_empty() { error } else { error.help(help.join("; ")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regrow_tree::tree::Key;

    #[test]
    fn one_report_names_all() {
        assert!(Refusals::default().finish("cannot be written").is_ok());
        let mut one = Refusals::default();
        let path = |i: usize| KeyPath::from_iter([Key::Index(i)]);
        one.add(&path(0), Error::invalid("too small").help("grow it"));
        assert_eq!(
            one.finish("cannot be written").unwrap_err().to_string(),
            "too small\n  leaf 0\n  help: grow it"
        );
        let mut many = Refusals::default();
        for i in 0..25 {
            many.add(&path(i), Error::invalid("too small").expected(2, 1).help("grow it"));
        }
        let error = many.finish("cannot be written").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.contains("25 leaves") && text.contains("\n  19: too small (expected 2, found 1)"));
        assert!(text.ends_with("and 5 more\n  help: grow it"), "{text}");
    }
}
