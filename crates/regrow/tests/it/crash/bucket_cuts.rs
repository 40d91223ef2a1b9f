//! Kills of writers to a bucket. The test records the requests of a child. Then it builds every
//! state that a kill can leave: after each request, with any of the concurrent requests missing. In
//! each state a reader finds the old or the new checkpoint, complete. A checkpoint that the child
//! has reported exists. The next save works, and removes temporary objects.
//!
//! The test starts itself as the child. `REGROW_LONG=1` checks all states; otherwise the test
//! checks some of them.

use std::cell::Cell;
use std::env;
use std::path::Path;
use std::time::Duration;

use crate::common::child::child;
use crate::crash::scenes::saves::{self, Over, Save};
use crate::crash::scenes::{Scene, told};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use regrow::array::{Array, Dtype, Shape};
use regrow::location::{Location, StorageOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{SaveOptions, load, save_with, verify};
use regrow_testkit::object_server::ObjectServer;

const ENDPOINT: &str = "REGROW_TEST_CUTS_ENDPOINT";
const SCHEME: &str = "REGROW_TEST_CUTS_SCHEME";
const SCENE: &str = "REGROW_TEST_CUTS_SCENE";

const BUCKET: &str = "cuts";

/// While a child writes, so that what it asks for at the same time is under way at the same time.
const LATENCY: Duration = Duration::from_millis(2);

/// States that a short run looks at of each scene.
const SHORT_STATES: usize = 8;

fn root(endpoint: &str, scheme: &str) -> Location {
    let options = match scheme {
        "gs" => StorageOptions::new().with("anon", "true"),
        _ => StorageOptions::new().with("region", "us-east-1").with("key", "test").with("secret", "testtest"),
    };
    let options = options.with("endpoint_url", endpoint).with("max_retries", "0");
    Location::with_options(Path::new(&format!("{scheme}://{BUCKET}/work")), &options).unwrap()
}

/// The child: does nothing unless it was started by one of the tests below.
#[test]
fn child_runs_one_scene() {
    let asked = [ENDPOINT, SCHEME, SCENE].map(env::var);
    let [Ok(endpoint), Ok(scheme), Ok(scene)] = asked else { return };
    let scene =
        if scene == Large.name() { Box::new(Large) } else { crate::crash::scenes::named(&scene).unwrap() };
    let done = scene.act(&root(&endpoint, &scheme));
    println!("\n{}", if done.is_ok() { "DONE".to_owned() } else { format!("{done:?}") });
}

fn is_long() -> bool {
    env::var_os("REGROW_LONG").is_some()
}

/// Plays a scene, and looks at what its end leaves at any moment.
fn check(scene: &dyn Scene, scheme: &str) {
    if let Err(wrong) = find_wrong(scene, scheme, |_| {}) {
        panic!("{wrong}");
    }
}

/// The same; `look` is shown each state, and errs with what is wrong.
fn find_wrong(scene: &dyn Scene, scheme: &str, look: impl Fn(&ObjectServer)) -> Result<(), String> {
    let server = ObjectServer::start().unwrap();
    server.create_bucket(BUCKET);
    let root = || root(&server.endpoint(), scheme);
    scene.prepare(&root());
    server.latency(LATENCY);
    server.record();
    let mut child = child("crash::bucket_cuts::child_runs_one_scene");
    child.env(ENDPOINT, server.endpoint()).env(SCHEME, scheme).env(SCENE, scene.name());
    let ended = child.output().unwrap();
    let history = server.recorded();
    server.latency(Duration::ZERO);
    assert!(String::from_utf8_lossy(&ended.stdout).contains("DONE"), "{}: {ended:?}", scene.name());
    assert!(history.write_count() > 0, "{}", scene.name());
    let all: Vec<_> = history.states().collect();
    let step = if is_long() { 1 } else { all.len().div_ceil(SHORT_STATES) };
    let mut count = 0;
    // From the end: that state is one of a short run.
    for state in all.iter().rev().step_by(step) {
        count += 1;
        server.put_back(state);
        look(&server);
        scene.check(&root(), state.is_at_end).map_err(|wrong| {
            let (name, writes) = (scene.name(), history.write_count());
            let left = server.keys(BUCKET, "").join("\n  ");
            format!(
                "{name}, {scheme}, {} of {writes} requests, {}: {wrong}\nleft:\n  {left}",
                state.done, state.told
            )
        })?;
    }
    let (name, writes) = (scene.name(), history.write_count());
    println!("{name}, {scheme}: {writes} requests, {} states, {count} looked at", all.len());
    Ok(())
}

fn check_all(wanted: impl Fn(&Save) -> bool) {
    for save in saves::saves().iter().filter(|save| wanted(save)) {
        check(save, "s3");
        if is_long() {
            check(save, "gs");
        }
    }
}

#[test]
fn a_folder_is_old_or_new() {
    check_all(|save| save.processes == 1 && save.file == "ckpt" && save.layout != "pytree_data");
}

#[test]
fn a_file_is_old_or_new() {
    check_all(|save| save.file.contains('.'));
}

#[test]
fn files_beside_each_other_are_there_or_not() {
    // They are not replaced: there would be a moment of neither or both.
    check_all(|save| save.layout == "pytree_data" && save.over != Over::Old);
}

#[test]
fn a_save_of_several_processes_is_old_or_new() {
    check_all(|save| save.processes > 1);
}

#[test]
fn several_items_are_old_or_new_together() {
    crate::crash::scenes::items::scenes().iter().for_each(|scene| check(&**scene, "s3"));
}

#[test]
fn a_rotation_keeps_the_steps_of_its_policy() {
    crate::crash::scenes::steps::scenes().iter().for_each(|scene| check(&**scene, "s3"));
}

#[test]
fn a_seal_a_signature_and_parity_are_there_or_not() {
    let scenes = crate::crash::scenes::beside::scenes();
    scenes.iter().filter(|scene| !scene.name().starts_with("Repair")).for_each(|scene| check(&**scene, "s3"));
}

#[test]
fn a_killed_repair_leaves_the_old_damage_or_a_whole_checkpoint() {
    let scenes = crate::crash::scenes::beside::scenes();
    scenes.iter().filter(|scene| scene.name().starts_with("Repair")).for_each(|scene| check(&**scene, "s3"));
}

/// `PROPTEST_RNG_SEED` repeats a run; a failure is shrunk, and told with its tree.
#[test]
fn any_tree_in_any_layout_is_old_or_new() {
    let cases = if is_long() { 60 } else { 5 };
    let config = Config { cases, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&crate::crash::scenes::random::any_scene(), |scene| {
        prop_assume!(scene.can_be_saved() && !scene.replaces_a_pair());
        find_wrong(&scene, "s3", |_| {}).map_err(TestCaseError::fail)
    });
    if let Err(wrong) = ran {
        panic!("{wrong}");
    }
}

/// Arrays that go up in several parts, in the place of others.
struct Large;

fn large(fill: u8) -> Tree<Leaf> {
    let shape = Shape::new([20 << 20]).unwrap();
    let array = Array::new(Dtype::UInt8, shape, vec![fill; 20 << 20].into()).unwrap();
    crate::common::cuts::dict([("w".to_owned(), array)])
}

impl Large {
    fn save(&self, root: &Location, fill: u8) -> regrow::Result<()> {
        let options = SaveOptions { overwrite: true, ..SaveOptions::default() };
        save_with(root.join("ckpt"), &large(fill), &options).map(drop)
    }

    fn fill(&self, root: &Location) -> Result<Option<u8>, String> {
        let loaded: Tree<Leaf> = told("load", load(root.join("ckpt")))?;
        let report = told("verify", verify(root.join("ckpt")))?;
        if !report.is_ok() {
            return Err(format!("it does not verify: {:?}", report.findings));
        }
        Ok([saves::OLD, saves::NEW]
            .into_iter()
            .find(|fill| crate::common::bytes_of(&loaded) == crate::common::bytes_of(&large(*fill))))
    }
}

impl Scene for Large {
    fn name(&self) -> String {
        "large".to_owned()
    }

    fn prepare(&self, root: &Location) {
        self.save(root, saves::OLD).unwrap();
    }

    fn act(&self, root: &Location) -> regrow::Result<()> {
        self.save(root, saves::NEW)
    }

    fn check(&self, root: &Location, is_done: bool) -> Result<(), String> {
        match self.fill(root)? {
            Some(saves::NEW) => {}
            Some(saves::OLD) if !is_done => {}
            found => return Err(format!("the path holds {found:?}")),
        }
        told("the next save", self.save(root, saves::OLD))?;
        if self.fill(root)? != Some(saves::OLD) {
            return Err("the next save is not there".to_owned());
        }
        crate::crash::scenes::check_names(root, |name| name == "ckpt")
    }
}

/// The rest of an upload in parts is invisible to readers; the bucket's own rules remove it.
#[test]
fn uploads_in_parts_are_old_or_new() {
    let open = Cell::new(0);
    let looked = find_wrong(&Large, "s3", |server| open.set(open.get().max(server.open_uploads())));
    if let Err(wrong) = looked {
        panic!("{wrong}");
    }
    assert!(open.get() > 0, "no state had an upload under way");
}
