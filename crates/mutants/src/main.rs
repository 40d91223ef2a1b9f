//! Mutation testing in hours. With a build for each change it would take days.
//!
//! `cargo mutants` lists the changes. All of them are put into one copy of the sources, each behind
//! a condition, and built once. Every test runs once to find the changes that it reaches. Then the
//! program switches on one change after another, and runs the tests that reach it until one fails.
//! If no test fails, the change has survived: a test is missing, or the change makes no difference.
//!
//! ```text
//! listed ─▶ schemata ─▶ compiled ─▶ suite (trace) ─▶ suite (run, one change on) ─▶ outcomes.jsonl
//! ```
//! Outcomes are written at once, so an interrupted run can continue.

mod compiled;
mod explained;
mod listed;
mod schemata;
mod suite;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::compiled::{Compiled, compile};
use crate::explained::Explained;
use crate::listed::Mutant;
use crate::suite::{Outcome, Test, empty, trace, workers};

/// A line of JSON for each change that was judged.
const OUTCOMES: &str = "outcomes.jsonl";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Finds the changes of the sources that no test notices.
#[derive(Parser)]
struct Arguments {
    /// The list that `cargo mutants --list --json` has written.
    list: PathBuf,
    /// The folder for the copy, its build, and outcomes.jsonl.
    out: PathBuf,
    /// Judge only changes of files whose paths contain one of these texts.
    #[arg(long)]
    only: Vec<String>,
    /// Seconds of tests for each change. If no test has failed by then, it is out of budget.
    #[arg(long, default_value_t = 60)]
    budget_s: u64,
    /// Judge only every n-th change.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Modules of the tests in `tests/` that are left out.
    #[arg(long)]
    without: Vec<String>,
    /// Run only the unit tests.
    #[arg(long)]
    unit: bool,
    /// Judge the changes again that no test has noticed and that are not explained, for example
    /// with more tests or a larger budget.
    #[arg(long)]
    again: bool,
    /// Only print a summary of outcomes.jsonl.
    #[arg(long)]
    report: bool,
    /// The file with the changes that no test notices, and the reasons. The run fails if another
    /// change survives.
    #[arg(long)]
    explained: PathBuf,
}

/// The result for a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Judged {
    name: String,
    file: PathBuf,
    what: Fate,
    /// The test that noticed the change.
    by: Option<String>,
    /// The number of tests that ran; `tests` is the number of tests that reach the change.
    tests_run: usize,
    tests: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Fate {
    Caught,
    TookTooLong,
    /// All tests that reach the change pass.
    Survived,
    /// All tests that ran within the budget pass.
    OutOfBudget,
    /// No test reaches the change.
    Unreached,
    /// The change is in a constant or in a condition that binds, so it cannot be switched.
    Unswitchable,
    /// The change does not compile.
    Refused,
}

impl Fate {
    /// Whether no test has noticed the change.
    fn is_open(self) -> bool {
        matches!(self, Self::Survived | Self::OutOfBudget | Self::Unreached)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::TookTooLong => "took too long",
            Self::Survived => "survived",
            Self::OutOfBudget => "out of budget",
            Self::Unreached => "unreached",
            Self::Unswitchable => "unswitchable",
            Self::Refused => "refused",
        }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let explained = Explained::read(&arguments.explained)?;
    let mutants = Mutant::read_all(&arguments.list, &arguments.only)?;
    if arguments.report {
        return summarize(&arguments.out.join(OUTCOMES), &mutants, &explained);
    }
    fs::create_dir_all(&arguments.out)?;
    let out = arguments.out.canonicalize()?;
    println!("{} changes", mutants.len());
    let compiled = compile(&std::env::current_dir()?, &out, &mutants, arguments.unit)?;
    let folder = out.join("tree/crates/regrow");
    let without: Vec<String> = arguments.without.iter().map(|module| format!("{module}::")).collect();
    let tests = trace(&compiled.binaries, &without, &folder, &out, mutants.len())?;
    let path = out.join(OUTCOMES);
    judge(arguments, &explained, &mutants, &compiled, &tests, &folder, &path)?;
    summarize(&path, &mutants, &explained)
}

fn read_outcomes(path: &Path) -> Result<Vec<Judged>, Failure> {
    let Ok(file) = File::open(path) else { return Ok(Vec::new()) };
    BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn judge(
    arguments: &Arguments,
    explained: &Explained,
    mutants: &[Mutant],
    compiled: &Compiled,
    tests: &[Test],
    folder: &Path,
    path: &Path,
) -> Result<(), Failure> {
    let mut known: HashSet<String> = HashSet::new();
    // The test that has noticed most changes of a file runs first for the next change of the file.
    // Outcomes of earlier runs count, too.
    let mut kills: HashMap<(PathBuf, String), usize> = HashMap::new();
    for judged in read_outcomes(path)? {
        if let (Fate::Caught, Some(by)) = (judged.what, &judged.by) {
            *kills.entry((judged.file.clone(), by.clone())).or_default() += 1;
        }
        if !arguments.again || !judged.what.is_open() || explained.explains(&judged) {
            known.insert(judged.name);
        }
    }
    let outcomes = Mutex::new(File::options().create(true).append(true).open(path)?);
    let kills = Mutex::new(kills);
    let next = AtomicUsize::new(0);
    let out = path.parent().unwrap_or(path);
    workers(out, folder, |room| {
        loop {
            let id = next.fetch_add(1, Ordering::Relaxed) * arguments.every;
            let Some(mutant) = mutants.get(id) else { return Ok(()) };
            if known.contains(&mutant.name) {
                continue;
            }
            let mut reaching: Vec<usize> = Vec::new();
            reaching.extend(
                tests.iter().enumerate().filter(|(_, test)| test.reaches.contains(&id)).map(|(at, _)| at),
            );
            let order = kills.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let kills_of =
                |test: &Test| order.get(&(mutant.file.clone(), test.name.clone())).copied().unwrap_or(0);
            reaching.sort_by_cached_key(|&at| {
                tests.get(at).map(|test| (std::cmp::Reverse(kills_of(test)), test.takes))
            });
            let mut judged = Judged {
                name: mutant.name.clone(),
                file: mutant.file.clone(),
                what: if reaching.is_empty() { Fate::Unreached } else { Fate::Survived },
                by: None,
                tests_run: 0,
                tests: reaching.len(),
            };
            if compiled.refused.contains(&id) {
                judged.what = Fate::Refused;
            } else if compiled.without_a_place.contains(&id) {
                judged.what = Fate::Unswitchable;
            }
            let began = Instant::now();
            let budget = Duration::from_secs(arguments.budget_s);
            for at in reaching {
                let Some(test) = tests.get(at) else { continue };
                if began.elapsed() > budget {
                    judged.what = Fate::OutOfBudget;
                    break;
                }
                judged.tests_run += 1;
                let outcome = test.run(room, ("REGROW_MUTANT", &id.to_string()), test.limit())?;
                empty(room.temporary)?;
                if outcome == Outcome::Passed {
                    continue;
                }
                judged.what = if outcome == Outcome::Failed { Fate::Caught } else { Fate::TookTooLong };
                judged.by = Some(test.name.clone());
                if outcome == Outcome::TookTooLong {
                    // The other tests would take as long, so none of them runs.
                    break;
                }
                *kills
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .entry((mutant.file.clone(), test.name.clone()))
                    .or_default() += 1;
                break;
            }
            println!(
                "{id} {:?} after {} of {}: {}",
                judged.what, judged.tests_run, judged.tests, judged.name
            );
            let mut line = serde_json::to_string(&judged)?;
            line.push('\n');
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
        }
    })
}

/// Prints the number of changes of each fate, by folder, and the changes that are neither noticed
/// nor explained. Such changes are an error.
fn summarize(path: &Path, mutants: &[Mutant], explained: &Explained) -> Result<(), Failure> {
    let mut by_folder: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
    // Skip outcomes of earlier runs under old names: a change gets a new name if its line moves.
    let listed: HashSet<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    let outcomes = read_outcomes(path)?.into_iter().filter(|judged| listed.contains(judged.name.as_str()));
    // The last outcome of a change counts.
    let last: BTreeMap<String, Judged> = outcomes.map(|judged| (judged.name.clone(), judged)).collect();
    for judged in last.values() {
        let below = judged.file.strip_prefix("crates").unwrap_or(&judged.file);
        let folder = below.parent().unwrap_or(below).display().to_string();
        let word = match judged.what {
            what if what.is_open() && explained.explains(judged) => "explained",
            what => what.word(),
        };
        *by_folder.entry(folder).or_default().entry(word).or_default() += 1;
        *by_folder.entry("all".to_owned()).or_default().entry(word).or_default() += 1;
    }
    for (folder, counts) in by_folder {
        println!("{folder}: {counts:?}");
    }
    let open: Vec<&Judged> = last.values().filter(|judged| judged.what.is_open()).collect();
    for text in explained.without_a_change(&open) {
        println!("explained, and noticed or gone: {text}");
    }
    let unexplained: Vec<&&Judged> = open.iter().filter(|judged| !explained.explains(judged)).collect();
    for judged in &unexplained {
        println!("{}: {}", judged.what.word(), judged.name);
    }
    match unexplained.len() {
        0 => Ok(()),
        count => Err(format!("{count} changes are neither noticed nor explained").into()),
    }
}
