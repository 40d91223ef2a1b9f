//! Random runs of a manager against a short specification of the steps that a run deletes.
//!
//! The specification uses no records. For each save it remembers which steps were current at that
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regrow::engine::LoadOptions;
use regrow::manager::{Best, BestMode, Keep, Manager, ManagerOptions, SaveStep, TidyOptions};
use regrow::tree::{Leaf, Tree};
use regrow::{ErrorKind, SaveOptions, save_with};
use serde_json::json;

use super::{damage, options, tree};

/// Which of several saves of a number.
type Save = usize;

/// What a run keeps, and what counts as its own.
#[derive(Debug, Clone, Default)]
struct Policy {
    latest: Option<usize>,
    best: Option<usize>,
    every: Option<u64>,
    adopt: bool,
}

/// A save, as the specification remembers it.
#[derive(Debug, Clone)]
struct Saved {
    number: u64,
    metric: Option<f64>,
    is_own: bool,
    is_damaged: bool,
    /// Whether a user's file lies in it, so that nothing removes it.
    is_stuck: bool,
    /// What was current with it.
    history: BTreeSet<Save>,
}

/// The folder as it should be.
#[derive(Debug, Clone, Default)]
struct Run {
    saves: Vec<Saved>,
    there: BTreeMap<u64, Save>,
    current: BTreeSet<Save>,
    /// Steps that the manager knows to be damaged.
    known_damaged: BTreeSet<Save>,
}

impl Run {
    /// Good, ranked, own steps of the current history, by number.
    fn ranked(&self, policy: &Policy) -> Vec<Save> {
        let is_ranked = |save: &&Save| {
            let saved = &self.saves[**save];
            self.current.contains(*save)
                && (saved.is_own || policy.adopt)
                && !self.known_damaged.contains(*save)
                && !(policy.best.is_some() && saved.metric.is_none())
        };
        self.there.values().filter(is_ranked).copied().collect()
    }

    /// THE SPECIFICATION: what follows a save deletes the ranked steps that no part of the policy
    /// keeps. Without a rank a step is neither counted nor deleted; what is not measured takes a
    /// place among the latest.
    fn deleted(&self, policy: &Policy) -> BTreeSet<Save> {
        let ranked = self.ranked(policy);
        if policy.latest.is_none() && policy.best.is_none() && policy.every.is_none() {
            return BTreeSet::new();
        }
        let by_number = self.ranked(&Policy { best: None, ..policy.clone() });
        let mut kept: BTreeSet<Save> =
            by_number.iter().rev().take(policy.latest.unwrap_or(0).max(1)).copied().collect();
        let mut by_metric = ranked.clone();
        by_metric.sort_by(|a, b| {
            let of = |save: &Save| (self.saves[*save].metric.unwrap_or_default(), self.saves[*save].number);
            let ((a, first), (b, second)) = (of(a), of(b));
            a.total_cmp(&b).then(second.cmp(&first))
        });
        kept.extend(by_metric.iter().take(policy.best.unwrap_or(0)));
        let every =
            |save: &&Save| policy.every.is_some_and(|every| self.saves[**save].number.is_multiple_of(every));
        kept.extend(ranked.iter().filter(every));
        ranked.into_iter().filter(|save| !kept.contains(save)).collect()
    }

    /// The committed steps of the current history, by number.
    fn numbers(&self) -> Vec<u64> {
        self.there.iter().filter(|(_, save)| self.current.contains(save)).map(|(number, _)| *number).collect()
    }

    fn all(&self) -> Vec<u64> {
        self.there.keys().copied().collect()
    }

    /// A new program begins: what counts is what the last save has left.
    fn restart(&mut self) {
        let there = |save: &Save| self.there.get(&self.saves[*save].number) == Some(save);
        let newest_own = (0..self.saves.len()).rev().find(|save| self.saves[*save].is_own && there(save));
        let of_others = |save: &Save| !self.saves[*save].is_own;
        self.current = match newest_own {
            None => self.there.values().copied().collect(),
            // What others have saved since comes on top.
            Some(newest) => {
                let since = self.there.values().copied().filter(|save| *save > newest && of_others(save));
                self.saves[newest].history.iter().copied().chain(since).collect()
            }
        };
        self.known_damaged.clear();
    }

    /// What a save of this number goes on from.
    fn before(&self, number: u64) -> BTreeSet<Save> {
        self.current.iter().copied().filter(|save| self.saves[*save].number < number).collect()
    }

    fn save(&mut self, number: u64, metric: Option<f64>, is_own: bool) -> Save {
        let save = self.saves.len();
        if is_own {
            self.current = self.before(number);
        }
        self.current.insert(save);
        self.there.insert(number, save);
        let history = self.current.clone();
        let (is_damaged, is_stuck) = (false, false);
        self.saves.push(Saved { number, metric, is_own, is_damaged, is_stuck, history });
        save
    }

    fn turn_to(&mut self, number: u64) {
        let save = self.there[&number];
        if !self.current.contains(&save) {
            self.current = self.saves[save].history.clone();
        }
        self.current = self.before(number + 1);
        self.known_damaged.remove(&save);
    }

    fn has_good(&self) -> bool {
        self.there.values().any(|save| self.current.contains(save) && !self.saves[*save].is_damaged)
    }
}

fn overwriting() -> SaveOptions {
    SaveOptions { overwrite: true, ..options("regrow") }
}

/// A stream of numbers that a seed gives.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len() as u64) as usize]) }
    }
}

fn open(root: &Path, policy: &Policy) -> Manager {
    let mut any = Vec::new();
    any.extend(policy.latest.map(Keep::Latest));
    any.extend(
        policy.best.map(|count| Keep::Best(Best { metric: "loss".to_owned(), mode: BestMode::Min, count })),
    );
    any.extend(policy.every.map(Keep::EverySteps));
    let keep = if any.is_empty() { Keep::All } else { Keep::Any(any) };
    let tidy = TidyOptions { keep, adopt: policy.adopt, ..TidyOptions::default() };
    let options = ManagerOptions { tidy, save: options("regrow"), ..ManagerOptions::default() };
    Manager::new(root, options).unwrap()
}

fn any_policy(dice: &mut Dice) -> Policy {
    let mut some = |bound| Some(1 + dice.below(bound)).filter(|_| dice.below(3) > 0);
    let (latest, best, every) = (some(3), some(3), some(4));
    let adopt = dice.below(4) == 0;
    Policy { latest: latest.map(|it| it as usize), best: best.map(|it| it as usize), every, adopt }
}

/// One random run; says of each call what it was, for a failure.
fn run(seed: u64) {
    let mut dice = Dice(seed);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut policy = any_policy(&mut dice);
    let mut manager = open(root, &policy);
    let mut model = Run::default();
    let mut calls: Vec<String> = Vec::new();
    for _ in 0..30 {
        let had_good = model.has_good();
        match dice.below(12) {
            0..=5 => {
                let last = model.numbers().last().copied().unwrap_or(0);
                let number = match dice.below(8) {
                    0 => dice.below(last + 1),
                    _ => last + 1 + dice.below(3),
                };
                save(&manager, &mut model, &policy, number, &mut dice, &mut calls);
            }
            6 => {
                // Where a step of another program came from that was left nothing says.
                let is_said = |number: &u64| {
                    let save = model.there[number];
                    model.saves[save].is_own || model.current.contains(&save)
                };
                let said: Vec<u64> = model.all().into_iter().filter(is_said).collect();
                let Some(number) = dice.one_of(&said) else { continue };
                calls.push(format!("restore {number}"));
                let restored = manager.restore_step::<Tree<Leaf>>(number, &LoadOptions::default());
                let save = model.there[&number];
                if model.saves[save].is_damaged {
                    assert!(restored.is_err(), "{calls:#?}");
                    model.known_damaged.insert(save);
                } else {
                    restored.unwrap();
                    model.turn_to(number);
                }
            }
            7 => {
                calls.push("restore the newest".to_owned());
                let restored = manager.restore::<Tree<Leaf>>(&LoadOptions::default());
                let mut found = None;
                for number in model.numbers().into_iter().rev() {
                    let save = model.there[&number];
                    if !model.saves[save].is_damaged {
                        found = Some(number);
                        break;
                    }
                    model.known_damaged.insert(save);
                }
                assert_eq!(restored.ok().map(|restored| restored.step.number), found, "{calls:#?}");
                if let Some(number) = found {
                    model.turn_to(number);
                }
            }
            8 => {
                let Some(number) = dice.one_of(&model.all()) else { continue };
                calls.push(format!("damage {number}"));
                let step = root.join(number.to_string());
                let item = step.join("default");
                damage(if model.saves[model.there[&number]].is_own { &item } else { &step });
                let saved = &mut model.saves[model.there[&number]];
                // The same byte changes back.
                saved.is_damaged = !saved.is_damaged;
            }
            9 => {
                let Some(number) = dice.one_of(&model.all()) else { continue };
                let is_desktop = dice.below(2) == 0;
                let name = if is_desktop { ".DS_Store" } else { "notes.txt" };
                calls.push(format!("{name} in {number}"));
                fs::write(root.join(number.to_string()).join(name), "x").unwrap();
                model.saves[model.there[&number]].is_stuck |= !is_desktop;
            }
            10 => {
                // An empty folder, one that no step may be called, and a step that `save` has
                // saved.
                drop(manager);
                let last = model.all().last().copied().unwrap_or(0);
                fs::create_dir_all(root.join((last + 1).to_string())).unwrap();
                save_with(root.join(u64::MAX.to_string()), &tree(1), &overwriting()).unwrap();
                let number = last + 2;
                calls.push(format!("save {number} without the manager"));
                save_with(root.join(number.to_string()), &tree(number as u8), &options("regrow")).unwrap();
                model.save(number, None, false);
                manager = open(root, &policy);
                model.restart();
            }
            _ => {
                drop(manager);
                policy = any_policy(&mut dice);
                calls.push(format!("restart with {policy:?}"));
                manager = open(root, &policy);
                model.restart();
            }
        }
        calls.push(format!("  {:?}, current {:?}", model.all(), model.numbers()));
        assert_eq!(manager.steps().numbers().unwrap(), model.all(), "seed {seed} {calls:#?}");
        assert_eq!(manager.latest().unwrap(), model.numbers().last().copied(), "seed {seed} {calls:#?}");
        assert!(model.has_good() || !had_good || calls[calls.len() - 2].starts_with("damage"), "{calls:#?}");
    }
}

fn save(
    manager: &Manager,
    model: &mut Run,
    policy: &Policy,
    number: u64,
    dice: &mut Dice,
    calls: &mut Vec<String>,
) {
    let metric = match dice.below(8) {
        0 => json!({"los": 1.0}),
        1 => json!({"loss": "NaN"}),
        _ => json!({"loss": dice.below(5) as f64}),
    };
    calls.push(format!("save {number} with {metric}"));
    let about = SaveStep { metrics: metric.as_object().cloned().unwrap(), ..SaveStep::default() };
    let knows = model.there.get(&number).is_some_and(|save| model.current.contains(save));
    let is_stuck = model.there.get(&number).is_some_and(|save| model.saves[*save].is_stuck);
    let saved = manager.save(number, &tree(number as u8), &about);
    if knows || manager.steps().find(number).unwrap().is_none() && matches!(saved, Ok(false)) {
        // One that was deleted is known as long as the program lives.
        assert!(!saved.unwrap(), "{calls:#?}");
        return;
    }
    let is_refused = policy.best.is_some() && metric.get("loss").is_none();
    if is_refused || is_stuck {
        assert_eq!(saved.unwrap_err().kind(), ErrorKind::InvalidArgument, "{calls:#?}");
        return;
    }
    assert!(saved.unwrap(), "{calls:#?}");
    manager.wait().unwrap();
    model.save(number, metric["loss"].as_f64(), true);
    // Other programs find the same step.
    let opened = regrow::open(manager.steps().root()).unwrap();
    assert_eq!(opened.description().step, Some(number), "{calls:#?}");
    let gone = model.deleted(policy);
    model.there.retain(|_, save| !gone.contains(save) || model.saves[*save].is_stuck);
}

#[test]
fn a_manager_deletes_only_steps_that_rank_and_policy_name() {
    let runs = if std::env::var_os("REGROW_LONG").is_some() { 2000 } else { 16 };
    (0..runs).for_each(run);
}
