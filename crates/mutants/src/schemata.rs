//! The text of a source file with all of its mutants: each mutant is behind its own condition.
//!
//! ```text
//! len < max            (if on(7) { len == max } else if on(8) { len > max } else { len < max })
//! fn f() -> u64 { n }  fn f() -> u64 { if on(9) { return 0; } n }
//! ```
//!
//! The changes add text, but no lines. If the compiler reports an error, its byte offset shows the
//! change.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprStruct, ExprUnary, Signature};

use crate::Failure;
use crate::listed::{Genre, Mutant};

/// The condition under which a change is made.
pub fn is_on(id: usize) -> String {
    format!("crate::mutants::on({id})")
}

/// A file with its changes.
#[derive(Debug)]
pub struct Schemata {
    pub text: String,
    /// The added text of each change, and the place that the change replaces.
    pub pieces: Vec<Piece>,
}

#[derive(Debug, Clone)]
pub struct Piece {
    pub id: usize,
    pub added: Range<usize>,
    pub place: Range<usize>,
}

/// The text of a file with these changes. Changes that cannot get a condition are left out.
pub fn of_file(source: &str, mutants: &[(usize, &Mutant)]) -> Result<Schemata, Failure> {
    let parsed = syn::parse_file(source)?;
    let mut wanted: HashMap<_, Numbered<'_>> = HashMap::new();
    for &(id, mutant) in mutants {
        let at = mutant.span.start;
        wanted.entry((mutant.genre, at.line, at.column)).or_default().push((id, mutant));
    }
    let mut finder = Finder { wanted, edits: Vec::new(), depth: 0, constants: 0 };
    finder.visit_file(&parsed);
    Ok(apply(source, finder.edits))
}

/// A text to insert.
struct Edit {
    at: usize,
    /// The order at one place: closing texts, inner before outer; then opening texts, outer before
    /// inner.
    order: (bool, i64),
    text: String,
    ids: Vec<usize>,
    place: Range<usize>,
}

fn apply(source: &str, mut edits: Vec<Edit>) -> Schemata {
    edits.sort_by_key(|edit| (edit.at, edit.order));
    let mut text = String::with_capacity(source.len() * 2);
    let mut pieces = Vec::new();
    let mut shifts = Vec::new();
    let mut done = 0;
    for edit in &edits {
        text.push_str(source.get(done..edit.at).unwrap_or_default());
        done = edit.at;
        shifts.push((edit.at, text.len() - edit.at));
        let start = text.len();
        text.push_str(&edit.text);
        for &id in &edit.ids {
            // The part of the text for this change: from its condition to the next ` else `.
            let own = edit.text.find(&is_on(id)).unwrap_or(0);
            let rest = edit.text.get(own..).unwrap_or_default();
            let end = rest.find(" else ").unwrap_or(rest.len());
            pieces.push(Piece { id, added: start + own..start + own + end, place: edit.place.clone() });
        }
    }
    text.push_str(source.get(done..).unwrap_or_default());
    let shifted = |at: usize| {
        let before = shifts.partition_point(|(place, _)| *place <= at);
        at + before.checked_sub(1).and_then(|last| shifts.get(last)).map_or(0, |(_, shift)| *shift)
    };
    for piece in &mut pieces {
        piece.place = shifted(piece.place.start)..shifted(piece.place.end);
    }
    Schemata { text, pieces }
}

/// Changes with their numbers.
type Numbered<'a> = Vec<(usize, &'a Mutant)>;

struct Finder<'a> {
    /// The changes by their genre, line and column.
    wanted: HashMap<(Genre, usize, usize), Numbered<'a>>,
    edits: Vec<Edit>,
    depth: i64,
    /// The number of constants around the visited code. A constant can have no condition.
    constants: usize,
}

impl<'a> Finder<'a> {
    fn take(&mut self, genre: Genre, at: LineColumn) -> Numbered<'a> {
        if self.constants > 0 {
            return Vec::new();
        }
        self.wanted.remove(&(genre, at.line, at.column + 1)).unwrap_or_default()
    }

    fn open(&mut self, at: usize, text: String, ids: Vec<usize>, place: &Range<usize>) {
        self.depth += 1;
        self.edits.push(Edit { at, order: (true, self.depth), text, ids, place: place.clone() });
    }

    fn close(&mut self, at: usize, text: &str, place: &Range<usize>) {
        let order = (false, -self.depth);
        self.edits.push(Edit { at, order, text: text.to_owned(), ids: Vec::new(), place: place.clone() });
    }

    /// Replaces an expression by a choice: one of the others, or the expression itself.
    fn choose(&mut self, place: Range<usize>, others: Vec<(usize, String)>) {
        if others.is_empty() {
            return;
        }
        let conditions = others.iter().map(|(id, other)| format!("if {} {{ {other} }} else ", is_on(*id)));
        let text = format!("({}{{ ", conditions.collect::<String>());
        self.open(place.start, text, others.iter().map(|(id, _)| *id).collect(), &place);
        self.close(place.end, " })", &place);
    }

    fn body(&mut self, signature: &Signature, block: &Block) {
        let Some(first) = block.stmts.first().filter(|_| signature.constness.is_none()) else { return };
        let place = bytes_of(block.span());
        let at = bytes_of(first.span()).start;
        for (id, mutant) in self.take(Genre::FnValue, first.span().start()) {
            let value = mutant.replacement.replace('\n', " ");
            self.open(at, format!("if {} {{ return {value}; }} ", is_on(id)), vec![id], &place);
        }
    }

    fn in_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit(self);
        self.constants -= 1;
    }
}

fn bytes_of(span: Span) -> Range<usize> {
    span.byte_range()
}

/// The tokens on one line, without comments.
fn flat(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string().replace('\n', " ")
}

/// Whether a condition binds a variable (`if let`): such a condition is not a value.
fn binds(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => binds(left) || binds(right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.body(&item.sig, &item.block);
        match item.sig.constness {
            Some(_) => self.in_constant(|finder| visit::visit_item_fn(finder, item)),
            None => visit::visit_item_fn(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.body(&item.sig, &item.block);
        match item.sig.constness {
            Some(_) => self.in_constant(|finder| visit::visit_impl_item_fn(finder, item)),
            None => visit::visit_impl_item_fn(self, item),
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.in_constant(|finder| visit::visit_item_const(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.in_constant(|finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.in_constant(|finder| visit::visit_item_static(finder, item));
    }

    fn visit_type(&mut self, item: &'ast syn::Type) {
        self.in_constant(|finder| visit::visit_type(finder, item));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.in_constant(|finder| finder.visit_expr(&repeat.len));
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if !binds(&binary.left) && !binds(&binary.right) {
            let (left, right) = (flat(&binary.left), flat(&binary.right));
            let others = self.take(Genre::BinaryOperator, binary.op.span().start());
            let others =
                others.iter().map(|(id, mutant)| (*id, format!("{left} {} {right}", mutant.replacement)));
            self.choose(bytes_of(binary.span()), others.collect());
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        let operand = flat(&unary.expr);
        let others = self.take(Genre::UnaryOperator, unary.span().start());
        let others = others.iter().map(|(id, _)| (*id, operand.clone()));
        self.choose(bytes_of(unary.span()), others.collect());
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let guard = arm.guard.as_ref().map(|(_, guard)| guard).filter(|guard| !binds(guard));
        let deleted = self.take(Genre::MatchArm, arm.span().start());
        if arm.guard.is_none() || guard.is_some() {
            for (id, _) in deleted {
                let place = bytes_of(arm.pat.span());
                match guard {
                    Some(guard) => {
                        let place = bytes_of(guard.span());
                        self.open(place.start, format!("!{} && (", is_on(id)), vec![id], &place);
                        self.close(place.end, ")", &place);
                    }
                    None => self.open(place.end, format!(" if !{}", is_on(id)), vec![id], &place),
                }
            }
        }
        if let Some(guard) = guard {
            let others = self.take(Genre::MatchArmGuard, guard.span().start());
            let others = others.iter().map(|(id, mutant)| (*id, mutant.replacement.clone()));
            self.choose(bytes_of(guard.span()), others.collect());
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        if let Some(rest) = &made.rest {
            for field in &made.fields {
                for (id, _) in self.take(Genre::StructField, field.span().start()) {
                    let other = format!("({}).{}", flat(rest), flat(&field.member));
                    let place = bytes_of(field.expr.span());
                    if field.colon_token.is_some() {
                        self.choose(place, vec![(id, other)]);
                    } else {
                        let own = flat(&field.expr);
                        let text = format!(": if {} {{ {other} }} else {{ {own} }}", is_on(id));
                        self.open(place.end, text, vec![id], &place);
                    }
                }
            }
        }
        visit::visit_expr_struct(self, made);
    }
}

/// The numbers of the changes that a text has.
pub fn ids_of(schemata: &Schemata) -> HashSet<usize> {
    schemata.pieces.iter().map(|piece| piece.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listed::Span;

    fn mutant(genre: Genre, line: usize, column: usize, replacement: &str) -> Mutant {
        Mutant {
            file: "x.rs".into(),
            span: Span { start: crate::listed::LineColumn { line, column } },
            genre,
            replacement: replacement.to_owned(),
            name: String::new(),
        }
    }

    fn text_of(source: &str, mutants: &[Mutant]) -> Schemata {
        of_file(source, &mutants.iter().enumerate().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn changes_lie_in_each_other_and_add_no_line() {
        let source = "fn f(a: u64, b: u64, c: bool) -> bool {\n    a < b && !c\n}\n";
        let mutants = [
            mutant(Genre::FnValue, 2, 5, "true"),
            mutant(Genre::BinaryOperator, 2, 7, "=="),
            mutant(Genre::BinaryOperator, 2, 11, "||"),
            mutant(Genre::UnaryOperator, 2, 14, ""),
        ];
        let schemata = text_of(source, &mutants);
        let expected = "fn f(a: u64, b: u64, c: bool) -> bool {\n    if crate::mutants::on(0) { return true; } \
                        (if crate::mutants::on(2) { a < b || ! c } else { \
                        (if crate::mutants::on(1) { a == b } else { a < b }) && \
                        (if crate::mutants::on(3) { c } else { !c }) })\n}\n";
        assert_eq!(schemata.text, expected);
        assert_eq!(ids_of(&schemata), HashSet::from([0, 1, 2, 3]));
        for piece in &schemata.pieces {
            let added = schemata.text.get(piece.added.clone()).unwrap();
            assert!(added.starts_with(&is_on(piece.id)), "{} {added}", piece.id);
        }
    }

    #[test]
    fn arms_guards_fields_and_assignments() {
        let source = "fn f(a: u8) -> S {\n    let mut n = 0;\n    n += 1;\n    match a {\n        1 if n > 0 => g(),\n        \
                      2 => h(),\n        _ => S { a, b: n, ..S::default() },\n    }\n}\n";
        let mutants = [
            mutant(Genre::BinaryOperator, 3, 7, "-="),
            mutant(Genre::MatchArmGuard, 5, 14, "true"),
            mutant(Genre::MatchArm, 6, 9, ""),
            mutant(Genre::StructField, 7, 18, ""),
            mutant(Genre::StructField, 7, 21, ""),
        ];
        let text = text_of(source, &mutants).text;
        for part in [
            "(if crate::mutants::on(0) { n -= 1 } else { n += 1 });",
            "1 if (if crate::mutants::on(1) { true } else { n > 0 }) =>",
            "2 if !crate::mutants::on(2) =>",
            "a: if crate::mutants::on(3) { (S :: default ()).a } else { a }",
            "b: (if crate::mutants::on(4) { (S :: default ()).b } else { n })",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        syn::parse_file(&text).unwrap();
    }

    #[test]
    fn what_the_compiler_computes_and_what_binds_is_left_alone() {
        let source = "const A: u64 = 1 << 2;\nconst fn f() -> u64 { 1 + 2 }\nfn g(a: Option<u64>) -> bool {\n    \
                      if let Some(b) = a && b > 1 { true } else { false }\n}\n";
        let mutants = [
            mutant(Genre::BinaryOperator, 1, 18, ">>"),
            mutant(Genre::BinaryOperator, 2, 25, "-"),
            mutant(Genre::FnValue, 2, 23, "0"),
            mutant(Genre::BinaryOperator, 4, 24, "||"),
            mutant(Genre::BinaryOperator, 4, 29, "<"),
        ];
        let schemata = text_of(source, &mutants);
        assert_eq!(ids_of(&schemata), HashSet::from([4]));
        assert!(schemata.text.contains("a && (if crate::mutants::on(4) { b < 1 } else { b > 1 }) {"));
    }
}
