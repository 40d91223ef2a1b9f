//! Makes the fixtures. A child does one operation, and is killed at a chosen moment. The state that
//! the child leaves becomes the fixture.
//!
//! ```text
//! REGROW_LEFT_BEHIND=<folder> cargo nextest run -p regrow --test it --features cloud \
//!     --run-ignored only -E 'test(left_behind::make::)'
//! ```
//! Run the command again with `--features cloud,portable` for the overwrites in two renames. A
//! fixture that exists is not made again. The README of the fixtures names the commit of the run.
//! Later code leaves other objects, so that some of the moments no longer occur.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use regrow::location::Location;
use regrow::{CopyOptions, RemoveOptions, Result, copy, remove, save_with};
use regrow_testkit::object_server::ObjectServer;
use regrow_testkit::trace::{Fault, mark, run, writes};
use serde_json::Value;

use super::{BUCKET, BUCKETS, Case, DISK, NEW, OLD, options, put_fixture, root, tree};
use crate::common::child::child;

const OUT: &str = "REGROW_LEFT_BEHIND";
const ROOT: &str = "REGROW_TEST_LEFT_ROOT";
const CASE: &str = "REGROW_TEST_LEFT_CASE";

/// The latency of a request while a child works. A copy writes its claim every five seconds.
fn latency(case: &Case) -> Duration {
    Duration::from_millis(match case.name {
        "copy" | "copy_over" => 900,
        "copy_file" | "copy_siblings" => 3000,
        _ => 2,
    })
}

/// The claims say that their owners began at this time, on a host that no test runs on.
const SINCE: u64 = 1_700_000_000;
const HOST: &str = "gone 00000000-0000-0000-0000-000000000000";
const PID: u64 = 4242;

type Files = BTreeMap<String, Vec<u8>>;

fn is_portable() -> bool {
    cfg!(feature = "portable")
}

/// What is at the root before the operation.
fn prepare(root: &Location, case: &Case) {
    let target = root.join(case.target);
    let is_over = case.name.contains("over") || case.name.starts_with("remove");
    if is_over {
        save_with(&target, &tree(OLD), &options(case, true)).unwrap();
    }
    if case.is_copy() {
        save_with(root.join(format!("source{}", case.suffix())), &tree(NEW), &options(case, true)).unwrap();
    }
}

fn act(root: &Location, case: &Case) -> Result<()> {
    let target = root.join(case.target);
    if case.name.starts_with("remove") {
        return remove(&target, &RemoveOptions::default()).map(drop);
    }
    if case.is_copy() {
        let options = CopyOptions { overwrite: true, threads: Some(1), ..CopyOptions::default() };
        let source = root.join(format!("source{}", case.suffix()));
        return copy(&source, &target, &options).map(drop);
    }
    save_with(&target, &tree(NEW), &options(case, true)).map(drop)
}

/// Whether a file has values of this generation.
fn is_of(bytes: &[u8], generation: u8) -> bool {
    bytes.windows(8).any(|eight| eight == [generation; 8])
}

/// Whether a state of the root is the wanted one.
fn is_wanted(case: &Case, files: &Files) -> bool {
    let has = |end: &str| files.keys().any(|name| name.ends_with(end));
    let under = |start: &str| files.keys().filter(|name| name.starts_with(start)).count();
    let target = format!("{}/", case.target);
    let staged = format!("{}.orbax-checkpoint-tmp", case.target);
    let in_target = |name: &str| files.contains_key(&format!("{target}{name}"));
    let claim = files.iter().find(|(name, bytes)| {
        let is_claim = name.ends_with("regrow-writing.json") || name.ends_with("-tmp-copy");
        is_claim && serde_json::from_slice::<Value>(bytes).is_ok()
    });
    let claim: Value = claim.map(|(_, bytes)| serde_json::from_slice(bytes).unwrap()).unwrap_or_default();
    let copied = claim["copied"].as_object().map_or(0, |copied| copied.len());
    let is_marked = in_target("commit_success.txt") || in_target("regrow-committed.txt");
    let is_moved = in_target("regrow-moved.json");
    let is_complete = |folder: &str| {
        files.keys().any(|name| {
            name.starts_with(folder)
                && (name.ends_with("commit_success.txt") || name.ends_with("regrow-committed.txt"))
        })
    };
    match case.name {
        "save" => in_target("regrow-writing.json") && under(&target) > 4 && !is_marked,
        "save_swept" => claim["is_sweeping"] == true && under(&target) > 3 && !is_marked,
        "save_siblings" => has("ckpt.data") && !has("ckpt.manifest") && has("-tmp-copy"),
        "overwrite" | "overwrite_npy" => {
            !is_complete(&staged) && under(&staged) > 3 && is_marked && !is_moved
        }
        "overwrite_locked" => is_complete(&staged) && in_target("regrow-settling.json") && !is_moved,
        "overwrite_moved" | "overwrite_moved_npy" => is_moved && is_marked && has("/regrow-settling.json"),
        "overwrite_settling" | "overwrite_settling_npy" => {
            let is_mixed = under(&target) > 4 && is_complete(&staged);
            is_moved && !is_marked && has("/regrow-settling.json") && is_mixed
        }
        "overwrite_settled" => {
            let is_new = files.iter().any(|(name, bytes)| name.starts_with(&target) && is_of(bytes, NEW));
            is_new && !is_moved && is_marked && under(&staged) > 3
        }
        "remove" => in_target("regrow-writing.json") && !is_marked && under(&target) > 3,
        "remove_locked" => in_target("regrow-settling.json") && in_target("regrow-writing.json") && is_marked,
        "copy" | "copy_over" | "copy_file" | "copy_siblings" => {
            let is_committed = is_complete(if case.name == "copy" { &target } else { &staged })
                || case.name == "copy_file" && files.contains_key(case.target)
                || has("ckpt.manifest");
            copied > 0 && !is_committed && !is_moved
        }
        name => panic!("{name}"),
    }
}

fn case(name: &str) -> &'static Case {
    BUCKET.iter().chain(DISK).find(|case| format!("{}/{}", case.place, case.name) == name).unwrap()
}

/// The child: does nothing unless it was started by one of the tests below.
#[test]
fn child_acts_once() {
    let [Ok(at), Ok(name)] = [ROOT, CASE].map(env::var) else { return };
    let case = case(&name);
    let root = if case.place == "bucket" { root(&at) } else { Location::local(Path::new(&at)) };
    mark();
    let done = act(&root, case);
    mark();
    println!("\n{}", if done.is_ok() { "DONE".to_owned() } else { format!("{done:?}") });
}

/// Where to write a fixture; `None` if it is there.
fn out(case: &Case) -> Option<PathBuf> {
    let out = PathBuf::from(env::var_os(OUT)?).join(case.place).join(case.name);
    (!out.exists()).then_some(out)
}

fn write(out: &Path, files: &Files) {
    for (name, bytes) in files {
        let path = out.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The claims of a killed writer as those of a machine that is gone.
fn made_foreign(files: Files) -> Files {
    let foreign = |bytes: Vec<u8>| match serde_json::from_slice::<Value>(&bytes) {
        Ok(mut claim) if claim.get("pid").is_some() && claim.get("nonce").is_some() => {
            claim["host"] = HOST.into();
            claim["pid"] = PID.into();
            claim["since"] = SINCE.into();
            claim.as_object_mut().unwrap().remove("renewed");
            claim.to_string().into_bytes()
        }
        _ => bytes,
    };
    files.into_iter().map(|(name, bytes)| (name, foreign(bytes))).collect()
}

#[test]
#[ignore = "makes the fixtures"]
fn make_in_buckets() {
    for case in BUCKET {
        let Some(out) = out(case) else { continue };
        let server = ObjectServer::start().unwrap();
        server.create_bucket(BUCKETS);
        if case.name == "save_swept" {
            let save = BUCKET.iter().find(|case| case.name == "save").unwrap();
            put_fixture(&server, &out.with_file_name("save"), save);
        }
        prepare(&root(&server.endpoint()), case);
        server.latency(latency(case));
        server.record();
        let mut child = child("crash::left_behind::make::child_acts_once");
        let ended =
            child.env(ROOT, server.endpoint()).env(CASE, format!("bucket/{}", case.name)).output().unwrap();
        let history = server.recorded();
        assert!(String::from_utf8_lossy(&ended.stdout).contains("DONE"), "{}: {ended:?}", case.name);
        let files = |state| {
            server.put_back(state);
            let keys = server.keys(BUCKETS, "work/").into_iter();
            keys.map(|key| (key["work/".len()..].to_owned(), server.get(BUCKETS, &key).unwrap().to_vec()))
                .collect::<Files>()
        };
        // The last one has the most.
        let states: Vec<_> = history.states().collect();
        let mut wanted = states.iter().map(files).filter(|files| is_wanted(case, files)).collect::<Vec<_>>();
        println!("{}: {} of {} states", case.name, wanted.len(), states.len());
        let at = wanted.len() / 2;
        assert!(
            !wanted.is_empty(),
            "{}: {:#?}",
            case.name,
            states.iter().map(|s| files(s).into_keys().collect::<Vec<_>>()).collect::<Vec<_>>()
        );
        write(&out, &made_foreign(wanted.swap_remove(at)));
    }
}

/// Files by their paths, and folders with a slash at their ends.
fn read(folder: &Path, below: &str, found: &mut Files) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            found.insert(format!("{name}/"), Vec::new());
            read(&entry.path(), &format!("{name}/"), found);
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

/// Whether the files on a disk are the wanted ones.
fn is_wanted_on_disk(case: &Case, files: &Files) -> bool {
    let staged = format!("{}.orbax-checkpoint-tmp-", case.target);
    let under =
        |start: &str| files.keys().filter(|name| name.starts_with(start) && !name.ends_with('/')).count();
    let is_old = |start: &str| files.iter().any(|(name, bytes)| name.starts_with(start) && is_of(bytes, OLD));
    let target = case.target;
    let has_target = files.contains_key(target) || files.contains_key(&format!("{target}/"));
    let has_both = files.contains_key("ckpt.data") && files.contains_key("ckpt.manifest");
    let mark = files.keys().any(|name| name.contains("/.regrow-replaced/"));
    match case.name {
        "save" | "save_file" => !has_target && under(&staged) > 0,
        "save_siblings" => mark && files.contains_key("ckpt.data") && !has_both,
        "overwrite" => has_target && is_old(target) && under(&staged) > 4 && !is_old(&staged),
        "overwrite_exchanged" => has_target && is_old(&staged),
        "overwrite_between" => !has_target && is_old(&format!("{staged}replaced-")),
        "overwrite_renamed" => has_target && is_old(&format!("{staged}replaced-")),
        "overwrite_siblings_out" => mark && is_old("ckpt.data") && !files.contains_key("ckpt.manifest"),
        "overwrite_siblings_in" => {
            mark && !files.contains_key("ckpt.manifest")
                && files.get("ckpt.data").is_some_and(|data| data.contains(&NEW))
        }
        "remove" => !has_target && under(&staged) > 2,
        "copy" | "copy_file" | "copy_siblings" => {
            !has_target && !has_both && under(&format!("{staged}copy/")) > 1
        }
        "copy_over" => has_target && under(&format!("{staged}copy/")) > 3 && is_old(target),
        name => panic!("{name}"),
    }
}

#[test]
#[ignore = "makes the fixtures"]
fn make_on_disks() {
    for case in DISK {
        let in_two_steps = matches!(case.name, "overwrite_between" | "overwrite_renamed");
        if in_two_steps != is_portable() {
            continue;
        }
        let Some(out) = out(case) else { continue };
        let mut wanted = Vec::new();
        for at in 0.. {
            let folder = regrow_testkit::memory_folder().unwrap();
            prepare(&Location::local(folder.path()), case);
            let mut child = child("crash::left_behind::make::child_acts_once");
            child.env(ROOT, folder.path()).env(CASE, format!("disk/{}", case.name));
            let ended = run(&mut child, writes, at, Fault::Kill).unwrap();
            if ended.hit.is_none() {
                assert!(ended.stdout.contains("DONE"), "{}: {ended:?}", case.name);
                break;
            }
            let mut files = Files::new();
            read(folder.path(), "", &mut files);
            if is_wanted_on_disk(case, &files) {
                wanted.push(files);
            }
        }
        println!("{}: {} states", case.name, wanted.len());
        assert!(!wanted.is_empty(), "{}", case.name);
        let at = wanted.len() / 2;
        let mut files = wanted.swap_remove(at);
        // Git keeps no empty folders.
        let is_empty = |folder: &&String| {
            folder.ends_with('/') && !files.keys().any(|name| name != *folder && name.starts_with(&**folder))
        };
        let empty: Vec<String> = files.keys().filter(is_empty).cloned().collect();
        files.retain(|name, _| !name.ends_with('/'));
        if !empty.is_empty() {
            files.insert(super::EMPTY_FOLDERS.to_owned(), (empty.join("\n") + "\n").into_bytes());
        }
        write(&out, &files);
    }
}
