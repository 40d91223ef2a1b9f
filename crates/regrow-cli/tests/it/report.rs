//! `report`: a page, the model, and how it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{regrow, saved, text};

#[test]
fn a_page_is_written_and_the_verdict_said() {
    let (folder, path) = saved();
    let page = folder.path().join("page.html");
    let run = regrow(["report", text(&path), "-o", text(&page)]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert!(run.stdout.contains("page.html: ") && run.stdout.contains("sound; 5 leaves, "), "{run:?}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("step_1"));
    // A page that is there is replaced only with --overwrite.
    let again = ["report", text(&path), "-o", text(&page), "--title", "two"];
    let run = regrow(again);
    assert!(run.code == 2 && run.stderr.contains("--overwrite"), "{run:?}");
    assert_eq!(fs::read_to_string(&page).unwrap(), html);
    assert_eq!(regrow(again.iter().chain(&["--overwrite"])).code, 0);
    assert!(fs::read_to_string(&page).unwrap().contains("two"));
    // To stdout, and nothing else.
    let run = regrow(["report", text(&path), "-o", "-", "--title", "mine"]);
    assert!(run.code == 0 && run.stdout.starts_with("<!doctype html>") && run.stdout.contains("mine"));
    // By its own name, where the command runs.
    let here = tempfile::tempdir().unwrap();
    let output =
        crate::common::command().args(["report", text(&path)]).current_dir(here.path()).output().unwrap();
    assert!(output.status.success() && here.path().join("report.html").is_file());
}

#[test]
fn json_is_the_model() {
    let (folder, path) = saved();
    let run = regrow(["report", text(&path), text(&path), "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let model = run.json();
    assert_eq!(model["checkpoint"]["leaf_count"], 5);
    assert_eq!(model["comparisons"][0]["is_equal"], true);
    assert_eq!(model["leaves"]["statistics"]["nan_count"], serde_json::json!([0, 1, 0, 0, 0]));
    assert!(model["command"].as_str().unwrap().starts_with("regrow report "));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no page was asked for");
    let run = regrow(["report", text(&path), "--json", "--no-statistics", "--only", "params/**"]);
    assert!(run.json()["leaves"]["statistics"].is_null(), "{run:?}");
    let run = regrow(["report", text(&path), "--json", "--sample", "4B", "--only", "params/kernel"]);
    assert_eq!(run.json()["leaves"]["statistics"]["count"][2], 1, "{run:?}");
}

#[test]
fn damage_ends_with_one_and_is_on_the_page() {
    let (folder, path) = saved();
    let file = path.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let page = folder.path().join("page.html");
    let run = regrow(["report", text(&path), "-o", text(&page)]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("damaged: "), "{run:?}");
    assert!(
        run.stderr.contains("in model.safetensors, at byte")
            && run.stderr.contains("error: leaf step is damaged: "),
        "{run:?}"
    );
    assert!(page.is_file());
    // The data is not read.
    let again = ["report", text(&path), "-o", text(&page), "--overwrite"];
    assert_eq!(regrow(again.iter().chain(&["--no-statistics"])).code, 0);
    let copy = folder.path().join("nowhere");
    assert_eq!(regrow(["report", text(&copy), "-o", text(&page), "--overwrite"]).code, 3);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_read() {
    let (folder, path) = saved();
    let model = path.join("model.safetensors");
    let before = fs::read(&model).unwrap();
    let run = regrow(["report", text(&path), "-o", text(&model), "--overwrite"]);
    assert!(run.code == 2 && run.stderr.contains("not an HTML file"), "{run:?}");
    assert_eq!(fs::read(&model).unwrap(), before);
    for options in [
        &["--only", "nothing"][..],
        &["--only", "["],
        &["--sample", "1MiB", "--no-statistics"],
        &["--sample", "much"],
        &["--json", "-o", "-"],
    ] {
        let page = folder.path().join("page.html");
        let arguments = [&["report", text(&path)], options].concat();
        let output = crate::common::command().args(&arguments).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?} {output:?}");
        assert!(!page.exists());
    }
    let run = regrow(["report", text(&path), "-o", text(&folder.path().join("no/page.html"))]);
    assert!(run.code == 3 && run.stderr.contains("page.html"), "{run:?}");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let program = crate::common::command().get_program().to_owned();
    let mut to_full = std::process::Command::new(program);
    let ended = to_full.args(["report", text(&path), "-o", "-"]).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    // Of a read-only checkpoint.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    let run = regrow(["report", text(&path), "-o", text(&folder.path().join("page.html"))]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run.code, 0, "{run:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_page_takes_the_same_memory_for_a_longer_checkpoint() {
    use ::regrow::array::{Array, Dtype, Shape};
    use ::regrow::engine::Compression;
    use ::regrow::tree::{Leaf, Tree};
    let folder = tempfile::tempdir().unwrap();
    let peaks = [32_u64, 128].map(|len_mib| {
        let path = folder.path().join(format!("{len_mib}"));
        let bytes: Vec<u8> = (0..len_mib << 20).map(|at| (at >> 9) as u8 & 0x3f).collect();
        let array =
            Array::new(Dtype::Float32, Shape::new([len_mib << 8, 1024]).unwrap(), bytes.into()).unwrap();
        // In chunks, so that no part of the file is mapped.
        let layout =
            ::regrow::engine::Layout::from_name("regrow", serde_json::json!({ "chunk_byte_size": 1 << 20 }));
        let options = ::regrow::SaveOptions {
            layout: layout.unwrap(),
            compression: Some(Compression::Zstd(1)),
            not_durable: true,
            ..::regrow::SaveOptions::default()
        };
        ::regrow::save_with(&path, &Tree::single(Leaf::array(array)), &options).unwrap();
        let (peak, printed) = crate::common::peak_and_output(&["report", text(&path), "-o", "-"]);
        assert!(printed > 500_000, "{printed} bytes are no page");
        peak >> 20
    });
    assert!(peaks[1] < peaks[0] + 24 && peaks[1] < 128, "{peaks:?} MiB");
}
