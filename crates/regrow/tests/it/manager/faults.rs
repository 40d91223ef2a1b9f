//! Faults during the work of a manager: deletions, moves to another folder, the pointer and the
//! lock. The process is killed before a system call, or a call fails. In a bucket a request is
//! refused. After each fault all listed steps are intact, the newest step exists, and the next save
//! removes temporary files.
//!
//! The test starts itself as a child that does one operation, and traces the child. `REGROW_LONG=1`
//! uses every call; otherwise the test uses some calls.

use std::path::Path;

use regrow::location::Location;
use regrow::manager::{DeleteOptions, Keep, Steps, TidyOptions};
use regrow::verify;

use super::save;

/// What is done to a folder with the steps 1, 2 and 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Two of them are deleted, and the pointer is written.
    Tidy,
    /// They are moved aside.
    Aside,
    /// A writer takes the lock and removes what a killed one has left.
    Begin,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Tidy => "tidy",
            Self::Aside => "aside",
            Self::Begin => "begin",
        }
    }

    fn options(self) -> TidyOptions {
        let aside = (self == Self::Aside).then(|| "trash".to_owned());
        let delete = DeleteOptions { aside, ..DeleteOptions::default() };
        TidyOptions { keep: Keep::Latest(1), adopt: true, delete, ..TidyOptions::default() }
    }

    fn run(self, steps: &Steps) -> regrow::Result<()> {
        match self {
            Self::Tidy | Self::Aside => steps.tidy(3, &self.options()).map(drop),
            Self::Begin => {
                let _lock = steps.lock()?;
                steps.refresh()
            }
        }
    }

    /// What holds after it, however it has ended, and what the next save makes of it.
    fn check(self, root: &Location, context: &str) {
        let steps = Steps::new(root, None).unwrap();
        let list = steps.list().unwrap();
        let numbers: Vec<u64> = list.steps.iter().map(|step| step.number).collect();
        assert!(list.notes.is_empty(), "{:?}: {context}", list.notes);
        assert_eq!(numbers.last(), Some(&3), "the newest one is there: {context}");
        for step in &list.steps {
            assert!(verify(&step.location).unwrap().is_ok(), "step {} is listed: {context}", step.number);
        }
        if self == Self::Begin {
            assert_eq!(numbers, [1, 2, 3], "{context}");
        }
        let lock = steps.lock();
        assert!(lock.is_ok(), "{lock:?}: {context}");
        steps.refresh().unwrap();
        if self == Self::Aside {
            // A step is in one of both places, whole; in a bucket, where it is copied first,
            // perhaps in both.
            for number in 1..4_u64 {
                let aside = root.join("trash").join(number.to_string());
                let is_aside = verify(&aside).is_ok_and(|report| report.is_ok());
                let is_listed = numbers.contains(&number);
                assert!(is_aside || is_listed, "step {number} is nowhere: {context}");
                let may_be_twice = root.commits_by_marker();
                assert!(may_be_twice || is_aside != is_listed, "step {number} is twice there: {context}");
                assert!(may_be_twice || is_aside == aside.exists(), "step {number} is damaged: {context}");
            }
        }
        save(&steps, 4);
        let tidied = steps.tidy(4, &self.options()).unwrap();
        assert!(
            tidied.deletions.iter().all(|done| done.outcome.is_ok()),
            "{:?}: {context}",
            tidied.deletions
        );
        drop(lock);
        assert_eq!(steps.numbers().unwrap(), [4], "{context}");
        for aside in root.join("trash").entries().unwrap_or_default() {
            let aside = root.join("trash").join(aside.name.to_str().unwrap());
            assert!(verify(&aside).unwrap().is_ok(), "{aside}: {context}");
        }
        let is_own = |name: &&str| !["4", "trash", ".regrow"].contains(name);
        let names = root.entries().unwrap().into_iter().map(|entry| entry.name.into_string().unwrap());
        let names: Vec<String> = names.collect();
        assert_eq!(names.iter().map(String::as_str).filter(is_own).count(), 0, "{names:?}: {context}");
        let records: Vec<String> = root
            .join(".regrow")
            .store()
            .list(b"")
            .unwrap()
            .into_iter()
            .map(|key| String::from_utf8(key).unwrap())
            .collect();
        let is_known = |name: &&String| ["latest.json", "writer.lock"].contains(&name.as_str());
        assert_eq!(records.iter().filter(|name| !is_known(name)).count(), 0, "{records:?}: {context}");
    }
}

fn made(root: &Location) -> Steps {
    let steps = Steps::new(root, None).unwrap();
    for number in 1..4 {
        save(&steps, number);
    }
    steps
}

/// Every which call is tried.
fn pace(short: usize) -> usize {
    if std::env::var_os("REGROW_LONG").is_some() { 1 } else { short }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod calls {
    use std::process::Command;
    use std::{env, fs};

    use regrow_testkit::copy_folder;
    use regrow_testkit::trace::{Call, Fault, Run, mark, run, touches, writes};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::common::child::child as child_of;

    const ROOT: &str = "REGROW_TEST_FAULT_ROOT";
    const WORK: &str = "REGROW_TEST_FAULT_WORK";
    const NO_ROOM: &str = "REGROW_TEST_FAULT_NO_ROOM";

    /// EIO, ENOSPC, EACCES, EDQUOT.
    const ERRORS: [i32; 4] = [5, 28, 13, 122];

    /// What `ptrace` says where it is forbidden.
    const EPERM: i32 = 1;

    const WORKS: [Work; 3] = [Work::Tidy, Work::Aside, Work::Begin];

    /// The child: does nothing unless it was started by one of the tests below.
    #[test]
    fn child_runs_one_scene() {
        let (Some(root), Ok(work)) = (env::var_os(ROOT), env::var(WORK)) else { return };
        let work = WORKS.into_iter().find(|known| known.name() == work).unwrap();
        let steps = Steps::new(Path::new(&root), None).unwrap();
        if env::var_os(NO_ROOM).is_some() {
            // Nothing can be written any more, as on a full disk.
            signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default()).unwrap();
            let none = Rlimit { current: Some(0), ..getrlimit(Resource::Fsize) };
            setrlimit(Resource::Fsize, none).unwrap();
        }
        mark();
        let done = work.run(&steps);
        mark();
        println!("\n{}", if done.is_ok() { "DONE" } else { "FAILED" });
    }

    /// The folder that all begin with, in memory if the system has some.
    fn template() -> tempfile::TempDir {
        let folder = regrow_testkit::memory_folder().unwrap();
        made(&Location::local(folder.path().join("run")));
        folder
    }

    fn child(root: &Path, work: Work) -> Command {
        let mut child = child_of("manager::faults::calls::child_runs_one_scene");
        // What it says goes to a pipe: files are of no length in one of them.
        child.env(ROOT, root).env(WORK, work.name());
        child
    }

    #[test]
    fn steps_can_be_deleted_on_a_full_disk() {
        let template = template();
        let root = template.path().join("run");
        let ended = child(&root, Work::Tidy).env(NO_ROOM, "1").output().unwrap();
        assert!(String::from_utf8_lossy(&ended.stdout).contains("DONE"), "{ended:?}");
        let root = Location::local(&root);
        assert_eq!(Steps::new(&root, None).unwrap().numbers().unwrap(), [3], "{ended:?}");
        Work::Tidy.check(&root, "no room");
    }

    /// How the child ended; `None` if tracing is not permitted.
    fn traced(
        work: Work,
        template: &tempfile::TempDir,
        chosen: fn(&Call) -> bool,
        at: usize,
        fault: Fault,
    ) -> Option<Run> {
        let root = template.path().join("tried");
        let _ = fs::remove_dir_all(&root);
        copy_folder(&template.path().join("run"), &root).unwrap();
        if work == Work::Begin {
            let left = root.join("1.orbax-checkpoint-tmp-1-0123456789abcdef");
            copy_folder(&root.join("1"), &left).unwrap();
            fs::create_dir_all(root.join(".regrow/deleting")).unwrap();
            fs::write(root.join(".regrow/deleting/1"), r#"{"since": 1, "holder": "x:1"}"#).unwrap();
        }
        let mut child = child(&root, work);
        let ended = match run(&mut child, chosen, at, fault) {
            Err(error) if error.raw_os_error() == Some(EPERM) => {
                eprintln!("not tested: this system lets no process be traced ({error})");
                return None;
            }
            ended => ended.unwrap(),
        };
        work.check(&Location::local(&root), &format!("{work:?}, call {at}, {fault:?}, {ended:?}"));
        Some(ended)
    }

    #[test]
    fn a_kill_leaves_whole_steps_and_the_next_save_cleans_up() {
        for work in WORKS {
            let template = template();
            for at in (0..).step_by(pace(9)) {
                let Some(ended) = traced(work, &template, writes, at, Fault::Kill) else { return };
                if ended.hit.is_none() {
                    assert!(ended.stdout.contains("DONE") && at > 5, "{work:?}, call {at}: {ended:?}");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_failing_call_leaves_whole_steps_and_the_next_save_cleans_up() {
        for work in WORKS {
            let template = template();
            let pace = pace(67);
            for at in (0..).step_by(pace) {
                let error = ERRORS[at / pace % ERRORS.len()];
                let Some(ended) = traced(work, &template, touches, at, Fault::Fail(error)) else { return };
                if ended.hit.is_none() {
                    assert!(ended.stdout.contains("DONE") && at > 30, "{work:?}, call {at}: {ended:?}");
                    break;
                }
            }
        }
    }
}

#[cfg(feature = "cloud")]
mod requests {
    use regrow_testkit::object_server::{Fault, ObjectServer, Op, Refusal};

    use super::*;
    use crate::common::buckets::s3;

    /// The bucket refuses a request, one after the other; another time it does what it is asked to,
    /// and says that it has not.
    #[test]
    fn a_bucket_that_refuses_leaves_whole_steps_and_the_next_save_cleans_up() {
        let server = ObjectServer::start().unwrap();
        server.create_bucket("manager");
        let options = s3(server.endpoint()).with("max_retries", "0");
        let at = |name: &str| {
            Location::with_options(Path::new(&format!("s3://manager/{name}")), &options).unwrap()
        };
        made(&at("template"));
        let template = server.keys("manager", "template/");
        for work in [Work::Tidy, Work::Aside, Work::Begin] {
            for op in [Op::Get, Op::Head, Op::List, Op::Put, Op::Delete, Op::Copy] {
                for is_applied in [false, true] {
                    if is_applied && !matches!(op, Op::Put | Op::Delete | Op::Copy) {
                        continue;
                    }
                    for nth in (1..).step_by(pace(29)) {
                        let name = format!("{}-{op:?}-{is_applied}-{nth}", work.name());
                        for key in &template {
                            let copy = key.replace("template", &name);
                            server.put("manager", &copy, server.get("manager", key).unwrap());
                        }
                        let fault = Fault::refuse(Refusal::AccessDenied).on(op).nth(nth as u64);
                        let steps = Steps::new(at(&name), None).unwrap();
                        server.fault(if is_applied { fault.applied() } else { fault });
                        let done = work.run(&steps);
                        let is_struck = server.struck().iter().any(|struck| *struck > 0);
                        server.clear_faults();
                        work.check(&at(&name), &format!("{name}: {done:?}"));
                        if !is_struck {
                            break;
                        }
                    }
                }
            }
        }
    }
}
