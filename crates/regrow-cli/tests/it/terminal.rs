//! What steers a terminal or cannot be seen: no command prints it raw, wherever it comes from, and
//! JSON gives it back exactly.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::common::{Run, regrow, text};
use regrow::SaveOptions;
use regrow::array::{Array, Dtype, Shape};
use regrow::engine::Layout;
use regrow::tree::{Key, Leaf, NodeKind, Tree, TreeBuilder};
use tempfile::TempDir;

/// Unicode 16: categories Cc and Cf, Zl and Zp, and the letters without a shape.
const RANGES: [(u32, u32); 28] = [
    (0x00, 0x1f),
    (0x7f, 0x9f),
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x115f, 0x1160),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x2064),
    (0x2066, 0x206f),
    (0x3164, 0x3164),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff9, 0xfffb),
    (0x110bd, 0x110bd),
    (0x110cd, 0x110cd),
    (0x13430, 0x1343f),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0001, 0xe0001),
    (0xe0020, 0xe007f),
    (0xe000, 0xe003),
    (0xfdd0, 0xfdef),
];

/// Every character that must not be printed; a line feed is the printer's own.
fn hostile() -> String {
    let planes = (0..=16_u32).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    let private = [0xf8ff, 0xf0000, 0xffffd, 0x10_0000, 0x10_fffd];
    let all = RANGES.iter().flat_map(|&(first, last)| first..=last).chain(planes).chain(private);
    all.filter_map(char::from_u32).collect()
}

fn assert_harmless(run: &Run, what: &str) {
    static HOSTILE: LazyLock<HashSet<char>> = LazyLock::new(|| hostile().chars().collect());
    for (stream, text) in [("stdout", &run.stdout), ("stderr", &run.stderr)] {
        let raw = text.chars().find(|&c| c != '\n' && HOSTILE.contains(&c));
        assert!(raw.is_none(), "{what}: {stream} has {raw:?} raw");
    }
}

/// A checkpoint with the characters in a key, a text, the metadata, and its own name.
fn saved(folder: &TempDir, layout: &str, name: &str) -> PathBuf {
    let named: String = hostile().chars().filter(|c| !matches!(c, '\0'..='\u{1f}')).take(40).collect();
    let mut build = TreeBuilder::new();
    build.open(Key::Index(0), NodeKind::Dict).unwrap();
    for c in hostile().chars() {
        let bytes = vec![1, 2].into();
        let array = Array::new(Dtype::UInt8, Shape::new([2]).unwrap(), bytes).unwrap();
        build.leaf(Key::dict(format!("a{c}b")), Leaf::array(array)).unwrap();
    }
    build.leaf(Key::dict("text"), Leaf::text(hostile())).unwrap();
    build.close().unwrap();
    let tree: Tree<Leaf> = build.finish().unwrap();
    let path = folder.path().join(format!("{name}{named}"));
    let options = SaveOptions {
        layout: Layout::from_name(layout, serde_json::Value::Null).unwrap(),
        custom_metadata: Some(serde_json::json!({ hostile(): hostile() })),
        ..SaveOptions::default()
    };
    regrow::save_with(&path, &tree, &options).unwrap();
    path
}

/// All that the commands say of a checkpoint.
fn look_at(path: &Path, other: &Path) {
    let path = text(path);
    let target = |name: &str| format!("{}{name}", text(other));
    for json in [&[][..], &["--json"]] {
        let converted = target(if json.is_empty() { "plain" } else { "json" });
        let again = target("again");
        for arguments in [
            &["ls", path][..],
            &["ls", "--long", path],
            &["ls", path, &hostile()[1..]],
            &["info", path],
            &["verify", path],
            &["verify", path, &format!("{path}{}", "\u{202e}")],
            &["cat", path, "text"],
            &["cat", path, "a\u{202e}b"],
            &["cat", path, "no\u{2066}such"],
            &["convert", path, &converted],
            &["convert", path, &converted],
            &["diff", path, &converted, "--all"],
            &["convert", path, &again, "--dry-run"],
            &["convert", path, &again, "--layout", "npy", "--dry-run"],
            &["convert", path, &again, "--layout", "trak"],
            &["convert", path, &again, "--layout", "\u{202e}"],
            &["convert", path, &again, "--cast", "\u{202e}"],
            &["ls", path, "--no\u{202e}such"],
            &["no\u{61c}such"],
        ] {
            let arguments: Vec<&str> = arguments.iter().chain(json).copied().collect();
            let run = regrow(&arguments);
            assert_harmless(&run, &format!("{arguments:?}"));
            assert!(!run.stdout.is_empty() || !run.stderr.is_empty(), "{arguments:?}");
            if !json.is_empty() {
                let is_clap = run.stderr.contains("Usage: ") || run.stderr.contains("For more information");
                for text in [&run.stdout, &run.stderr].into_iter().filter(|text| !text.is_empty() && !is_clap)
                {
                    let parsed = serde_json::from_str::<serde_json::Value>(text);
                    assert!(parsed.is_ok(), "{arguments:?}: {parsed:?}");
                }
            }
        }
    }
}

#[test]
fn nothing_that_a_checkpoint_says_steers_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    for layout in ["regrow", "orbax", "flax"] {
        let path = match layout {
            // Flax holds no metadata.
            "flax" => {
                let from = saved(&folder, "regrow", "source");
                let path = folder.path().join("x\u{200b}.msgpack");
                assert_eq!(
                    regrow(["convert", "--lossy", "--layout", layout, text(&from), text(&path)]).code,
                    0
                );
                path
            }
            layout => saved(&folder, layout, layout),
        };
        look_at(&path, &folder.path().join(format!("to {layout}\u{202e}")));
    }
}

#[test]
fn json_gives_every_character_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&folder, "regrow", "regrow");
    let listed = regrow(["ls", "--json", text(&path)]).json();
    assert_eq!(listed["path"], text(&path));
    let keys: Vec<&str> = listed["leaves"]
        .as_array()
        .unwrap()
        .iter()
        .map(|leaf| leaf["keys"][0]["dict"].as_str().unwrap())
        .collect();
    let expected: Vec<String> =
        hostile().chars().map(|c| format!("a{c}b")).chain(["text".to_owned()]).collect();
    assert_eq!(keys, expected);
    let value = regrow(["cat", "--json", text(&path), "text"]).json();
    assert_eq!(value["value"], hostile());
    let metadata = &regrow(["info", "--json", text(&path)]).json()["custom_metadata"];
    assert_eq!(*metadata, serde_json::json!({ hostile(): hostile() }));
    assert_eq!(regrow(["cat", "--raw", text(&path), "text"]).stdout, hostile());
}

#[test]
fn a_name_is_found_as_it_is_and_as_it_prints() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&folder, "regrow", "regrow");
    for c in ['\u{1b}', '\u{202e}', '\u{200d}', '\u{e0001}'] {
        let printed = format!("a{}b", c.escape_default());
        for name in [format!("a{c}b"), printed.clone()] {
            assert_eq!(regrow(["cat", text(&path), name.as_str()]).stdout, "[1 2]\n", "{name:?}");
        }
        for glob in [
            format!("a{c}b"),
            format!("a{c}*"),
            printed.replace('\\', "\\\\").replace('{', "\\{").replace('}', "\\}"),
        ] {
            let listed = regrow(["ls", text(&path), glob.as_str()]);
            assert_eq!((listed.code, listed.stdout.lines().count()), (0, 3), "{glob:?}: {listed:?}");
        }
    }
}

/// What the command writes to a terminal of so many columns.
fn on_a_terminal(columns: u16, no_color: bool, arguments: &[&str]) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal = std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("regrow"));
    command.args(arguments).stdout(terminal).stderr(std::process::Stdio::null());
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("CLICOLOR");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    let mut child = command.spawn().unwrap();
    // With it goes the last of this process' own ends, so that reading ends with the child.
    drop(command);
    let mut shown = Vec::new();
    let mut controller = std::fs::File::from(controller);
    // Linux returns EIO when the other end is closed.
    let _ = std::io::Read::read_to_end(&mut controller, &mut shown);
    child.wait().unwrap();
    String::from_utf8(shown).unwrap().replace("\r\n", "\n")
}

#[test]
fn terminals_have_colours_and_tables_fit_into_them() {
    let (_folder, path) = crate::common::saved();
    let deep = path.with_file_name("deep");
    let mut build = TreeBuilder::new();
    let names = ["transformer", "decoder_layers", "attention", "query_projection"];
    for name in names {
        build.open(Key::dict(name), NodeKind::Dict).unwrap();
    }
    let array = Array::new(Dtype::UInt8, Shape::new([2]).unwrap(), vec![1, 2].into()).unwrap();
    build.leaf(Key::dict("kernel"), Leaf::array(array)).unwrap();
    names.iter().for_each(|_| build.close().unwrap());
    regrow::save(&deep, &build.finish().unwrap()).unwrap();
    let (path, deep) = (text(&path), text(&deep));
    let cases: [(&[&str], &str); 4] = [
        (&["ls", deep], "\u{1b}[1mKEY PATH\u{1b}[0m"),
        (&["diff", path, deep], "\u{1b}[31mdifferent\u{1b}[0m"),
        (&["diff", path, path], "\u{1b}[32mthe same\u{1b}[0m"),
        (&["verify", path], "\u{1b}[32msound\u{1b}[0m"),
    ];
    for (arguments, colour) in cases {
        let shown = on_a_terminal(64, false, arguments);
        assert!(shown.contains(colour), "{arguments:?}: {shown:?}");
        let plain = on_a_terminal(64, true, arguments);
        assert!(!plain.contains('\u{1b}') && !plain.is_empty(), "{arguments:?}: {plain:?}");
    }
    let listed = on_a_terminal(64, true, &["ls", deep]);
    assert!(listed.lines().all(|line| line.chars().count() <= 64), "{listed}");
    assert!(listed.contains('…') && listed.contains("kernel"), "{listed}");
    // To a pipe all of it goes, and nothing else.
    let piped = regrow(["ls", deep]).stdout;
    assert!(piped.contains("decoder_layers/attention/query_projection/kernel") && !piped.contains('\u{1b}'));
}

/// Two checkpoints with long key paths that differ in the middle only.
fn optimizer_states(folder: &TempDir) -> [String; 2] {
    [0_u8, 1].map(|value| {
        let path = folder.path().join(format!("step_{value}"));
        let mut build = TreeBuilder::new();
        build.open(Key::Index(0), NodeKind::Dict).unwrap();
        build.open(Key::dict("opt_state"), NodeKind::Dict).unwrap();
        for moment in ["mu", "nu"] {
            build.open(Key::dict(moment), NodeKind::Dict).unwrap();
            build.open(Key::dict("Dense_0"), NodeKind::Dict).unwrap();
            let values = vec![value; 1 << 20].into();
            let array = Array::new(Dtype::UInt8, Shape::new([1024, 1024]).unwrap(), values).unwrap();
            build.leaf(Key::dict("kernel"), Leaf::array(array)).unwrap();
            build.close().unwrap();
            build.close().unwrap();
        }
        build.close().unwrap();
        build.close().unwrap();
        regrow::save(&path, &build.finish().unwrap()).unwrap();
        text(&path).to_owned()
    })
}

#[test]
fn diff_fits_into_a_terminal_and_shortens_no_key_path() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = optimizer_states(&folder);
    for columns in [60, 80, 100, 120, 200] {
        let shown = on_a_terminal(columns, true, &["diff", &a, &b]);
        let table = shown.lines().skip(3);
        assert!(table.clone().all(|line| line.chars().count() <= usize::from(columns)), "{shown}");
        for moment in ["mu", "nu"] {
            let path = format!("opt_state/{moment}/Dense_0/kernel");
            assert!(shown.contains(&path) && shown.contains("1048576 of 1048576"), "{shown}");
        }
        let titles = shown.lines().skip(3).take(2).collect::<String>();
        assert!(titles.contains("STATUS") && titles.contains("DIFFER"), "{columns}: {shown}");
        assert_eq!(titles.contains("MAX REL"), columns >= 80, "{columns}: {shown}");
        assert!(titles.contains("COSINE") || columns < 100, "{columns}: {shown}");
    }
    // To a pipe go all columns, a leaf on one line.
    let piped = regrow(["diff", &a, &b]).stdout;
    assert!(piped.lines().any(|line| line.starts_with("STATUS") && line.ends_with("COSINE")), "{piped}");
}

#[test]
fn sizes_are_for_people_on_a_terminal_and_bytes_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let [a, _] = optimizer_states(&folder);
    for command in ["ls", "tree"] {
        let shown = on_a_terminal(80, true, &[command, &a]);
        assert!(shown.contains("  1.0 MiB  ") && !shown.contains(" 1048576 "), "{shown}");
        let shown = on_a_terminal(80, true, &[command, &a, "--sizes", "bytes"]);
        assert!(shown.contains("  1048576  "), "{shown}");
        let piped = regrow([command, &a]).stdout;
        assert!(piped.contains("  1048576  ") && !piped.contains("  1.0 MiB  "), "{piped}");
    }
    let root = text(folder.path());
    assert!(on_a_terminal(80, true, &["steps", root]).contains("  2.0 MiB  "));
    assert!(on_a_terminal(80, true, &["ls", root]).contains("  2.0 MiB  "));
}

#[test]
fn metrics_are_rounded_and_left_out_whole() {
    use regrow::manager::{Manager, ManagerOptions, SaveStep};
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path(), ManagerOptions::default()).unwrap();
    let metrics = serde_json::json!({"a_loss": 1.0 / 3.0, "b_loss": 2.0 / 3.0, "c_loss": 1.0 / 7.0});
    let save = SaveStep { metrics: metrics.as_object().unwrap().clone(), ..SaveStep::default() };
    assert!(manager.save(100, &vec![1.0_f32], &save).unwrap());
    manager.wait().unwrap();
    drop(manager);
    let root = text(folder.path());
    let piped = regrow(["steps", root]).stdout;
    assert!(piped.contains("a_loss=0.333333 b_loss=0.666667 c_loss=0.142857\n"), "{piped}");
    let shown = on_a_terminal(80, true, &["steps", root]);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(shown.contains("a_loss=0.333333 …\n") && !shown.contains("b_loss"), "{shown}");
    let json = regrow(["steps", root, "--json"]).json();
    assert_eq!(json["steps"][0]["metrics"]["a_loss"], 1.0 / 3.0);
}

#[test]
fn help_is_wrapped_at_the_width_of_the_terminal() {
    for arguments in [&["--help"][..], &["convert", "--help"], &["help", "options"]] {
        let shown = on_a_terminal(70, true, arguments);
        assert!(shown.lines().all(|line| line.chars().count() <= 70), "{shown}");
    }
}
