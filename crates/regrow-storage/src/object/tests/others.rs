//! The rule of two operations: if one runs between two requests of another one, the result is that
//! of one after the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::held::tests::stop;
use super::*;

const BEFORE: u8 = 1;
const FIRST: u8 = 2;
const SECOND: u8 = 3;

/// The first operation pauses after the request `pauses_after`, the second one runs, and the first
/// one goes on. With `is_stopped` the pause is longer than the life of a state object.
fn check(
    kind: &Kind,
    [first, second]: [Act; 2],
    inner: MemoryObjects,
    pauses_after: usize,
    is_stopped: bool,
) -> std::result::Result<bool, String> {
    let before = seen(&inner, kind)?;
    let objects = Scripted::new(&inner);
    let done: Arc<Mutex<Option<Result<()>>>> = Arc::default();
    let is_wrong = Arc::new(AtomicBool::new(false));
    let (mut other, kind_of, noted) = (Scripted::new(&inner), kind.clone(), Arc::clone(&done));
    let (viewed, noted_wrong) = (inner.clone(), Arc::clone(&is_wrong));
    objects.after_each(move |number| {
        if number == pauses_after {
            if is_stopped {
                stop();
                other.ahead = Duration::from_secs(60 * 60);
            }
            *noted.lock().unwrap() = Some(act(&other, &kind_of, second, SECOND));
        }
        if seen(&viewed, &kind_of).is_err() {
            noted_wrong.store(true, Ordering::Relaxed);
        }
    });
    let ended = act(&objects, kind, first, FIRST);
    let Some(other) = done.lock().unwrap().take() else { return Ok(false) };
    let now = seen(&inner, kind)?;
    let kind_of_end = |end: &Result<()>| end.as_ref().map_err(Error::kind).copied();
    let results = || format!("{now:?} after {:?} and {:?}", kind_of_end(&ended), kind_of_end(&other));
    if is_wrong.load(Ordering::Relaxed) {
        return Err(format!("a mixture: {}", results()));
    }
    let ran = |operation: Act, is_ok: bool, fill: u8, before: Option<Option<u8>>| match is_ok {
        true => operation.after(kind, before?, fill),
        false => before,
    };
    let one = |before: Option<Option<u8>>| ran(first, ended.is_ok(), FIRST, before);
    let two = |before: Option<Option<u8>>| ran(second, other.is_ok(), SECOND, before);
    let mut orders = vec![two(one(Some(before))), one(two(Some(before)))];
    if is_stopped && ended.is_err() {
        // It may have committed before it was stopped.
        let one = |before: Option<Option<u8>>| first.after(kind, before?, FIRST);
        orders.extend([two(one(Some(before))), one(two(Some(before)))]);
    }
    if !orders.contains(&Some(now)) {
        return Err(format!("no order: {}", results()));
    }
    let is_refused = |error: &Error| error.kind() == ErrorKind::Busy;
    // The second one does not wait. The first one has no other process to wait for.
    if ended.as_ref().err().is_some_and(is_refused)
        || is_stopped && other.as_ref().err().is_some_and(is_refused)
    {
        return Err(format!("busy: {}", results()));
    }
    let may_fail = |operation: Act| *kind == Kind::Pair || !operation.replaces();
    if let Err(error) = &ended
        && !is_stopped
        && first.replaces()
        && *kind != Kind::Pair
    {
        return Err(format!("an overwrite fails: {error}"));
    }
    if let Err(error) = &ended
        && !is_stopped
        && (first, kind) == (Act::Change, &Kind::Pair)
    {
        // The lock of files ends what a dead process left.
        return Err(format!("a lock fails: {error}"));
    }
    if let Err(error) = &other
        && error.kind() != ErrorKind::Busy
        && !may_fail(second)
    {
        return Err(format!("the second overwrite fails: {error}"));
    }
    check_end(&inner, kind, &[first, second])?;
    Ok(true)
}

fn check_all(is_stopped: bool) {
    let mut wrong = BTreeMap::<_, Vec<_>>::new();
    for kind in Kind::few() {
        // `Finish` waits for a living process.
        let all = Act::ALL.into_iter().filter(|act| *act != Act::Finish);
        for pair in all.clone().flat_map(|one| all.clone().map(move |two| [one, two])) {
            for before in [None, Some(BEFORE)] {
                for pauses_after in 0.. {
                    match check(&kind, pair, bucket(&kind, before), pauses_after, is_stopped) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(what) => wrong
                            .entry(format!("{kind:?} {pair:?} {before:?}: {what}"))
                            .or_default()
                            .push(format!("request {pauses_after}")),
                    }
                }
            }
        }
    }
    none_of(&wrong);
}

#[test]
fn two_operations_leave_the_result_of_one_order() {
    check_all(false);
}

#[test]
fn a_process_that_was_stopped_does_not_harm_the_next_owner() {
    check_all(true);
}

/// A cleanup runs beside each operation, after a third operation that failed for good.
#[test]
fn a_cleanup_of_dead_files_disturbs_no_operation() {
    let mut wrong = BTreeMap::<_, Vec<_>>::new();
    for kind in Kind::few() {
        for (dead, before) in [(Act::Save, None), (Act::Copy, None), (Act::Overwrite, Some(BEFORE))] {
            for dies_at in (0..20).step_by(3) {
                for act_now in Act::ALL.into_iter().filter(|act| *act != Act::Finish) {
                    for pauses_after in 0.. {
                        let inner = bucket(&kind, before);
                        let objects = Scripted::new(&inner);
                        objects.fail_from(dies_at, Fault::NotPerformed);
                        let _ = act(&objects, &kind, dead, 7);
                        match check(&kind, [act_now, Act::Clean], inner, pauses_after, false) {
                            Ok(true) => {}
                            Ok(false) => break,
                            Err(what) => wrong
                                .entry(format!("{kind:?} {dead:?} {before:?} {act_now:?}: {what}"))
                                .or_default()
                                .push(format!("request {dies_at} and {pauses_after}")),
                        }
                    }
                }
            }
        }
    }
    none_of(&wrong);
}
