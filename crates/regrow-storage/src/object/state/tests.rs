//! All interleavings of three processes that change one target, each killed at any request or not.

use std::collections::HashSet;

use super::*;

const FILES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Kind {
    #[default]
    Save,
    Copy,
    Overwrite,
    Change,
    Remove,
    Clean,
}

/// One folder: its files and its marker, each with the generation of the save that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Folder {
    files: [Option<u8>; FILES],
    marker: Option<u8>,
}

impl Folder {
    fn whole(generation: u8) -> Self {
        Self { files: [Some(generation); FILES], marker: Some(generation) }
    }
    fn is_empty(&self) -> bool {
        self.marker.is_none() && self.files == [None; FILES]
    }
    /// The generation that a reader of this folder gets. Panics for a mixture.
    fn read(&self) -> Option<u8> {
        let generation = self.marker?;
        assert_eq!(self.files, [Some(generation); FILES], "a reader sees a mixture");
        Some(generation)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Request {
    Swap(Phase),
    DeleteMarker,
    DeleteFile(usize),
    PutFile(usize, u8),
    CopyFile(usize, usize),
    CopyMarker(usize),
    Mark(u8),
    Written,
    SweepStaged,
    DeleteState,
    DeleteStaged,
    Done(Result<(), Refusal>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Process {
    kind: Kind,
    generation: u8,
    is_written: bool,
    is_committed: bool,
    is_alive: bool,
    /// The state object of the last look, and whether it was read.
    state: Option<(usize, Phase)>,
    has_state: bool,
    /// The process waits until the state object differs from the one that it saw.
    is_waiting: bool,
    /// The generation that a change was made from.
    opened: Option<u8>,
    requests: Vec<Request>,
    end: Option<Result<(), Refusal>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    target: Folder,
    state: Option<(usize, Phase)>,
    staged: Vec<Folder>,
    processes: Vec<Process>,
    /// What readers have to see.
    truth: Option<u8>,
}

fn index_of(folder: &str) -> usize {
    folder.parse().unwrap()
}

impl World {
    fn new(kinds: &[Kind], before: Option<u8>) -> Self {
        let target = before.map_or_else(Folder::default, Folder::whole);
        let process = |(at, kind): (usize, &Kind)| Process {
            kind: *kind,
            generation: at as u8 + 1,
            is_alive: true,
            opened: (*kind == Kind::Change).then_some(before).flatten(),
            ..Process::default()
        };
        let staged = kinds.iter().enumerate().map(|(at, kind)| match kind {
            Kind::Overwrite => Folder::whole(at as u8 + 1),
            _ => Folder::default(),
        });
        Self {
            target,
            state: None,
            staged: staged.collect(),
            processes: kinds.iter().enumerate().map(process).collect(),
            truth: before,
        }
    }

    fn visible(&self) -> Option<u8> {
        match &self.state {
            Some((_, Phase::Removing)) => None,
            Some((_, Phase::Moved(folder))) => {
                let found = self.staged[index_of(folder)].read();
                assert!(found.is_some(), "the pointer leads to nothing");
                found
            }
            _ => self.target.read(),
        }
    }

    fn check(&self) {
        assert_eq!(self.visible(), self.truth);
    }

    fn can_move(&self, at: usize) -> bool {
        let process = &self.processes[at];
        if !process.is_alive || process.end.is_some() {
            return false;
        }
        let owner_died = process.state.as_ref().is_some_and(|(owner, _)| !self.processes[*owner].is_alive);
        !process.is_waiting || self.state != process.state || owner_died
    }

    /// Performs the next request of a process.
    fn step(&mut self, at: usize) {
        if self.processes[at].requests.is_empty() {
            return self.look(at);
        }
        let request = self.processes[at].requests.remove(0);
        let generation = self.processes[at].generation;
        match request {
            Request::Swap(phase) => {
                if self.state != self.processes[at].state {
                    // Another process was faster: look again.
                    self.processes[at].requests.clear();
                } else {
                    let was = self.state.as_ref().map(|(_, phase)| phase.clone());
                    let is_own = self.state.as_ref().is_some_and(|(owner, _)| *owner == at);
                    if let Phase::Moved(folder) = &phase
                        && was.as_ref() != Some(&phase)
                    {
                        assert_eq!(index_of(folder), at);
                        self.truth = Some(generation);
                        self.processes[at].is_committed = true;
                    }
                    if phase == Phase::Removing
                        && is_own
                        && self.processes[at].kind == Kind::Remove
                        && was == Some(Phase::Changing)
                    {
                        self.truth = None;
                    }
                    self.state = Some((at, phase));
                }
                self.processes[at].state = None;
            }
            Request::DeleteMarker => self.target.marker = None,
            Request::DeleteFile(file) => self.target.files[file] = None,
            Request::PutFile(file, generation) => self.target.files[file] = Some(generation),
            Request::CopyFile(from, file) => self.target.files[file] = self.staged[from].files[file],
            Request::CopyMarker(from) => self.target.marker = self.staged[from].marker,
            Request::Mark(generation) => {
                assert!(self.target.marker.is_none(), "the marker exists");
                assert!(self.truth.is_none(), "a save replaces a checkpoint");
                self.target.marker = Some(generation);
                self.truth = Some(generation);
            }
            Request::Written => self.processes[at].is_written = true,
            Request::SweepStaged => {
                let pointed = match &self.state {
                    Some((_, Phase::Moved(folder))) => Some(index_of(folder)),
                    _ => None,
                };
                for other in 0..self.staged.len() {
                    if !self.processes[other].is_alive && pointed != Some(other) {
                        self.staged[other] = Folder::default();
                    }
                }
            }
            Request::DeleteState => {
                assert!(self.state.as_ref().is_some_and(|(owner, _)| *owner == at), "not its own");
                self.state = None;
            }
            Request::DeleteStaged => self.staged[at] = Folder::default(),
            Request::Done(end) => self.processes[at].end = Some(end),
        }
    }

    /// Two requests: the state object, and then a listing.
    fn look(&mut self, at: usize) {
        if !self.processes[at].has_state {
            let state = self.state.clone();
            let process = &mut self.processes[at];
            (process.state, process.has_state, process.is_waiting) = (state, true, false);
            return;
        }
        let owner = |owner: usize| match self.processes[owner].is_alive {
            _ if owner == at => Owner::Us,
            true => Owner::Living,
            false => Owner::Dead,
        };
        // A dead owner was dead when the state object was read, or the look is repeated.
        let state = self.processes[at].state.clone().map(|(of, phase)| (owner(of), phase));
        let seen = Seen {
            state,
            is_marked: self.target.marker.is_some(),
            has_files: self.target.files != [None; FILES],
        };
        let process = &self.processes[at];
        let operation = match process.kind {
            Kind::Save => Operation::Save { is_written: process.is_written, continues: false },
            Kind::Copy => Operation::Save { is_written: process.is_written, continues: true },
            Kind::Overwrite => {
                Operation::Overwrite { staged: at.to_string(), is_committed: process.is_committed }
            }
            Kind::Change => Operation::Change { is_written: process.is_written },
            Kind::Remove => Operation::Remove,
            Kind::Clean => Operation::Clean,
        };
        let generation = process.generation;
        let mut requests = Vec::new();
        let mut is_waiting = false;
        let own_staged = || matches!(process.kind, Kind::Overwrite).then_some(Request::DeleteStaged);
        match next(&seen, &operation) {
            Step::Take(phase) => requests.push(Request::Swap(phase)),
            Step::Clear => {
                requests.push(Request::DeleteMarker);
                requests.extend((0..FILES).map(Request::DeleteFile));
            }
            Step::Settle(folder) => {
                let from = index_of(&folder);
                requests.push(Request::DeleteMarker);
                requests.extend((0..FILES).map(|file| Request::CopyFile(from, file)));
                requests.extend([Request::CopyMarker(from), Request::Swap(Phase::Changing)]);
            }
            Step::Write if process.kind == Kind::Change && self.target.marker != process.opened => {
                requests.extend([Request::DeleteState, Request::Done(Err(Refusal::NotFound))]);
            }
            Step::Write => {
                let generation =
                    if process.kind == Kind::Change { process.opened.unwrap() } else { generation };
                requests.extend((0..FILES).map(|file| Request::PutFile(file, generation)));
                requests.push(Request::Written);
            }
            Step::Mark => requests.push(Request::Mark(generation)),
            Step::End => {
                requests.extend((process.kind != Kind::Clean).then_some(Request::SweepStaged));
                requests.push(Request::DeleteState);
                requests.extend(own_staged());
                requests.push(Request::Done(Ok(())));
            }
            Step::GiveUp(refusal) => {
                requests.push(Request::DeleteState);
                requests.extend(own_staged());
                requests.push(Request::Done(Err(refusal)));
            }
            Step::Refuse(refusal) => {
                requests.extend(own_staged());
                requests.push(Request::Done(Err(refusal)));
            }
            Step::Wait => is_waiting = true,
        }
        let process = &mut self.processes[at];
        process.has_state = false;
        // A swap needs the version that was read; every other step does not.
        let keeps = matches!(requests.last(), Some(Request::Swap(_))) || is_waiting;
        if !keeps {
            process.state = None;
        }
        (process.requests, process.is_waiting) = (requests, is_waiting);
    }

    /// Lets one more process overwrite, alone, and checks that nothing else stays.
    fn check_end(&self) {
        let mut world = self.clone();
        for process in &mut world.processes {
            process.is_alive = false;
        }
        let at = world.processes.len();
        let next = World::new(&[Kind::Overwrite], None).processes.remove(0);
        world.processes.push(Process { generation: at as u8 + 1, ..next });
        world.staged.push(Folder::whole(at as u8 + 1));
        for _ in 0..100 {
            if world.processes[at].end.is_some() {
                break;
            }
            world.step(at);
            world.check();
        }
        assert_eq!(world.processes[at].end, Some(Ok(())), "the next save");
        assert_eq!(world.target, Folder::whole(at as u8 + 1));
        assert!(world.state.is_none() && world.staged.iter().all(Folder::is_empty), "files stay: {world:?}");
    }
}

/// Visits all states.
fn explore(kinds: &[Kind], before: Option<u8>) {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(kinds, before)];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        world.check();
        let all = 0..world.processes.len();
        let movers: Vec<usize> = all.clone().filter(|at| world.can_move(*at)).collect();
        let unfinished =
            all.clone().filter(|at| world.processes[*at].is_alive && world.processes[*at].end.is_none());
        assert!(!movers.is_empty() || unfinished.count() == 0, "all wait: {world:?}");
        if movers.is_empty() {
            world.check_end();
        }
        for at in movers {
            let mut after = world.clone();
            after.step(at);
            open.push(after);
        }
        for at in all {
            if world.processes[at].is_alive && world.processes[at].end.is_none() {
                let mut after = world.clone();
                after.processes[at].is_alive = false;
                let process = &mut after.processes[at];
                (process.requests, process.state, process.has_state, process.is_waiting) =
                    (Vec::new(), None, false, false);
                open.push(after);
            }
        }
    }
}

#[test]
fn three_writers_leave_the_result_of_one_order_and_readers_see_no_mixture() {
    let kinds = [Kind::Save, Kind::Copy, Kind::Overwrite, Kind::Change, Kind::Remove, Kind::Clean];
    for before in [None, Some(0)] {
        for (a, one) in kinds.iter().enumerate() {
            for (b, two) in kinds.iter().enumerate().skip(a) {
                explore(&[*one, *two], before);
                for three in kinds.iter().skip(b) {
                    explore(&[*one, *two, *three], before);
                }
            }
        }
    }
}
