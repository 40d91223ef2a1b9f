//! The page as text: what a browser would make of it is tested in `python/tests_browser`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::{self, Read, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use regrow::tree::{Key, KeyPath};
use regrow_report::model::comparison::Comparison;
use regrow_report::model::leaves::{Histograms, LeafState, Leaves, Statistics};
use regrow_report::model::sharding::{ShardingExample, ShardingUse};
use regrow_report::model::steps::{NormSeries, StepPoint, StepSeries};
use regrow_report::model::{Finding, Overview, Reading, Report};
use regrow_report::page;

const HOSTILE: &str =
    "</script><script>alert(1)</script><!--\"'&<img src=x onerror=alert(2)>\u{202e}\0{{ 7*7 }}";

/// A leaf with a histogram of two bins.
fn add_leaf(leaves: &mut Leaves, path: &KeyPath, text: &str, bytes: u64) {
    let node = leaves.keys.add(path);
    leaves.node.push(node);
    for words in [
        &mut leaves.kind,
        &mut leaves.dtype,
        &mut leaves.shape,
        &mut leaves.coding,
        &mut leaves.chunk_shape,
        &mut leaves.checksum,
        &mut leaves.file,
    ] {
        words.push(text);
    }
    leaves.elements.push(bytes / 4);
    leaves.bytes.push(bytes);
    leaves.chunk_count.push(1);
    leaves.state.push(LeafState::Verified);
    leaves.sharding.push(None);
    let statistics = leaves.statistics.get_or_insert_with(|| Statistics {
        histograms: Histograms { first: vec![0], ..Histograms::default() },
        ..Statistics::default()
    });
    statistics.count.push(bytes / 4);
    statistics.nan_count.push(0);
    statistics.infinity_count.push(0);
    statistics.zero_count.push(1);
    for values in [
        &mut statistics.min,
        &mut statistics.max,
        &mut statistics.mean,
        &mut statistics.standard_deviation,
        &mut statistics.l2_norm,
    ] {
        values.push(Some(bytes as f64));
    }
    statistics.histograms.lower.extend([0.0, 1.0]);
    statistics.histograms.upper.extend([1.0, 2.0]);
    statistics.histograms.count.extend([3, 4]);
    statistics.histograms.first.push(statistics.histograms.lower.len() as u64);
}

fn with_leaves(count: usize) -> Report {
    let mut leaves = Leaves::default();
    for leaf in 0..count {
        let path = KeyPath::from_iter([Key::Index(leaf / 100), Key::dict(format!("kernel_{}", leaf % 100))]);
        add_leaf(&mut leaves, &path, "float32", 400 + leaf as u64);
    }
    let checkpoint = Overview { leaf_count: count as u64, ..Overview::default() };
    Report { title: "step_1".into(), checkpoint, leaves, ..Report::default() }
}

/// The same text wherever a text can be.
fn all_texts(text: &str) -> Report {
    let finding = Finding {
        leaf: Some(0),
        key_path: Some(text.into()),
        file: Some(text.into()),
        offset_bytes: Some(7),
        what: text.into(),
        expected: Some(text.into()),
        found: Some(text.into()),
        help: Some(text.into()),
    };
    let overview = Overview {
        location: text.into(),
        layout: text.into(),
        variant: text.into(),
        items: vec![(text.into(), text.into())],
        custom_metadata: Some(serde_json::json!({ text: text })),
        metrics: Some(serde_json::json!({ text: text })),
        leaf_count: 1,
        reading: Reading::Whole,
        findings: vec![finding],
        warnings: vec![text.into()],
        notes: vec![text.into()],
        ..Overview::default()
    };
    let mut overview = overview;
    overview.protection.words = text.into();
    let mut leaves = Leaves::default();
    add_leaf(&mut leaves, &KeyPath::from_iter([Key::dict(text), Key::attr(text)]), text, 400);
    let comparison = Comparison {
        other: overview.clone(),
        words: text.into(),
        counts: vec![(text.into(), 1)],
        containers: vec![(text.into(), text.into(), text.into())],
        ..Comparison::default()
    };
    let sharding = ShardingUse {
        words: text.into(),
        mesh: vec![(text.into(), 1)],
        spec: vec![text.into()],
        example: Some(ShardingExample::default()),
        ..ShardingUse::default()
    };
    let step =
        StepPoint { note: text.into(), metrics: [(text.to_owned(), 1.0)].into(), ..StepPoint::default() };
    Report {
        title: text.into(),
        version: text.into(),
        written_seconds: 1_795_420_800.0,
        command: text.into(),
        checkpoint: overview,
        leaves,
        shardings: vec![sharding],
        comparisons: vec![comparison],
        steps: Some(StepSeries {
            steps: vec![step],
            norms: vec![NormSeries { name: text.into(), l2_norm: vec![None] }],
        }),
    }
}

fn html(report: &Report) -> String {
    let mut out = Vec::new();
    page(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The tags of a page, each with its attributes; the contents of scripts and styles are none.
fn tags(html: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start..=end];
        found.push(tag.to_owned());
        rest = &rest[end + 1..];
        for raw in ["script", "style"] {
            if tag.starts_with(&format!("<{raw}")) {
                rest = &rest[rest.find(&format!("</{raw}")).unwrap()..];
            }
        }
    }
    found
}

/// A column of the page, decoded.
fn column(html: &str, name: &str) -> Vec<u8> {
    let start = html.find(&format!("data-column=\"{name}\"")).unwrap_or_else(|| panic!("no column {name}"));
    let text = html[start..].split_once('>').unwrap().1.split_once("</script>").unwrap().0;
    let mut bytes = Vec::new();
    ZlibDecoder::new(&*STANDARD.decode(text).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// float64 from planes of bytes.
fn doubles(planes: &[u8]) -> Vec<f64> {
    let count = planes.len() / 8;
    let number = |row| f64::from_le_bytes(std::array::from_fn(|plane| planes[plane * count + row]));
    (0..count).map(number).collect()
}

#[test]
fn no_text_of_a_checkpoint_is_markup() {
    let (hostile, plain) = (html(&all_texts(HOSTILE)), html(&all_texts("plain")));
    assert_eq!(tags(&hostile), tags(&plain), "a text has made an element or an attribute");
    let head = hostile.split_once("<main>").unwrap().1.split_once("<script").unwrap().0;
    assert!(head.contains("&lt;&#x2f;script&gt;"), "the texts are there");
    assert!(!head.contains('\u{202e}') && !head.contains('\0'), "what cannot be seen is an escape");
    assert!(head.contains("{{ 7*7 }}"), "texts are no templates");
    let names = column(&hostile, "leaves.names");
    let names: Vec<String> = serde_json::from_slice(&names).unwrap();
    assert_eq!(names, ["", HOSTILE], "key paths are exact");
}

#[test]
fn the_same_report_makes_the_same_page() {
    assert_eq!(html(&with_leaves(500)), html(&with_leaves(500)));
}

#[test]
fn only_the_page_s_own_script_may_run() {
    let page = html(&with_leaves(3));
    let script = page.rsplit_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
    let digest = STANDARD.encode(<sha2::Sha256 as sha2::Digest>::digest(script));
    assert!(page.contains(&format!("script-src 'sha256-{digest}'")));
    assert!(page.contains("default-src 'none'"));
    let handlers = tags(&page).into_iter().filter(|tag| tag.contains(" on"));
    assert_eq!(handlers.collect::<Vec<_>>(), Vec::<String>::new(), "no handlers in attributes");
}

#[test]
fn columns_hold_what_the_model_says() {
    let report = with_leaves(70_000);
    let page = html(&report);
    let bytes: Vec<f64> = report.leaves.bytes.iter().map(|bytes| *bytes as f64).collect();
    assert_eq!(doubles(&column(&page, "leaves.bytes")), bytes);
    assert_eq!(doubles(&column(&page, "statistics.l2_norm")), bytes);
    // More have histograms than a page takes: those of the largest are there, and they are the last
    // ones.
    assert_eq!(doubles(&column(&page, "histograms.count")), [3.0, 4.0].repeat(50_000));
    let first = column(&page, "histograms.first");
    let at = |row: usize| u32::from_le_bytes(std::array::from_fn(|plane| first[plane * 70_001 + row]));
    assert_eq!((at(20_000), at(20_001), at(70_000)), (0, 2, 100_000));
}

#[test]
fn an_empty_tree_has_a_page_that_says_so() {
    let page = html(&Report { title: "empty".into(), ..Report::default() });
    assert!(page.contains("Its pytree has no leaves"));
    assert!(!page.contains("id=\"leaf-table\"") && !page.contains("id=\"treemap\""));
}

#[test]
fn what_checksums_do_not_protect_is_said_at_the_top() {
    let mut report = with_leaves(3);
    report.checkpoint.reading = Reading::Whole;
    assert!(html(&report).contains("Sound: every byte read"));
    report.checkpoint.protection.unprotected_bytes = 1;
    report.checkpoint.protection.words = "nothing protects 1 B".into();
    let page = html(&report);
    assert!(page.contains("do not cover all of it") && page.contains("nothing protects 1 B"));
    assert!(!page.contains("Sound: every byte read"));
}

#[test]
fn a_model_whose_columns_do_not_fit_is_refused() {
    let spoil: [fn(&mut Report); 7] = [
        |report| report.leaves.bytes.truncate(2),
        |report| report.leaves.node[1] = 99,
        |report| report.leaves.keys.parent[1] = 5,
        |report| report.leaves.keys.name[1] = 50,
        |report| report.leaves.dtype.index[0] = 7,
        |report| report.leaves.sharding[0] = Some(0),
        |report| report.leaves.statistics.as_mut().unwrap().histograms.first[1] = 9,
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut report = with_leaves(3);
        assert!(page(&report, &mut io::sink()).is_ok());
        spoil(&mut report);
        let mut out = Vec::new();
        let refused = page(&report, &mut out).map_err(|error| error.kind());
        assert_eq!((refused, out.len()), (Err(io::ErrorKind::InvalidInput), 0), "number {number}");
    }
}

#[test]
fn a_model_comes_back_from_its_json() {
    let report = all_texts(HOSTILE);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}

/// Counts bytes, and how many come at a time.
#[derive(Default)]
struct Meter {
    total: usize,
    longest: usize,
}

impl Write for Meter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.total += bytes.len();
        self.longest = self.longest.max(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn pages_are_written_as_they_come() {
    let [small, large] = [100, 40_000].map(|count| {
        let mut meter = Meter::default();
        page(&with_leaves(count), &mut meter).unwrap();
        meter
    });
    assert!(large.total > small.total + 30_000, "{} and {}", small.total, large.total);
    assert_eq!(
        small.longest, large.longest,
        "the longest write is that of the script, for any number of leaves"
    );
}

/// `make report-assets` writes what the built files were made from; a change without it is found
/// here.
#[test]
fn the_built_files_are_those_of_their_sources() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let list = std::fs::read_to_string(folder.join("built-from.txt")).unwrap();
    let mut listed = Vec::new();
    for line in list.lines() {
        let (digest, path) = line.split_once("  ").unwrap();
        let bytes = std::fs::read(folder.join(path)).unwrap();
        let found: String =
            <sha2::Sha256 as sha2::Digest>::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, digest, "{path} has changed: run `make report-assets`");
        listed.push(path.to_owned());
    }
    for entry in std::fs::read_dir(folder.join("src")).unwrap() {
        let name = format!("src/{}", entry.unwrap().file_name().to_string_lossy());
        assert!(listed.contains(&name), "{name} is new: run `make report-assets`");
    }
}
