//! A function has at most 70 lines of code and at most 20 conditions.
//!
//! ```text
//! lines       between the braces of the body, without blank lines and comments
//! conditions  `if`, each arm of a `match`, `&&`, `||`; `?` and closures do not count
//! ```
//! A function within a function counts for itself. Tests do not count. `TABLES` may be
//! longer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 70;
const CONDITIONS_MAX: usize = 20;

/// Tables: each value leads to a constant or to one call. Each table with its subject.
const TABLES: [(&str, &str); 10] = [
    ("crates/regrow-base/src/error.rs: name", "the kinds of errors"),
    ("crates/regrow-layouts/src/flax/msgpack.rs: token", "the first byte of a msgpack value"),
    ("crates/regrow-layouts/src/torch/dtypes.rs: of_name", "the dtypes of PyTorch"),
    ("crates/regrow-layouts/src/torch/pickle/machine.rs: step", "the opcodes of pickle"),
    ("crates/regrow-layouts/src/torch/pickle/opcodes.rs: of", "the opcodes of pickle"),
    (
        "crates/regrow-report/src/page/head.rs: render",
        "the names of a template: `context!` writes them with `=>`",
    ),
    ("crates/regrow-storage/src/object/state.rs: next", "the phases and operations of a target"),
    ("crates/regrow-tree/src/array/cast/mod.rs: cast_elements", "the dtypes that are cast"),
    ("crates/regrow-tree/src/array/cast/mod.rs: cast_numbers", "the dtypes that are cast to"),
    ("python/src/memory/dlpack.rs: dtype", "the dtypes of DLPack"),
];

/// Crates that only tests use.
const FOR_TESTS: [&str; 2] = ["mutants", "testkit"];

/// A function of the source.
struct Function {
    name: String,
    lines: usize,
    conditions: usize,
}

#[test]
fn functions_are_short() {
    let exceptions: BTreeSet<&str> = TABLES.iter().map(|(place, _)| *place).collect();
    let mut wrong = Vec::new();
    let mut long = BTreeSet::new();
    let mut count = 0;
    for (file, text) in sources() {
        for function in functions(&text) {
            count += 1;
            if function.lines > LINES_MAX || function.conditions > CONDITIONS_MAX {
                let place = format!("{file}: {}", function.name);
                if !exceptions.contains(place.as_str()) {
                    wrong.push(format!(
                        "{place}: {} lines, {} conditions",
                        function.lines, function.conditions
                    ));
                }
                long.insert(place);
            }
        }
    }
    assert!(count > 5000, "only {count} functions were read");
    assert!(
        wrong.is_empty(),
        "more than {LINES_MAX} lines or {CONDITIONS_MAX} conditions:\n  {}",
        wrong.join("\n  ")
    );
    let short: Vec<&str> = exceptions.into_iter().filter(|place| !long.contains(*place)).collect();
    assert!(short.is_empty(), "these are short or gone, strike them from the list: {short:#?}");
}

#[test]
fn lines_and_conditions_are_counted() {
    let text = r##"
        fn first<'a>(x: &'a [u8; 3], done: fn(u8) -> bool) -> char {
            // A comment with { and "quotes" and if.

            let text = "if { && \" ||" /* if { /* && */ } */;
            let raw = r#"fn no() { if "x" {} }"#;
            let sign = '{'; let quote = '\'';
            if x.is_empty() && done(1) || text.len() > 2 { return sign; }
            fn inner() {
                if true {}
            }
            let closure = || map(move || 1, |&&x| x);
            match x { [1, ..] if raw.len() > 1 => 'a', _ => quote }
        }
        trait Short { fn without(&self) -> [u8; 2]; fn with(&self) {} }
        #[cfg(test)]
        mod tests { fn test() { if true {} } }
        #[cfg(test)]
        use super::x;
        fn last() { f(x, &&y) }
    "##;
    let found: Vec<_> = functions(text).into_iter().map(|f| (f.name, f.lines, f.conditions)).collect();
    let expected = [("inner", 1, 1), ("first", 7, 6), ("with", 0, 0), ("last", 1, 0)];
    assert_eq!(found, expected.map(|(name, lines, conditions)| (name.to_owned(), lines, conditions)));
}

/// The source of all crates and of the binding to Python without tests, each file with its path.
fn sources() -> Vec<(String, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = fs::read_dir(top.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut left: Vec<PathBuf> = crates
        .filter(|path| !FOR_TESTS.iter().any(|name| path.ends_with(name)))
        .map(|path| path.join("src"))
        .collect();
    left.push(top.join("python/src"));
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        let name = path.file_stem().unwrap().to_string_lossy();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(&top).unwrap().to_str().unwrap().replace('\\', "/");
            found.push((file, fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// The functions of a file in the order of their ends.
fn functions(text: &str) -> Vec<Function> {
    let tokens = without_tests(tokens(text));
    let mut found = Vec::new();
    // The functions around a token: the count of braces before each body, and its lines so far.
    let mut open: Vec<(usize, Function, BTreeSet<usize>)> = Vec::new();
    let mut depth = 0;
    let mut bodies: Vec<(usize, &str)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.text == "fn" && tokens.get(at + 1).is_some_and(|next| next.text != "(") {
            bodies.extend(body(&tokens, at).map(|body| (body, tokens[at + 1].text)));
        }
        if token.text == "{" {
            depth += 1;
            if let Some(index) = bodies.iter().position(|(body, _)| *body == at) {
                let (_, name) = bodies.swap_remove(index);
                let function = Function { name: name.to_owned(), lines: 0, conditions: 0 };
                open.push((depth, function, BTreeSet::new()));
                continue;
            }
        }
        if token.text == "}" {
            depth -= 1;
            if let Some((_, mut function, lines)) = open.pop_if(|(inside, ..)| *inside > depth) {
                function.lines = lines.len();
                found.push(function);
                continue;
            }
        }
        if let Some((_, function, lines)) = open.last_mut() {
            lines.extend(token.line..=token.line_end);
            function.conditions += usize::from(is_condition(&tokens, at));
        }
    }
    assert!(open.is_empty() && depth == 0, "the braces do not match");
    found
}

/// The place of the brace that opens the body of a function; `None` if it has no body.
fn body(tokens: &[Token], function: usize) -> Option<usize> {
    let mut brackets = 0;
    for (at, token) in tokens.iter().enumerate().skip(function) {
        match token.text {
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets -= 1,
            "{" if brackets == 0 => return Some(at),
            ";" if brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

/// `&&` and `||` after an operand are operators. Elsewhere they are a reference and a closure.
fn is_condition(tokens: &[Token], at: usize) -> bool {
    const KEYWORDS: [&str; 7] = ["else", "if", "in", "match", "move", "mut", "return"];
    match tokens[at].text {
        "if" | "=>" => true,
        "&&" | "||" => at.checked_sub(1).is_some_and(|before| {
            let before = tokens[before].text;
            let is_operand =
                before.ends_with(|sign: char| sign.is_alphanumeric() || "_)]}?\"'".contains(sign));
            is_operand && !KEYWORDS.contains(&before)
        }),
        _ => false,
    }
}

/// The tokens without the items that are compiled for tests only.
fn without_tests(mut tokens: Vec<Token>) -> Vec<Token> {
    const ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let is_attribute = |tokens: &[Token]| tokens.iter().map(|token| token.text).eq(ATTRIBUTE);
    while let Some(from) = tokens.windows(ATTRIBUTE.len()).position(is_attribute) {
        let mut depth = 0;
        let end = tokens[from..].iter().position(|token| {
            depth += i32::from(token.text == "{") - i32::from(token.text == "}");
            depth == 0 && matches!(token.text, "}" | ";")
        });
        tokens.drain(from..=from + end.expect("the item ends"));
    }
    tokens
}

/// A word, a literal or a sign of Rust code, and its lines.
struct Token<'a> {
    text: &'a str,
    line: usize,
    line_end: usize,
}

/// The tokens of Rust code without its comments.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut left = text;
    let mut line = 0;
    while let Some(first) = left.chars().next() {
        let len = comment(left).or_else(|| literal(left));
        let is_comment = left.starts_with("//") || left.starts_with("/*");
        let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        let len = len.unwrap_or_else(|| match left.find(|sign| !is_word(sign)).unwrap_or(left.len()) {
            0 if ["=>", "&&", "||"].iter().any(|sign| left.starts_with(sign)) => 2,
            0 => first.len_utf8(),
            len => len,
        });
        let (token, rest) = left.split_at(len);
        let line_end = line + token.matches('\n').count();
        if !is_comment && !first.is_whitespace() {
            found.push(Token { text: token, line, line_end });
        }
        line = line_end;
        left = rest;
    }
    found
}

/// The length of the comment that a text begins with.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    let mut at = 0;
    let mut depth = 0;
    loop {
        match text.get(at..at + 2) {
            Some("/*") => depth += 1,
            Some("*/") => depth -= 1,
            _ if depth == 0 => return None,
            _ => {
                at += text[at..].chars().next()?.len_utf8();
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The length of the string or the character that a text begins with.
fn literal(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| text.starts_with(prefix))?;
    let rest = &text[prefix.len()..];
    let raw = rest.trim_start_matches('#');
    if prefix.ends_with('r') && raw.starts_with('"') {
        let hashes = &rest[..rest.len() - raw.len()];
        let end = format!("\"{hashes}");
        let start = text.len() - raw.len() + 1;
        return Some(start + text[start..].find(&end)? + end.len());
    }
    let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let inside = &rest[1..];
    // A lifetime has no second quote.
    let is_char = inside.starts_with('\\') || inside.chars().nth(1) == Some('\'');
    if quote == '\'' && !is_char {
        return None;
    }
    let mut is_escaped = false;
    let end = inside.find(|sign| {
        let is_end = sign == quote && !is_escaped;
        is_escaped = sign == '\\' && !is_escaped;
        is_end
    })?;
    Some(prefix.len() + 1 + end + 1)
}
