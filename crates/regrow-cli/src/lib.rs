//! The `regrow` command. It shows checkpoints, verifies, compares, converts, copies and removes
//! them, and writes pages about them.
//!
//! ```text
//! the program `regrow`            main(arguments, None)
//! the Python package              main(arguments, Some(&packages))
//! ```
//! [`main`] is the only function. Programs find everything else in the crate `regrow`.
//!
//! Each command is a file in `cmd` that calls the library. Data goes to stdout through `out`.
//! Reports go to stderr. `exit` decides the exit code of a failure.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind as UsageKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

mod bar;
mod build;
mod cmd;
mod exit;
mod out;
mod signals;
mod slice;
mod values;

use bar::Bar;
use cmd::{
    cat::Cat, completions::Completions, convert::Convert, cp::Cp, demo::Demo, diff::Diff, doctor::Doctor,
    info::Info, ls::Ls, man::Man, parity::Parity, repair::Repair, report::Report, rm::Rm, seal::Seal,
    sign::Sign, steps::Steps, tree::Tree, verify::Verify,
};
use exit::{Exit, Failure};
use regrow::engine::ByteSize;
use regrow::location::{Location, is_url};
use regrow::options::LostFiles;
use regrow::{Cache, Checkpoint, Error, Monitor, OpenOptions, PublicKey};
use regrow_base::text::printable_lines;

const AFTER_HELP: &str = "\
Examples:
  regrow info step_100
  regrow ls step_100 'params/**' --sort bytes
  regrow verify run --all-steps
  regrow convert step_100 model.safetensors

Options of a command: regrow help COMMAND
Options of every command (--json, --step, --item ...): regrow help options

Exit codes: 0 fine, 1 damage or a difference found, 2 wrong usage, 3 cannot read, \
4 repair found no damage but no proof of every file";

const AFTER_COMMAND_HELP: &str = "Options of every command: regrow help options";

/// Look into pytree checkpoints, verify, compare, convert, copy and remove them.
///
/// Reads and writes its own layout, Orbax, Flax msgpack, Equinox, safetensors, npy, npz, data and
/// manifest, and TRAK stores. Reads PyTorch files.
#[derive(Debug, Parser)]
#[command(
    name = "regrow",
    version,
    long_version = build::LONG_VERSION.as_str(),
    after_help = AFTER_HELP,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// The options of every command.
#[derive(Debug, Args)]
struct Globals {
    /// Print JSON: the result on stdout, an error on stderr.
    #[arg(long, global = true)]
    json: bool,
    /// Open this step of a folder of steps. [default: newest committed step]
    #[arg(long, global = true, value_name = "N")]
    step: Option<u64>,
    /// Open this item of a checkpoint of several items.
    #[arg(long, global = true, value_name = "NAME")]
    item: Option<String>,
    /// If files of the checkpoint are lost: print a warning, or fail.
    #[arg(long, global = true, value_name = "ACTION", default_value = "warn")]
    lost_files: OnLostFiles,
    /// Open npy, npz and Equinox files as plain arrays, without the pytree stored with them.
    #[arg(long, global = true)]
    arrays_only: bool,
    /// Read a sealed checkpoint without its seal, for example after a change on purpose.
    #[arg(long, global = true)]
    ignore_seal: bool,
    /// Read only what this public key signed (`regrow sign`). KEY is a file (PEM, OpenSSH) or 64
    /// hex digits. Repeatable: one key must fit.
    // Clap repeats a value that it refuses. This one might be a private key, so clap takes any
    // text.
    #[arg(long = "trusted-key", global = true, value_name = "KEY", allow_hyphen_values = true)]
    trusted_keys_given: Vec<String>,
    /// The parsed keys.
    #[arg(skip)]
    trusted_keys: Vec<PublicKey>,
    /// Sizes in tables: `human` (1.5 MiB) or `bytes` (1572864). [default: human on a terminal, else
    /// bytes]
    #[arg(long, global = true, value_name = "FORM")]
    sizes: Option<Sizes>,
    /// Show no progress bar.
    #[arg(long, global = true)]
    no_progress: bool,
    /// Wait this many seconds for another process that changes the checkpoint. [default: 60]
    #[arg(long, global = true, value_name = "SECONDS")]
    wait: Option<u32>,
    /// Option of a URL's storage: `endpoint_url=http://localhost:9000`, `anon=true`. Repeatable.
    /// Other users of the machine can see it: put secrets into environment variables.
    #[arg(long = "storage-option", global = true, value_name = "NAME=VALUE", value_parser = name_and_value)]
    storage_options: Vec<(String, String)>,
    /// Keep bytes of buckets and web servers in this folder for later commands. Not used by
    /// `verify`, `diff`, `report`, `convert` and `cp`.
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Largest size of the --cache folder.
    #[arg(long, global = true, value_name = "SIZE", default_value = "10GiB", requires = "cache")]
    cache_size: ByteSize,
    /// How many storage options there are on the command line.
    #[arg(skip)]
    storage_options_given: usize,
}

/// What a command does if files of a checkpoint are lost.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnLostFiles {
    Warn,
    Error,
}

/// How tables show sizes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sizes {
    Human,
    Bytes,
}

/// A package of Python that regrow works with, as `regrow doctor` shows it.
#[derive(Debug, Clone)]
pub struct Package {
    /// The name of the package in its registry: `jax`.
    pub name: String,
    /// Its version; `None` if it is not installed.
    pub version: Option<String>,
    /// What it is needed for.
    pub used_for: String,
}

/// A function that finds the Python packages when the command needs them. The first is Python
/// itself.
pub type Packages<'a> = &'a (dyn Fn() -> Vec<Package> + Sync);

fn public_keys(texts: &[String]) -> Result<Vec<PublicKey>, Failure> {
    texts.iter().map(|text| PublicKey::parse_or_read(text)).collect::<Result<_, _>>().map_err(Failure::Usage)
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a storage option has the form NAME=VALUE".to_owned()),
    }
}

impl Globals {
    fn wait(&self) -> Option<Duration> {
        self.wait.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// A progress bar for long work, hidden if the options say so, and the monitor that moves it.
    fn bar(&self, message: &'static str) -> (Bar, Monitor) {
        Bar::new(message, !self.no_progress && !self.json)
    }

    fn size(&self, bytes: u64) -> String {
        let default = if out::terminal_width().is_some() { Sizes::Human } else { Sizes::Bytes };
        match self.sizes.unwrap_or(default) {
            Sizes::Human => out::size(bytes),
            Sizes::Bytes => bytes.to_string(),
        }
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            step: self.step,
            item: self.item.clone(),
            lost_files: match self.lost_files {
                OnLostFiles::Warn => LostFiles::Warn,
                OnLostFiles::Error => LostFiles::Error,
            },
            arrays_only: self.arrays_only,
            ignore_seal: self.ignore_seal,
            trusted_keys: self.trusted_keys.clone(),
            ..OpenOptions::default()
        }
    }

    /// The location of a path or URL. Only URLs get the storage options.
    fn locate(&self, path: &Path) -> Result<Location, Error> {
        match is_url(path) {
            true => Location::with_options(path, &self.storage_options.iter().cloned().collect()),
            false => Location::parse(path),
        }
    }

    /// Returns an error if a step or an item is given to a command that needs a whole checkpoint.
    fn refuse_step_and_item(&self) -> Result<(), Failure> {
        match (self.step, &self.item) {
            (None, None) => Ok(()),
            _ => Err(Failure::Usage(
                Error::invalid("this command takes whole checkpoints: --step and --item have no effect")
                    .help("give the path of the step itself"),
            )),
        }
    }

    fn refuse_step_with_all(&self, all_steps: bool) -> Result<(), Failure> {
        match self.step.filter(|_| all_steps) {
            None => Ok(()),
            Some(_) => Err(Failure::Usage(
                Error::invalid("--step and --all-steps exclude each other").help("leave out one of the two"),
            )),
        }
    }

    /// Returns an error if an item is given to a command that needs a whole checkpoint or step.
    fn refuse_item(&self) -> Result<(), Failure> {
        match &self.item {
            None => Ok(()),
            Some(_) => Err(Failure::Usage(
                Error::invalid("this command takes whole checkpoints: --item has no effect")
                    .help("leave it out: the command takes all items"),
            )),
        }
    }

    /// Returns an error if storage options are given without a URL, or if some would be ignored.
    fn check_storage_options(&self, paths: &[&Path]) -> Result<(), Error> {
        // If options stand before and after the command's name, clap returns only the later ones.
        if self.storage_options_given > self.storage_options.len() {
            return Err(Error::invalid("storage options are before and after the command")
                .help("give all of them after the command"));
        }
        match self.storage_options.first() {
            Some((name, _)) if !paths.iter().any(|path| is_url(path)) => {
                Err(Error::invalid(format!("the storage option {name:?} needs a URL, and no path is one"))
                    .help("leave it out, or give a URL such as s3://bucket/path"))
            }
            _ => Ok(()),
        }
    }

    /// Opens a checkpoint, and prints its warnings about missing files on stderr.
    fn open(&self, path: &Path) -> Result<Checkpoint, Error> {
        let mut location = self.locate(path)?;
        if let Some(folder) = &self.cache {
            location = location.cached(&Cache::at(folder)?.with_len_max_bytes(self.cache_size.0));
        }
        let checkpoint = regrow::open_with(location, &self.open_options())?;
        for warning in &checkpoint.description().warnings {
            out::warn(&format!("warning: {}: {warning}", path.display()));
        }
        Ok(checkpoint)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Info(Info),
    Tree(Tree),
    Cat(Cat),
    Verify(Verify),
    Diff(Diff),
    Report(Report),
    // This variant is much larger than the others.
    Convert(Box<Convert>),
    Cp(Cp),
    Rm(Rm),
    Seal(Seal),
    Sign(Sign),
    Parity(Parity),
    Repair(Repair),
    Steps(Steps),
    Demo(Demo),
    Doctor(Doctor),
    /// Show the options of every command.
    Options,
    Completions(Completions),
    Man(Man),
}

impl Command {
    fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Ls(ls) => vec![ls.path()],
            Self::Info(info) => vec![info.path()],
            Self::Tree(tree) => vec![tree.path()],
            Self::Cat(cat) => vec![cat.path()],
            Self::Verify(verify) => verify.paths(),
            Self::Diff(diff) => diff.paths(),
            Self::Report(report) => report.paths(),
            Self::Convert(convert) => convert.paths(),
            Self::Cp(cp) => cp.paths(),
            Self::Rm(rm) => vec![rm.path()],
            Self::Seal(seal) => vec![seal.path()],
            Self::Sign(sign) => vec![sign.path()],
            Self::Parity(parity) => vec![parity.path()],
            Self::Repair(repair) => repair.paths(),
            Self::Steps(steps) => vec![steps.path()],
            Self::Demo(demo) => demo.paths(),
            Self::Doctor(doctor) => vec![doctor.path()],
            Self::Options | Self::Completions(_) | Self::Man(_) => Vec::new(),
        }
    }
}

impl Cli {
    fn check_trusted_keys(&self) -> Result<(), Error> {
        let is_asked = match &self.command {
            Command::Ls(_)
            | Command::Info(_)
            | Command::Tree(_)
            | Command::Cat(_)
            | Command::Verify(_)
            | Command::Diff(_)
            | Command::Report(_)
            | Command::Convert(_) => true,
            Command::Cp(_)
            | Command::Rm(_)
            | Command::Seal(_)
            | Command::Sign(_)
            | Command::Parity(_)
            | Command::Repair(_)
            | Command::Steps(_)
            | Command::Demo(_)
            | Command::Doctor(_)
            | Command::Options
            | Command::Completions(_)
            | Command::Man(_) => false,
        };
        if is_asked || self.globals.trusted_keys.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("this command does not check signatures: --trusted-key has no effect")
            .help("leave it out, and verify the checkpoint with --trusted-key before or after"))
    }
}

/// The command line. The options that every command has are on one help page, `options`.
fn command_line() -> clap::Command {
    let globals = Globals::augment_args(clap::Command::new(""));
    on_one_page(Cli::command(), None)
        .mut_args(|option| if option.is_global_set() { option.hide(true) } else { option })
        .mut_subcommands(|command| match command.get_name() {
            "options" => {
                let command = command.override_usage("regrow COMMAND [OPTIONS]").disable_help_flag(true);
                command.args(globals.get_arguments())
            }
            _ => on_one_page(command, Some(AFTER_COMMAND_HELP)),
        })
}

/// Moves the details of a command below its options and above the examples. Without details, clap
/// prints each option on one line, both for `-h` and for `--help`.
fn on_one_page(command: clap::Command, last: Option<&str>) -> clap::Command {
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let details = long.split_once("\n\n").map(|(_, details)| details.to_owned());
    let examples = command.get_after_help().map(ToString::to_string);
    let parts = [details, examples, last.map(str::to_owned)];
    let after = parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n");
    command.long_about(None::<&str>).after_help(after)
}

/// If the user typed a command of another tool or an old option, adds the current name to the
/// error.
fn suggest(usage: &mut clap::Error) {
    const OLD_OPTIONS: [(&str, &str); 2] = [("--bare", "--arrays-only"), ("--strict", "--lost-files error")];
    const WORDS: [(&str, &[&str]); 8] = [
        ("info", &["show", "inspect", "overview", "describe", "summary", "stat"]),
        ("ls", &["list", "dir", "leaves"]),
        ("tree", &["du", "structure"]),
        ("cat", &["print", "get", "head"]),
        ("verify", &["check", "validate", "fsck", "test"]),
        ("diff", &["compare", "cmp"]),
        ("cp", &["copy", "sync", "upload", "download"]),
        ("rm", &["remove", "delete", "del"]),
    ];
    if let (UsageKind::UnknownArgument, Some(ContextValue::String(word))) =
        (usage.kind(), usage.get(ContextKind::InvalidArg))
    {
        if let Some((_, option)) = OLD_OPTIONS.iter().find(|(old, _)| old == word) {
            usage.insert(ContextKind::SuggestedArg, ContextValue::String((*option).to_owned()));
        }
        return;
    }
    let Some(ContextValue::String(word)) = usage.get(ContextKind::InvalidSubcommand) else { return };
    let known = WORDS.iter().find(|(_, words)| words.contains(&word.as_str()));
    if let (UsageKind::InvalidSubcommand, Some((command, _))) = (usage.kind(), known) {
        let commands = ContextValue::Strings(vec![(*command).to_owned()]);
        usage.insert(ContextKind::SuggestedSubcommand, commands);
    }
}

/// Runs the command, and returns the exit code of the process. The first argument is the name of
/// the program.
///
/// Uses the stdout, stderr and stdin of the process directly, and not the buffers of Python.
pub fn main(arguments: impl IntoIterator<Item = OsString>, packages: Option<Packages<'_>>) -> u8 {
    signals::ignore_file_size_limit();
    let exit = run_and_report(&arguments.into_iter().collect::<Vec<_>>(), packages);
    // The caller's process may continue, and no other code flushes stdout. Errors were reported
    // before, or the pipe is closed.
    let _ = std::io::stdout().flush();
    exit as u8
}

fn run_and_report(arguments: &[OsString], packages: Option<Packages<'_>>) -> Exit {
    let parsed = command_line().try_get_matches_from(arguments);
    let mut cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(mut usage) => {
            suggest(&mut usage);
            // Help and version are not failures. Clap chooses the stream. Ignore a closed pipe.
            if !usage.use_stderr() {
                let _ = usage.print();
                return Exit::Fine;
            }
            // Clap prints the user's arguments. If these contain control characters, print the text
            // escaped and without colours.
            let text = usage.render().to_string();
            match printable_lines(&text) {
                Cow::Borrowed(_) => drop(usage.print()),
                Cow::Owned(_) => out::warn(text.trim_end()),
            }
            return Exit::WrongUsage;
        }
    };
    let before_names = arguments.iter().take_while(|argument| *argument != "--");
    cli.globals.storage_options_given =
        before_names.filter(|argument| argument.as_encoded_bytes().starts_with(b"--storage-option")).count();
    let keys = public_keys(&cli.globals.trusted_keys_given);
    let ended = keys.and_then(|keys| {
        cli.globals.trusted_keys = keys;
        run(&cli, packages)
    });
    ended.unwrap_or_else(|failure| {
        failure.report(cli.globals.json);
        failure.exit()
    })
}

fn run(cli: &Cli, packages: Option<Packages<'_>>) -> Result<Exit, Failure> {
    let mut out = out::stdout();
    cli.globals.check_storage_options(&cli.command.paths()).map_err(Failure::Usage)?;
    cli.check_trusted_keys().map_err(Failure::Usage)?;
    let exit = match &cli.command {
        Command::Ls(ls) => ls.run(&cli.globals, &mut out),
        Command::Info(info) => info.run(&cli.globals, &mut out),
        Command::Tree(tree) => tree.run(&cli.globals, &mut out),
        Command::Cat(cat) => cat.run(&cli.globals, &mut out),
        Command::Verify(verify) => verify.run(&cli.globals, &mut out),
        Command::Diff(diff) => diff.run(&cli.globals, &mut out),
        Command::Report(report) => report.run(&cli.globals, &mut out),
        Command::Convert(convert) => convert.run(&cli.globals, &mut out),
        Command::Cp(cp) => cp.run(&cli.globals, &mut out),
        Command::Rm(rm) => rm.run(&cli.globals, &mut out),
        Command::Seal(seal) => seal.run(&cli.globals, &mut out),
        Command::Sign(sign) => sign.run(&cli.globals, &mut out),
        Command::Parity(parity) => parity.run(&cli.globals, &mut out),
        Command::Repair(repair) => repair.run(&cli.globals, &mut out),
        Command::Steps(steps) => steps.run(&cli.globals, &mut out),
        Command::Demo(demo) => demo.run(&cli.globals, &mut out),
        Command::Doctor(doctor) => doctor.run(&cli.globals, packages, &mut out),
        Command::Options => cmd::options::run(&mut out),
        Command::Completions(completions) => completions.run(&mut out),
        Command::Man(man) => man.run(),
    }?;
    out.flush()?;
    Ok(exit)
}
