//! The records of a manager about each save, restore and deletion: lines of a file, and events of
//! the crate `log`.

use std::fs;
use std::sync::Mutex;

use log::kv::{Error, Key, Value, VisitSource};
use log::{Level, Log, Metadata, Record};
use regrow::engine::LoadOptions;
use regrow::manager::{
    DeleteOptions, Keep, KeepIf, LOG_TARGET, Manager, ManagerOptions, Preemption, SaveStep, SaveWhen,
    TidyOptions,
};
use regrow::tree::{Leaf, Tree};
use serde_json::json;

use super::{damage, options, tree};

/// The program's logger: keeps what it is told.
struct Kept(Mutex<Vec<(Level, String, Vec<String>)>>);

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

impl Log for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == LOG_TARGET
    }

    fn log(&self, record: &Record<'_>) {
        struct Pairs(Vec<String>);
        impl<'kvs> VisitSource<'kvs> for Pairs {
            fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
                self.0.push(format!("{key}={value}"));
                Ok(())
            }
        }
        let mut pairs = Pairs(Vec::new());
        record.key_values().visit(&mut pairs).unwrap();
        self.0.lock().unwrap().push((record.level(), record.args().to_string(), pairs.0));
    }

    fn flush(&self) {}
}

#[test]
fn each_save_restore_and_deletion_has_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let (root, log) = (folder.path().join("run"), folder.path().join("log.jsonl"));
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let delete = DeleteOptions { aside: Some("trash".to_owned()), ..DeleteOptions::default() };
    let tidy = TidyOptions { keep: Keep::Latest(2), verify: true, delete, ..TidyOptions::default() };
    let options =
        ManagerOptions { tidy, save: options("regrow"), log: Some(log.clone()), ..ManagerOptions::default() };
    let manager = Manager::new(&root, options).unwrap();
    let metrics = json!({"eval": {"loss": 0.5}});
    for step in 1..4 {
        let about = SaveStep { metrics: metrics.as_object().cloned().unwrap(), ..SaveStep::default() };
        assert!(manager.save(step, &tree(step as u8), &about).unwrap());
        manager.wait().unwrap();
    }
    damage(&root.join("3/default"));
    manager.restore::<Tree<Leaf>>(&LoadOptions::default()).unwrap();
    manager.delete(3, false).unwrap();
    let lines: Vec<serde_json::Value> =
        fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<String> =
        lines.iter().map(|line| format!("{} {}", line["event"].as_str().unwrap(), line["step"])).collect();
    assert_eq!(events, ["save 1", "save 2", "save 3", "delete 1", "restore 2", "delete 3"]);
    let saved = lines[2].as_object().unwrap();
    let names: Vec<&str> = saved.keys().map(String::as_str).collect();
    let expected = "event step path time seconds blocked_seconds stored_bytes data_bytes metrics tidy_seconds checked deleted";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
    assert_eq!((&saved["metrics"], &saved["deleted"]), (&metrics, &json!([1])));
    assert_eq!(saved["path"], json!(root.join("3")));
    assert!(
        saved["stored_bytes"].as_u64() > saved["data_bytes"].as_u64()
            && saved["seconds"].as_f64() > Some(0.0)
    );
    assert_eq!(lines[3]["moved_to"], json!(root.join("trash/1")));
    assert!(lines[4]["passed_over"]["3"].as_str().unwrap().contains("crc32c"), "{}", lines[4]);
    // The same as events, for the program's own logger.
    let mut kept = KEPT.0.lock().unwrap();
    kept.retain(|(_, _, pairs)| pairs.iter().any(|pair| pair.contains(root.to_str().unwrap())));
    assert_eq!(kept.len(), lines.len());
    let (level, text, pairs) = &kept[2];
    assert_eq!(
        (*level, pairs[1].as_str(), pairs[10].as_str()),
        (Level::Info, "step=3", "checked=true"),
        "{pairs:?}"
    );
    assert!(text.starts_with("save of step 3: path="), "{text}");
    assert!(pairs.contains(&r#"metrics={"eval":{"loss":0.5}}"#.to_owned()), "{pairs:?}");
    assert_eq!(kept[4].0, Level::Warn, "a step was passed over");
}

#[test]
fn sigterm_sets_a_flag_and_reports_a_late_save() {
    let folder = tempfile::tempdir().unwrap();
    let (root, log) = (folder.path().join("run"), folder.path().join("log.jsonl"));
    let flag = Preemption::on_sigterm().unwrap();
    // What follows the save ends when it is let go.
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let keep = KeepIf::new(move |_| held.lock().unwrap().recv().is_err());
    let options = ManagerOptions {
        save_when: SaveWhen::Every(1000),
        tidy: TidyOptions { keep: Keep::If(keep), ..TidyOptions::default() },
        save: options("regrow"),
        preemption: Some(flag.clone()),
        grace: std::time::Duration::ZERO,
        log: Some(log.clone()),
        ..ManagerOptions::default()
    };
    let manager = Manager::new(&root, options).unwrap();
    assert!(!manager.save(1, &tree(1), &SaveStep::default()).unwrap() && !flag.is_set());
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
    assert!(flag.is_set());
    // No time is left for it: it is told, goes on, and is there in the end.
    let late = manager.save(2, &tree(2), &SaveStep::default());
    assert_eq!(late.unwrap_err().kind(), regrow::ErrorKind::TimedOut);
    drop(let_go);
    manager.wait().unwrap();
    assert_eq!(manager.steps().numbers().unwrap(), [2]);
    assert!(!manager.save(3, &tree(3), &SaveStep::default()).unwrap(), "once");
    let text = fs::read_to_string(&log).unwrap();
    assert!(
        text.contains(r#""event": "late", "step": 2"#) && text.contains(r#""preempted": true"#),
        "{text}"
    );
}
