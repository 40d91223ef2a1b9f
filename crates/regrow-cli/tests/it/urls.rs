//! URLs and the options of their storages, on every command.

use crate::common::{regrow, saved, text};
use regrow_testkit::archives::files_below;
use regrow_testkit::object_server::ObjectServer;

#[test]
fn a_file_url_is_a_path_in_every_command() {
    let (folder, path) = saved();
    let url = |name: &str| format!("file://{}", text(&folder.path().join(name)));
    let (source, target) = (url("step_1"), url("new"));
    assert_eq!(regrow(["ls", &source]).stdout, regrow(["ls", text(&path)]).stdout);
    assert_eq!(regrow(["info", &source]).code, 0);
    assert_eq!(regrow(["cat", &source, "step"]).stdout, "7\n");
    let run = regrow(["verify", &source]);
    assert!(run.code == 0 && run.stdout.contains("sound"), "{run:?}");
    let run = regrow(["convert", &source, &target]);
    assert!(run.code == 0 && folder.path().join("new/regrow.json").is_file(), "{run:?}");
    let run = regrow(["convert", &source, &url("newer"), "--only", "no/such"]);
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn storage_options_are_for_urls() {
    let (_folder, path) = saved();
    // An ignored option would be an unseen mistake.
    for arguments in [&["ls", text(&path)][..], &["verify", text(&path)], &["completions", "bash"]] {
        let run = regrow(arguments.iter().copied().chain(["--storage-option", "anon=true"]));
        assert!(run.code == 2 && run.stderr.contains("\"anon\""), "{arguments:?}: {run:?}");
    }
    let run = regrow(["ls", "memory://urls/x", "--storage-option", "anon=true", "--storage-option", "a=b=c"]);
    assert!(run.code == 3 && run.stderr.contains("memory://urls/x"), "{run:?}");
    let run = regrow(["convert", text(&path), "memory://urls/x", "--storage-option", "anon=true"]);
    assert_eq!(run.code, 0, "{run:?}");
    // On either side, and not on both: one of them would be lost.
    assert_eq!(regrow(["--storage-option", "a=1", "ls", "memory://urls/x"]).code, 3);
    let run = regrow(["--storage-option=a=1", "ls", "memory://urls/x", "--storage-option", "b=2"]);
    assert!(run.code == 2 && run.stderr.contains("before and after the command"), "{run:?}");
    for wrong in ["", "anon", "=x"] {
        let run = regrow(["ls", "memory://urls/x", "--storage-option", wrong]);
        assert_eq!(run.code, 2, "{wrong}: {run:?}");
    }
    // A value may be a secret, and is in no message.
    let run = regrow(["ls", text(&path), "--storage-option", "secret=hunter2"]);
    assert!(!run.stderr.contains("hunter2"), "{run:?}");
}

#[test]
fn a_cache_keeps_what_a_command_has_read() {
    let (folder, _) = saved();
    let server = ObjectServer::start().unwrap();
    server.create_bucket("bucket");
    for (name, bytes) in files_below(folder.path()).unwrap() {
        server.put("bucket", &name, bytes);
    }
    let url = format!("{}/bucket/step_1", server.endpoint());
    let cache = folder.path().join("cache");
    let cat = || regrow(["cat", &url, "step", "--cache", text(&cache), "--cache-size", "1GB"]);
    assert_eq!(cat().stdout, "7\n");
    server.clear_requests();
    assert_eq!(cat().stdout, "7\n");
    let read: Vec<_> = server.requests().into_iter().filter(|request| request.range.is_some()).collect();
    assert!(read.is_empty(), "{read:?}");
    for (option, value) in [("--cache-size", "1GB"), ("--cache-size", "0"), ("--cache-size", "much")] {
        let run = regrow(["cat", &url, "step", option, value]);
        assert!(run.code == 2 && run.stderr.contains("cache"), "{value}: {run:?}");
    }
    let run = regrow(["cat", &url, "step", "--cache", text(&folder.path().join("step_1/regrow.json"))]);
    assert!(run.code == 3 && run.stderr.contains("cannot make the cache"), "{run:?}");
}
