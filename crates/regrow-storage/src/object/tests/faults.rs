//! The rule of faults: whichever requests fail, readers see the old or the new checkpoint, and the
//! next overwrite succeeds and leaves no other files.

use std::sync::Mutex;

use super::*;

const BEFORE: u8 = 1;
const NEW: u8 = 2;

/// Runs an operation with the faults that `script` sets. Returns the number of its requests.
fn check(
    kind: &Kind,
    operation: Act,
    before: Option<u8>,
    script: &dyn Fn(&Scripted),
) -> std::result::Result<Scripted, String> {
    let inner = bucket(kind, before);
    let objects = Scripted::new(&inner);
    script(&objects);
    let after = operation.after(kind, before, NEW).unwrap_or(before);
    // What readers see after each request.
    let views = Arc::new(Mutex::new(Vec::new()));
    let (bucket, kind_of, noted) = (inner.clone(), kind.clone(), Arc::clone(&views));
    objects.after_each(move |_| noted.lock().unwrap().push(seen(&bucket, &kind_of)));
    let done = act(&objects, kind, operation, NEW);
    let now = seen(&inner, kind)?;
    let views = views.lock().unwrap().iter().cloned().collect::<std::result::Result<Vec<_>, _>>()?;
    if let Some(view) = views.iter().find(|view| ![before, after].contains(view)) {
        return Err(format!("readers see {view:?}"));
    }
    // A save whose result is unknown is taken back. An overwrite is not.
    let is_back = views.iter().skip_while(|view| **view == before).any(|view| *view == before);
    if is_back && before.is_some() {
        return Err("readers see the new checkpoint and then the old one".to_owned());
    }
    if now != after && (done.is_ok() || now != before) {
        return Err(format!("{now:?} after {done:?}"));
    }
    check_end(&inner, kind, &[operation])?;
    Ok(objects)
}

/// Calls `each` for each kind, operation and state before it, with the requests of a run without
/// faults.
fn for_each_case(mut each: impl FnMut(&Kind, Act, Option<u8>, &Scripted)) {
    for kind in Kind::all() {
        let of_steps = kind == Kind::Folder(Marker::OfSteps);
        // Only a copy writes a folder of steps.
        for operation in
            Act::ALL.into_iter().filter(|act| !of_steps || matches!(act, Act::Copy | Act::CopyOver))
        {
            for before in [None, Some(BEFORE)] {
                let run = check(&kind, operation, before, &|_| {}).unwrap();
                each(&kind, operation, before, &run);
            }
        }
    }
}

const FAULTS: [Fault; 3] = [Fault::NotPerformed, Fault::NoAnswer, Fault::First];

#[test]
fn failed_requests_leave_the_old_or_the_new_checkpoint() {
    let mut wrong = BTreeMap::<_, Vec<_>>::new();
    for_each_case(|kind, operation, before, run| {
        // After a fault, more requests follow, for example those of a drop.
        for first in 0..run.count() + 4 {
            for fault in FAULTS {
                for length in [1, 2, 3, 5, usize::MAX] {
                    let script = |objects: &Scripted| match length {
                        usize::MAX => objects.fail_from(first, fault),
                        _ => objects.fail((first..first + length).map(|number| (number, fault))),
                    };
                    if let Err(what) = check(kind, operation, before, &script) {
                        let faults = format!("{fault:?} {first} + {length}");
                        wrong
                            .entry(format!("{kind:?} {operation:?} {before:?}: {what}"))
                            .or_default()
                            .push(faults);
                    }
                }
            }
        }
    });
    none_of(&wrong);
}

#[test]
fn two_failed_writes_leave_the_old_or_the_new_checkpoint() {
    let mut wrong = BTreeMap::<_, Vec<_>>::new();
    for_each_case(|kind, operation, before, run| {
        for first in run.writes() {
            for one in FAULTS {
                let script = |objects: &Scripted| objects.fail([(first, one)]);
                let Ok(faulty) = check(kind, operation, before, &script) else { continue };
                for second in faulty.writes().into_iter().filter(|second| *second > first) {
                    for two in FAULTS {
                        let script = |objects: &Scripted| objects.fail([(first, one), (second, two)]);
                        if let Err(what) = check(kind, operation, before, &script) {
                            let faults = format!("{one:?} {first} and {two:?} {second}");
                            wrong
                                .entry(format!("{kind:?} {operation:?} {before:?}: {what}"))
                                .or_default()
                                .push(faults);
                        }
                    }
                }
            }
        }
    });
    none_of(&wrong);
}

/// Runs `next` after an operation that failed for good at request `number`.
fn check_next(
    kind: &Kind,
    [dead, next]: [Act; 2],
    before: Option<u8>,
    number: usize,
    fault: Fault,
) -> std::result::Result<bool, String> {
    const LATER: u8 = 3;
    let inner = bucket(kind, before);
    let objects = Scripted::new(&inner);
    objects.fail_from(number, fault);
    let _ = act(&objects, kind, dead, NEW);
    // The files of a pair stay visible until its removal deletes the manifest.
    let is_removed = *kind == Kind::Pair
        && content(&inner).iter().any(|(key, bytes)| {
            is_state(key) && String::from_utf8_lossy(bytes).contains(r#""phase":"removing""#)
        });
    let before = if is_removed { None } else { seen(&inner, kind)? };
    let done = act(&Scripted::new(&inner), kind, next, LATER);
    let now = seen(&inner, kind)?;
    let expected = next.after(kind, before, LATER);
    // A change or a cleanup needs a checkpoint or files.
    let is_wrong =
        done.is_ok() != expected.is_some() && (next.writes() || next == Act::Remove && before.is_some());
    let is_left = is_removed && next == Act::Finish;
    if is_wrong || now != expected.unwrap_or(before) && !is_left {
        return Err(format!("{now:?} after {before:?} and {:?}", done.map_err(|error| error.to_string())));
    }
    check_end(&inner, kind, &[dead, next])?;
    Ok(objects.count() > number)
}

#[test]
fn each_operation_succeeds_after_a_dead_one() {
    let mut wrong = BTreeMap::<_, Vec<_>>::new();
    for kind in Kind::few() {
        for pair in Act::ALL.into_iter().flat_map(|dead| Act::ALL.map(|next| [dead, next])) {
            for (before, fault) in
                [None, Some(BEFORE)].into_iter().flat_map(|before| FAULTS.map(|fault| (before, fault)))
            {
                for number in 0.. {
                    match check_next(&kind, pair, before, number, fault) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(what) => {
                            wrong
                                .entry(format!("{kind:?} {pair:?} {before:?}: {what}"))
                                .or_default()
                                .push(format!("{fault:?} from {number} on"));
                        }
                    }
                    assert!(number < 1000);
                }
            }
        }
    }
    none_of(&wrong);
}

#[test]
fn a_store_without_conditional_writes_works_for_one_writer() {
    for kind in Kind::all() {
        for operation in Act::ALL {
            for before in [None, Some(BEFORE)] {
                let inner = bucket(&kind, before);
                let mut objects = Scripted::new(&inner);
                objects.has_conditions = false;
                let done = act(&objects, &kind, operation, NEW);
                let expected = operation.after(&kind, before, NEW);
                let text = format!("{kind:?} {operation:?} {before:?}: {done:?}");
                assert!(!operation.writes() || done.is_ok() == expected.is_some(), "{text}");
                assert_eq!(seen(&inner, &kind), Ok(expected.unwrap_or(before)), "{text}");
                check_end(&inner, &kind, &[operation]).unwrap();
            }
        }
    }
}
