//! The XML of the dialects: a writer that escapes, and a reader of the two documents that clients
//! send.

use std::fmt::Write;

pub(super) const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
pub(super) const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// An XML document that is being written.
#[derive(Debug)]
pub(super) struct Document {
    text: String,
    open: Vec<&'static str>,
}

impl Document {
    /// A document whose root is `root`, in S3's namespace.
    pub(super) fn new(root: &'static str) -> Self {
        Self { text: format!("{HEAD}<{root} xmlns=\"{NAMESPACE}\">"), open: vec![root] }
    }

    /// A document whose root has no namespace, as in errors.
    pub(super) fn bare(root: &'static str) -> Self {
        Self { text: format!("{HEAD}<{root}>"), open: vec![root] }
    }

    pub(super) fn element(&mut self, name: &str, text: impl std::fmt::Display) -> &mut Self {
        // A write to a string cannot fail.
        _ = write!(self.text, "<{name}>{}</{name}>", escaped(&text.to_string()));
        self
    }

    /// Adds one element that contains elements.
    pub(super) fn group(&mut self, name: &'static str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        _ = write!(self.text, "<{name}>");
        fill(self);
        _ = write!(self.text, "</{name}>");
        self
    }

    pub(super) fn finish(mut self) -> String {
        for name in self.open.iter().rev() {
            _ = write!(self.text, "</{name}>");
        }
        self.text
    }
}

/// Escapes text for an element. Control characters become references, as in S3, although XML 1.0
/// forbids most of them.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\0'..='\x1f' => _ = write!(out, "&#{};", u32::from(character)),
            _ => out.push(character),
        }
    }
    out
}

/// The content of every element `name`, in order. An element must not contain another one of the
/// same name.
pub(super) fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (start, end) = (format!("<{name}"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = xml;
    while let Some(at) = rest.find(&start) {
        rest = &rest[at + start.len()..];
        if !rest.starts_with(['>', ' ', '\t', '\r', '\n']) {
            continue; // A longer name.
        }
        let Some(open) = rest.find('>') else { break };
        rest = &rest[open + 1..];
        let Some(close) = rest.find(&end) else { break };
        found.push(&rest[..close]);
        rest = &rest[close + end.len()..];
    }
    found
}

pub(super) fn text(xml: &str, name: &str) -> Option<String> {
    elements(xml, name).first().map(|inside| unescaped(inside))
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let reference = rest.find(';').and_then(|end| Some((character(rest.get(1..end)?)?, end)));
        match reference {
            Some((character, end)) => {
                out.push(character);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

fn character(reference: &str) -> Option<char> {
    match reference {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = reference.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back() {
        for key in ["a<b>&\"'", "\u{1}\r\n\t", "ü #1", "&amp;"] {
            let mut document = Document::new("Delete");
            document.element("Keyed", "no").group("Object", |object| _ = object.element("Key", key));
            let xml = document.finish();
            let inside = elements(&xml, "Object");
            assert_eq!(inside.len(), 1);
            assert_eq!(text(inside[0], "Key").as_deref(), Some(key));
        }
        assert_eq!(
            text("<Part xmlns=\"x\"><ETag>&#34;a&#x22;</ETag></Part>", "ETag").as_deref(),
            Some("\"a\"")
        );
        assert_eq!(unescaped("a & b &x; &"), "a & b &x; &");
    }
}
