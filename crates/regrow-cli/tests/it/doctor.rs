//! What the command says of itself and of what is around it: versions, manual pages, `doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{regrow, saved, text};
use regrow_testkit::object_server::ObjectServer;

#[test]
fn version_is_a_line_or_tells_of_the_build() {
    let short = regrow(["-V"]);
    assert_eq!((short.code, short.stdout), (0, format!("regrow {}\n", env!("CARGO_PKG_VERSION"))));
    let long = regrow(["--version"]);
    assert_eq!(long.code, 0);
    let lines: Vec<&str> = long.stdout.lines().collect();
    assert_eq!(lines[0], format!("regrow {}", env!("CARGO_PKG_VERSION")));
    for (line, (name, part)) in lines[1..].iter().zip([
        ("commit", ""),
        ("build", std::env::consts::ARCH),
        ("compiler", "rustc 1."),
        ("URLs", "file:// memory:// s3://"),
    ]) {
        let (found, value) = line.split_once(' ').unwrap();
        assert!(found == name && value.contains(part), "{line}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    assert_eq!(regrow(["man", text(&pages)]).code, 0);
    let commands = regrow(["--help"]).stdout;
    let names =
        commands.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut count = 0;
    // The help of a command goes on in lines that are indented further.
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !["", "help"].contains(name)) {
        let page = fs::read_to_string(pages.join(format!("regrow-{name}.1"))).unwrap();
        assert!(page.contains(&format!("regrow\\-{name}")), "{name}: {page}");
        count += 1;
    }
    assert!(count >= 12, "{commands}");
    let page = fs::read_to_string(pages.join("regrow.1")).unwrap();
    assert!(page.contains(".TH regrow 1") && page.contains("regrow help options"), "{page}");
    let page = fs::read_to_string(pages.join("regrow-options.1")).unwrap();
    assert!(page.contains("storage\\-option"), "{page}");

    fs::write(folder.path().join("file"), b"").unwrap();
    let run = regrow(["man", text(&folder.path().join("file/below"))]);
    assert!(run.code != 0 && run.stderr.contains("cannot write manual pages"), "{run:?}");
}

#[test]
fn doctor_looks_where_a_save_would_write() {
    let (folder, path) = saved();
    let real = folder.path().canonicalize().unwrap();
    for at in [folder.path().to_owned(), path.clone(), folder.path().join("not/yet")] {
        let run = regrow(["doctor", "--json", text(&at)]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
        let found = run.json();
        assert_eq!(found["place"]["folder"], text(&real), "{at:?}");
        assert_eq!(found["place"]["abilities"]["locks of folders"], true);
        assert!(found["place"]["total_bytes"].as_u64() >= found["place"]["free_bytes"].as_u64());
        assert!(found["machine"]["threads"].as_u64() >= Some(1), "{found}");
        assert_eq!(found["regrow"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(found["packages"].is_null());
        // What is not there is said to be missing, and why that matters.
        for (ability, is_there) in found["place"]["abilities"].as_object().unwrap() {
            let missing = found["missing"].as_array().unwrap();
            let said = missing
                .iter()
                .any(|each| each["what"] == **ability && !each["why"].as_str().unwrap().is_empty());
            assert_eq!(said, *is_there == false, "{ability}");
        }
    }
    // Nothing is left there.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let run = regrow(["doctor", text(&path)]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].starts_with("regrow "), "{run:?}");
    assert!(lines.iter().any(|line| line.starts_with("file system ")), "{run:?}");
    assert!(lines.iter().any(|line| line.starts_with("hard links ") && line.ends_with("yes")), "{run:?}");
}

#[test]
fn doctor_says_where_nothing_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write everywhere but into the kernel's own.
    let is_root = fs::create_dir(folder.path().join("try")).is_ok();
    let place = if is_root { "/proc" } else { text(folder.path()) };
    let run = regrow(["doctor", place]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.starts_with("error: cannot "), "{run:?}");
    assert!(run.stdout.contains("file system"), "{run:?}");
    let run = regrow(["doctor", "--json", place]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.json()["place"]["error"]["kind"].is_string(), "{run:?}");
}

#[test]
fn doctor_asks_a_storage_whether_it_answers() {
    let server = ObjectServer::start().unwrap();
    server.create_bucket("bucket");
    server.put("bucket", "runs/step_1/file", b"x".to_vec());
    let url = |path: &str| format!("{}/bucket/{path}", server.endpoint());
    let run = regrow(["doctor", "--json", &url("runs/step_1/file")]);
    assert_eq!((run.code, &run.json()["place"]["found"]), (0, &"file".into()), "{run:?}");
    let run = regrow(["doctor", "memory://doctor/none"]);
    assert!(run.code == 0 && run.stdout.contains("nothing; the storage answers"), "{run:?}");
    let run = regrow(["doctor", "--json", "http://127.0.0.1:1/none", "--storage-option", "max_retries=0"]);
    assert_eq!(run.code, 1, "{run:?}");
}
