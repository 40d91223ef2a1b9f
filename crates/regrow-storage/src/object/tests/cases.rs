//! Cases that no rule of the other modules covers.

use super::super::marker::{STATE, staged_folder, staged_prefix};
use super::super::record::Record;
use super::super::state::Phase;
use super::*;

fn own() -> Kind {
    Kind::Folder(Marker::Own(Vec::new()))
}

fn put(inner: &MemoryObjects, key: &str, bytes: impl Into<Bytes>) {
    let objects: Arc<dyn Objects> = Arc::new(inner.clone());
    objects.put(key, bytes.into()).unwrap();
}

/// A complete folder of a copy that no state object names belongs to another program.
#[test]
fn a_copy_is_refused_once_if_its_folder_is_complete() {
    let (inner, kind) = (bucket(&own(), Some(1)), own());
    let folder = staged_folder("x", "copy");
    for name in [FILES[0], MARKER] {
        put(&inner, &format!("{folder}/{name}"), vec![7]);
    }
    let objects = Scripted::new(&inner);
    let error = act(&objects, &kind, Act::CopyOver, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(objects.count() < 50, "{} requests", objects.count());
    assert_eq!(seen(&inner, &kind), Ok(Some(1)));
}

/// A file of another program that appears before the last look stays.
#[test]
fn saves_and_copies_delete_no_files_of_others() {
    for operation in [Act::Save, Act::Copy] {
        let plain = Scripted::new(&bucket(&own(), None));
        act(&plain, &own(), operation, 2).unwrap();
        // The first write creates the state object. The request before the second one is the look.
        let look = plain.writes()[1] - 1;
        for number in 0..look {
            let inner = bucket(&own(), None);
            let (objects, other) = (Scripted::new(&inner), inner.clone());
            objects.after_each(move |now| {
                if now == number {
                    put(&other, "x/foreign", vec![7]);
                }
            });
            act(&objects, &own(), operation, 2).unwrap_err();
            let left: Vec<String> = content(&inner).into_keys().collect();
            assert_eq!(left, ["x/foreign"], "{operation:?}, after request {number}");
        }
    }
}

#[test]
fn a_copy_that_cannot_begin_leaves_no_state_object() {
    let inner = bucket(&own(), None);
    let (target, monitor) = (Target::Folder, Monitor::new());
    let file = TransferFile { name: "a//b".to_owned(), len_bytes: 1, version: "1".to_owned() };
    let files = [file];
    let options = TransferOptions::of_files(&target, &files, &monitor);
    let error = location(&inner).transfer(options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(content(&inner).is_empty(), "{:?}", content(&inner));
}

#[test]
fn a_forced_cleanup_deletes_unfinished_files_and_keeps_complete_checkpoints() {
    let moved = Phase::Moved(format!("{}1", staged_prefix("x")));
    for (phase, is_kept) in
        [(Phase::Writing, false), (Phase::Removing, false), (Phase::Changing, true), (moved, true)]
    {
        let (inner, kind) = (bucket(&own(), Some(1)), own());
        if !is_kept {
            let objects: Arc<dyn Objects> = Arc::new(inner.clone());
            objects.delete(&[format!("x/{MARKER}")]).unwrap();
        }
        let living =
            Record { host: "elsewhere 1".to_owned(), ..Record::new("x", "other", "save", phase.clone()) };
        put(&inner, &format!("x/{STATE}"), living.to_bytes());
        let before = content(&inner);
        let done = location(&inner).remove_unfinished(true);
        match is_kept {
            true => assert_eq!((done.is_err(), content(&inner)), (true, before), "{phase:?}"),
            false => assert_eq!((done.is_ok(), content(&inner).len()), (true, 0), "{phase:?}"),
        }
        if phase == Phase::Changing {
            assert_eq!(seen(&inner, &kind), Ok(Some(1)));
        }
    }
}

/// Orbax' own temporary folders have a dot or nothing after the mark.
#[test]
fn a_forced_cleanup_deletes_folders_of_orbax() {
    for folder in ["x.orbax-checkpoint-tmp", "x.orbax-checkpoint-tmp.1", "x.orbax-checkpoint-tmp-1"] {
        let inner = bucket(&own(), Some(1));
        put(&inner, &format!("{folder}/d/a"), vec![7]);
        assert!(location(&inner).remove_unfinished(false).is_err(), "{folder}");
        assert_eq!(location(&inner).remove_unfinished(true).unwrap().file_count, 1, "{folder}");
        assert_eq!(content(&inner).len(), FILES.len() + 1, "{folder}");
        assert_eq!(seen(&inner, &own()), Ok(Some(1)));
    }
}

/// Of two processes that claim a name one after the other, one gets the name.
#[test]
fn a_name_is_claimed_once_with_and_without_conditional_writes() {
    for has_conditions in [true, false] {
        let mut objects = Scripted::new(&bucket(&own(), None));
        objects.has_conditions = has_conditions;
        let (at, monitor) = (location(&objects), Monitor::new());
        let begun = at.publish_folder(PublishOptions::of_new(&monitor)).unwrap();
        let ticket = begun.ticket().unwrap();
        let claimed = [0, 1].map(|_| {
            let joined = at.join_publication(&ticket, PublishOptions::of_new(&monitor)).unwrap();
            joined.claim("sign").unwrap()
        });
        assert_eq!(claimed, [true, false], "{has_conditions}");
    }
}
