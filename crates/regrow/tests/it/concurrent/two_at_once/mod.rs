//! Two or three operations on the same place at the same time. Each operation starts, and pauses at
//! some moment of its work. Then the operations continue to their ends, the first one first. The
//! result must be a result of the same operations one after another, in some order:
//! - A reported save exists, unless another operation reports that it replaced or removed the save.
//! - A failed operation has changed nothing.
//! - Housekeeping makes no save fail.
//! - The next save works, and removes temporary files.
//!
//! In a bucket the operations are threads that pause at a request. On a disk the operations are
//! processes that pause at a system call.

#[cfg(feature = "cloud")]
mod buckets;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod calls;
mod worlds;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regrow::location::Location;
use regrow::{ErrorKind, Result};

/// What is in a place: the generation of each checkpoint, by its name; and what lies beside one, by
/// what it is.
type State = BTreeMap<String, u8>;

/// What is done to a place.
type Act = dyn Fn(&Location) -> Result<()> + Send + Sync;

/// The state of a place, or its error.
type Look<T> = dyn Fn(&Location) -> std::result::Result<T, String>;

/// Something that is done to a place.
struct Work {
    name: String,
    act: Arc<Act>,
    /// What it makes of the place, if it succeeds.
    after: Box<dyn Fn(&mut State)>,
    kind: Kind,
    /// The name of the one work that it is there to meet: it does the same with something else.
    meets: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Save,
    /// It takes a checkpoint away, or takes the lock that says who may.
    Removal,
    /// It changes no checkpoint, and must not fail any save.
    Housekeeping,
}

/// A place, and what is done to it.
struct World {
    name: String,
    works: Vec<Work>,
    /// The state before, unless a work was killed.
    before: State,
    /// Whether no work was killed there, nothing is damaged, and no other files lie beside the
    /// checkpoint.
    is_clean: bool,
    /// Whether a byte of what is there before has become another one.
    is_damaged: bool,
    /// Whether a save is to replace nothing, so that of two one is refused.
    is_exclusive: bool,
    /// Works that were killed at some moment, before the two begin.
    killed: Vec<Work>,
    prepare: Box<dyn Fn(&Location)>,
    /// What is there, each of it whole and verified, or what is wrong.
    look: Box<Look<State>>,
    /// The next save, and what it has to leave.
    next: Box<Look<()>>,
}

/// An operation that runs alone.
struct Alone {
    /// Its requests, or system calls.
    steps: u64,
    leaves: State,
    /// The kind of its error, if it has one.
    fails: Option<ErrorKind>,
}

/// How one of the two has ended.
type End = std::result::Result<(), (ErrorKind, String)>;

/// How all have.
type Ends = Vec<End>;

/// The errors of a work that came too late, or that was overtaken.
const OVERTAKEN: [ErrorKind; 9] = [
    // The other one has the state object, and stands still.
    ErrorKind::Busy,
    ErrorKind::AlreadyExists,
    ErrorKind::NotFound,
    // Of a folder that has just been emptied.
    ErrorKind::NotACheckpoint,
    ErrorKind::Replaced,
    ErrorKind::SourceChanged,
    // Of files beside each other on a disk: the other one has the folder, and stands still.
    ErrorKind::TimedOut,
    ErrorKind::Uncommitted,
    // Files of one stem are not replaced in a bucket, also if they were written in between.
    ErrorKind::Unsupported,
];

impl World {
    /// Every two works, in any order; with `REGROW_TEST_WORK` those with a work of that name.
    fn pairs(&self) -> impl Iterator<Item = [&Work; 2]> {
        let wanted = std::env::var("REGROW_TEST_WORK").ok();
        let all = self.works.iter().flat_map(|one| self.works.iter().map(move |other| [one, other]));
        let is_pair = |[one, other]: [&Work; 2]| match (one.meets, other.meets) {
            (None, None) => one.name != other.name || self.meets_itself(one),
            (None, Some(name)) => one.name == name,
            (Some(_), _) => false,
        };
        let is_wanted = move |pair: [&Work; 2]| {
            wanted.as_ref().is_none_or(|name| pair.iter().any(|work| work.name == *name))
        };
        all.filter(move |pair| is_pair(*pair) && is_wanted(*pair))
    }

    /// Groups of this many works: every two, and beside some of these a third one.
    fn groups(&self, len: usize) -> Vec<Vec<&Work>> {
        let pairs = self.pairs().map(Vec::from);
        match len {
            2 => pairs.collect(),
            _ => {
                let third = |(nth, pair): (usize, Vec<_>)| {
                    let third = &self.works[nth * THIRDS % self.works.len()];
                    [pair, vec![third]].concat()
                };
                pairs.enumerate().map(third).collect()
            }
        }
    }

    /// Whether there is no other work like this one for it to meet.
    fn meets_itself(&self, work: &Work) -> bool {
        !self.works.iter().any(|other| other.meets == Some(&*work.name))
    }

    /// What may be there when all have ended. Any of them may first have finished the killed work,
    /// which leaves the state `finished`.
    fn allowed(
        &self,
        (before, finished): (&State, &State),
        works: &[&Work],
        alone: &[&Alone],
        ends: &Ends,
    ) -> Vec<State> {
        let after = |(start, order): (&State, Vec<usize>)| {
            let mut state = start.clone();
            for at in order.into_iter().filter(|at| ends[*at].is_ok()) {
                let is_housekeeping = works[at].kind == Kind::Housekeeping;
                // It decides what becomes of the files of a killed work.
                match is_housekeeping && !self.killed.is_empty() && state == *start {
                    true => state = alone[at].leaves.clone(),
                    false => (works[at].after)(&mut state),
                }
            }
            state
        };
        let all = orders(works.len()).into_iter();
        all.flat_map(|order| [(before, order.clone()), (finished, order)]).map(after).collect()
    }

    /// Errs with what is wrong with the place, which is changed.
    fn check(
        &self,
        root: &Location,
        (before, finished): (&State, &State),
        works: &[&Work],
        alone: &[&Alone],
        ends: &Ends,
    ) -> std::result::Result<(), String> {
        // The state is kept if no work may replace it.
        let refuses = self.is_exclusive && !before.is_empty();
        for (at, end) in ends.iter().enumerate() {
            let Err((kind, message)) = end else { continue };
            let others = || (0..works.len()).filter(|other| *other != at);
            // Who repairs may meet half of what another one puts beside the checkpoint.
            let are_both_at_it = works.iter().all(|work| work.kind == Kind::Housekeeping);
            let is_damaged =
                self.is_damaged && works[at].kind == Kind::Housekeeping && works[at].name != worlds::REPAIR;
            let may_be_corrupt = are_both_at_it || is_damaged;
            let is_said_alone = alone[at].fails == Some(*kind);
            let may_be_told =
                OVERTAKEN.contains(kind) || is_said_alone || may_be_corrupt && *kind == ErrorKind::Corrupt;
            if !may_be_told {
                return Err(format!("{} ended with {kind:?}: {message}", works[at].name));
            }
            // A repair may finish the files of a killed work: then there is a checkpoint.
            let refuses =
                refuses || self.is_exclusive && others().any(|other| !alone[other].leaves.is_empty());
            let is_kept_from_it = *kind != ErrorKind::Unsupported && !refuses;
            let only_housekeeping = others().all(|other| works[other].kind == Kind::Housekeeping);
            if works[at].kind == Kind::Save && only_housekeeping && is_kept_from_it {
                return Err(format!("{} was stopped by housekeeping: {message}", works[at].name));
            }
        }
        let is_refused = |end: &End| matches!(end, Err((kind, _)) if *kind != ErrorKind::Unsupported);
        if !refuses && ends.iter().all(is_refused) && works.iter().any(|work| work.kind == Kind::Save) {
            return Err("all have failed".to_owned());
        }
        if self.is_exclusive
            && works.iter().all(|work| work.kind == Kind::Save)
            && ends.iter().filter(|end| end.is_ok()).count() > 1
        {
            return Err("two have saved, and none was to replace anything".to_owned());
        }
        let found = (self.look)(root)?;
        let allowed = self.allowed((before, finished), works, alone, ends);
        if !allowed.contains(&found) {
            return Err(format!("{found:?} is there and not {allowed:?}"));
        }
        (self.next)(root)
    }
}

/// A work in progress.
trait Actor {
    /// Waits for so long at most until it stands still or has ended; whether it has ended, if it
    /// does either.
    fn wait(&mut self, timeout: Duration) -> Option<bool>;

    /// Has it go on to its end.
    fn go_on(&mut self);

    /// How it ended.
    fn end(self: Box<Self>) -> End;
}

/// How long one waits for the other before that one may go on, too.
const PATIENCE: Duration = Duration::from_millis(200);

/// Long enough for a machine that is busy with other tests.
const LONG: Duration = Duration::from_secs(120);

/// Each begins and stands still; then each goes on to its end, the first one first.
fn play(len: usize, begin: &dyn Fn(usize) -> Box<dyn Actor>) -> Ends {
    let mut actors = Vec::new();
    for nth in 0..len {
        let mut actor = begin(nth);
        match nth {
            0 => drop(actor.wait(LONG).expect("the first hangs")),
            // It may wait for an earlier one.
            _ => drop(actor.wait(PATIENCE)),
        }
        actors.push(actor);
    }
    let mut blocked = Vec::new();
    for (nth, actor) in actors.iter_mut().enumerate() {
        actor.go_on();
        if ended(actor, PATIENCE).is_none() {
            blocked.push(nth);
        }
    }
    for nth in blocked {
        ended(&mut actors[nth], LONG).unwrap_or_else(|| panic!("number {nth} hangs"));
    }
    actors.into_iter().map(Actor::end).collect()
}

/// All orders of so many works.
fn orders(len: usize) -> Vec<Vec<usize>> {
    let Some(last) = len.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: &Vec<usize>| {
        let put = |at: usize| [&order[..at], &[last], &order[at..]].concat();
        (0..=order.len()).map(put).collect::<Vec<_>>()
    };
    orders(last).iter().flat_map(with_last).collect()
}

fn ended(actor: &mut Box<dyn Actor>, timeout: Duration) -> Option<()> {
    let began = Instant::now();
    while began.elapsed() < timeout {
        if actor.wait(timeout) == Some(true) {
            return Some(());
        }
    }
    None
}

/// Where the two are played, and how many steps one of them takes alone.
trait Stage {
    /// How many pasts the place has: one, or one for each moment at which a work was killed.
    fn past_count(&self) -> usize;

    /// All as it was before, in one of its pasts.
    fn put_back(&mut self, past: usize);

    /// Requests, or system calls, of an undisturbed work, and how it ended.
    fn steps_alone(&mut self, work: &Work) -> (u64, End);

    /// Plays works that pause at these steps. Returns how they ended.
    fn play(&mut self, works: &[&Work], stops_at: &[u64]) -> Ends;

    /// The place, for who judges it.
    fn root(&self) -> Location;

    /// What is left in it, for people.
    fn left(&self) -> Vec<String>;
}

/// How many moments each of those is killed at who are.
const KILLS: u64 = 8;

/// The moments at which a work of so many steps is killed.
fn kills(len: u64) -> impl Iterator<Item = u64> {
    (0..KILLS).map(move |nth| nth * len / KILLS)
}

/// Moments at which works stand still, spread evenly over the work of all.
fn moments(len: &[u64], nth: usize) -> Vec<u64> {
    // Multiples of these numbers, without what is before the point, fill a square, and nearly a
    // cube, evenly, however many they are.
    const STEPS: [f64; 3] = [0.754_877_666_246_692_8, 0.569_840_290_998_053_2, 0.430_159_709_001_946_7];
    let moment = |(len, step): (&u64, f64)| ((nth as f64 * step).fract() * (len + 1) as f64) as u64;
    len.iter().zip(STEPS).map(moment).collect()
}

/// The third work of a group is this many works further than that of the group before.
const THIRDS: usize = 5;

/// Plays groups of so many works at some moments, with `REGROW_LONG=1` at many.
fn check(world: &World, len: usize, stage: &mut dyn Stage) -> std::result::Result<(), String> {
    let count = match std::env::var("REGROW_TEST_MOMENTS") {
        Ok(count) => count.parse().unwrap(),
        Err(_) if std::env::var_os("REGROW_LONG").is_some() => 10,
        Err(_) => 1,
    };
    // Of places that are not clean a part, where there is little time.
    let is_short = count == 1;
    if is_short && len > 2 && !world.is_clean {
        return Ok(());
    }
    let every = match (count, len) {
        (1, 3) => 24,
        (1, _) if !world.is_clean => 4,
        _ => 1,
    };
    let mut wrong = Vec::new();
    let mut played = 0;
    let states_before = states_before(world, stage)?;
    let mut all_alone = BTreeMap::new();
    for (nth, works) in world.groups(len).into_iter().enumerate().step_by(every) {
        for number in nth..nth + count {
            let past = number % states_before.len();
            let cleanup = world.works.iter().find(|work| work.name == worlds::CLEANUP);
            for work in works.iter().copied().chain(cleanup.filter(|_| !world.killed.is_empty())) {
                if let Entry::Vacant(unknown) = all_alone.entry((past, &*work.name)) {
                    stage.put_back(past);
                    let (steps, end) = stage.steps_alone(work);
                    let leaves = (world.look)(&stage.root()).map_err(|told| {
                        format!("{}: past {past}: {} alone: {told}", world.name, work.name)
                    })?;
                    let fails = end.err().map(|(kind, _)| kind);
                    unknown.insert(Alone { steps, leaves, fails });
                }
            }
            let alone: Vec<&Alone> = works.iter().map(|work| &all_alone[&(past, &*work.name)]).collect();
            let finished = cleanup.and_then(|work| all_alone.get(&(past, &*work.name)));
            let finished = finished.map_or(&states_before[past], |alone| &alone.leaves);
            let steps: Vec<u64> = alone.iter().map(|alone| alone.steps).collect();
            let stops_at = moments(&steps, number);
            played += 1;
            stage.put_back(past);
            let ends = stage.play(&works, &stops_at);
            let left = stage.left();
            let checked = world.check(&stage.root(), (&states_before[past], finished), &works, &alone, &ends);
            // Who was killed may have left one; the next save takes it.
            let left_last = if world.killed.is_empty() { left.clone() } else { stage.left() };
            // An interrupted copy of a single file waits for the next copy.
            let is_hold =
                |name: &&String| name.ends_with("regrow-state.json") && !name.contains("-tmp-copy/");
            let checked = checked.and(match left_last.iter().find(is_hold) {
                Some(hold) => Err(format!("{hold} is left")),
                None => Ok(()),
            });
            if let Err(told) = checked {
                let at =
                    (0..len).map(|at| format!("{:?} at {} of {}", works[at].name, stops_at[at], steps[at]));
                let at = at.collect::<Vec<_>>().join(", ");
                let left = left.join("\n  ");
                let before = &states_before[past];
                let told = format!(
                    "{}: past {past} ({before:?}): {at}: {told}\n{ends:?}\nleft:\n  {left}",
                    world.name
                );
                println!("WRONG {told}");
                wrong.push(told);
                break;
            }
        }
    }
    println!("{}: {played} times", world.name);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// What is there in each past of a place, to who reads it.
fn states_before(world: &World, stage: &mut dyn Stage) -> std::result::Result<Vec<State>, String> {
    let count = stage.past_count();
    let before = |past: usize| {
        stage.put_back(past);
        let found =
            (world.look)(&stage.root()).map_err(|told| format!("{}: past {past}: {told}", world.name))?;
        match world.killed.is_empty() && found != world.before {
            true => Err(format!("{}: {found:?} is there before, and not {:?}", world.name, world.before)),
            false => Ok(found),
        }
    };
    (0..count).map(before).collect()
}

/// All places whose names begin with this.
fn check_all(name: &str, check: impl Fn(&World) -> std::result::Result<(), String>) {
    let worlds = worlds::worlds().into_iter().filter(|world| world.name.starts_with(name));
    let wrong: Vec<String> = worlds.filter_map(|world| check(&world).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
