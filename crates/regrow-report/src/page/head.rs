//! Renders the top of the page from the template: the part that is readable without the script.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minijinja::{Environment, Value, context, escape_formatter};
use regrow_base::text::{format_bytes, printable_lines};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::sentences::{Verdict, reading, sentences, verdict, verdict_of};
use crate::model::comparison::Comparison;
use crate::model::{Finding, Report};

const TEMPLATE: &str = include_str!("../../assets/head.html");
const STYLE: &str = include_str!("../../assets/page.css");

const LISTED_MAX: usize = 200;

/// The last second that a date with a year of four digits can show.
const LAST_SECOND: f64 = 253_402_300_799.0;

#[derive(Serialize)]
struct Section {
    id: String,
    title: String,
}

#[derive(Serialize)]
struct Figure {
    value: String,
    name: &'static str,
}

#[derive(Serialize)]
struct Document {
    title: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Compared<'r> {
    location: &'r str,
    layout: &'r str,
    verdict: Verdict,
    words: &'r str,
    counts: &'r [(String, u64)],
    findings: &'r [Finding],
    containers: &'r [(String, String, String)],
    container_count: usize,
    has_leaves: bool,
}

/// The page from its first byte to the start of the data. Only `script` may run in the page.
///
/// # Errors
/// `Other` if the template is not valid, which tests would find.
pub fn render(report: &Report, script: &str) -> io::Result<String> {
    let checkpoint = &report.checkpoint;
    let documents = [("Custom metadata", &checkpoint.custom_metadata), ("Metrics", &checkpoint.metrics)];
    let comparisons: Vec<Compared<'_>> = report.comparisons.iter().map(compared).collect();
    let context = context! {
        title => report.title,
        version => report.version,
        written => date(report.written_seconds),
        command => report.command,
        style => STYLE,
        script_digest => STANDARD.encode(Sha256::digest(script)),
        sections => sections(report),
        verdict => verdict(checkpoint),
        sentences => sentences(report),
        reading => reading(checkpoint.reading),
        figures => figures(report),
        checkpoint => context! { location => checkpoint.location },
        warnings => checkpoint.warnings,
        notes => checkpoint.notes,
        items => checkpoint.items,
        documents => documents.into_iter().filter_map(|(title, value)| document(title, value.as_ref()?)).collect::<Vec<_>>(),
        findings => shown(&checkpoint.findings),
        more_findings => checkpoint.findings.len().saturating_sub(LISTED_MAX),
        protection => context! {
            words => checkpoint.protection.words,
            protected => format_bytes(checkpoint.protection.protected_bytes),
            unprotected => format_bytes(checkpoint.protection.unprotected_bytes),
        },
        has_leaves => has_leaves(report),
        has_shardings => has_shardings(report),
        has_steps => report.steps.is_some(),
        comparisons => comparisons,
    };
    // The suffix of the name makes the template HTML, in which values are escaped.
    let mut environment = Environment::new();
    environment.set_formatter(|out, state, value| match value.as_str().filter(|_| !value.is_safe()) {
        Some(text) => escape_formatter(out, state, &Value::from(printable_lines(text).as_ref())),
        None => escape_formatter(out, state, value),
    });
    environment.add_template("head.html", TEMPLATE).map_err(io::Error::other)?;
    let template = environment.get_template("head.html").map_err(io::Error::other)?;
    template.render(context).map_err(io::Error::other)
}

fn has_leaves(report: &Report) -> bool {
    !report.leaves.node.is_empty()
}

fn has_shardings(report: &Report) -> bool {
    has_leaves(report) && !report.shardings.is_empty()
}

fn sections(report: &Report) -> Vec<Section> {
    let section = |id: &str, title: &str| Section { id: id.to_owned(), title: title.to_owned() };
    let mut sections = vec![section("summary", "Summary")];
    if !report.checkpoint.findings.is_empty() {
        sections.push(section("findings", "What is wrong"));
    }
    if has_leaves(report) {
        for (id, title) in
            [("bytes", "Bytes"), ("leaves", "Leaves"), ("shares", "dtypes"), ("protection", "Checksums")]
        {
            sections.push(section(id, title));
        }
    }
    if has_shardings(report) {
        sections.push(section("shardings", "Devices"));
    }
    for position in 0..report.comparisons.len() {
        let title = match report.comparisons.len() {
            1 => "Comparison".to_owned(),
            _ => format!("Comparison {}", position + 1),
        };
        sections.push(Section { id: format!("comparison-{position}"), title });
    }
    if report.steps.is_some() {
        sections.push(section("steps", "Steps"));
    }
    sections
}

fn figures(report: &Report) -> Vec<Figure> {
    let checkpoint = &report.checkpoint;
    let mut figures = vec![
        Figure { value: grouped(checkpoint.leaf_count), name: "leaves" },
        Figure { value: grouped(checkpoint.element_count), name: "elements" },
        Figure { value: format_bytes(checkpoint.data_bytes), name: "of data" },
    ];
    figures
        .extend(checkpoint.stored_bytes.map(|bytes| Figure { value: format_bytes(bytes), name: "in files" }));
    figures.extend(
        report
            .steps
            .as_ref()
            .map(|series| Figure { value: grouped(series.steps.len() as u64), name: "steps in the folder" }),
    );
    figures
}

/// `1234567` as `1,234,567`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn document(title: &'static str, value: &serde_json::Value) -> Option<Document> {
    let is_empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
    (!is_empty).then(|| Document { title, text: format!("{value:#}") })
}

fn compared(comparison: &Comparison) -> Compared<'_> {
    Compared {
        location: match comparison.other.location.as_str() {
            "" => "a pytree in memory",
            location => location,
        },
        layout: &comparison.other.layout,
        verdict: verdict_of(comparison),
        words: &comparison.words,
        counts: &comparison.counts,
        findings: shown(&comparison.other.findings),
        containers: shown(&comparison.containers),
        container_count: comparison.containers.len(),
        has_leaves: !comparison.leaves.node.is_empty(),
    }
}

fn shown<T>(list: &[T]) -> &[T] {
    list.get(..LISTED_MAX).unwrap_or(list)
}

/// A time as text for people; `None` if it is not a date.
fn date(seconds: f64) -> Option<String> {
    let is_date = (1.0..LAST_SECOND).contains(&seconds);
    is_date.then(|| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs_f64(seconds)))
}
