//! Files that are lost, made of the others: each layout knows which.

use std::path::{Path, PathBuf};

use super::guard::Guard;
use super::{RepairOptions, RepairReport, is_damage};
use crate::error::{Error, Result};
use crate::formats::{self, builtin_formats};
use crate::location::Location;
use crate::reads::Block;
use crate::seal::{DAMAGED_PREFIX, Seal};
use crate::signature;
use crate::storage::{Entry, UNCOMMITTED_MARK};
use crate::store::StoreExt;

/// Of files that say the same as others, one may bring back another, and that one a third.
const ROUNDS_MAX: usize = 3;

/// Says that what is below a folder are its items.
pub(super) const OF_ITEMS: [&str; 2] = ["_CHECKPOINT_METADATA", "orbax.checkpoint"];

/// What lies beside the arrays of one pytree, and is no item.
const PARTS: [&str; 3] = ["d", "array_metadatas", "ocdbt.process_"];

/// Items that have no such file beside them, of former times.
const ITEMS: [&str; 3] = ["default", "state", "params"];

/// A file that was lost or damaged, and was made anew of the others.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecoveredFile {
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// What it was made of, and what is not sure about it.
    pub how: String,
    /// Whether nothing proves that it says what was there before: checksums of files as they are now, metadata of another
    /// step. What was there is kept beside it, as `regrow.damaged.NAME`.
    pub is_guess: bool,
}

/// Makes files anew, of the checkpoint in a folder and of its items.
///
/// # Errors
/// What the storage says. Files that were written by then are whole.
pub(super) fn recover(
    at: &Location,
    options: &RepairOptions,
    guard: &Guard<'_>,
    report: &mut RepairReport,
) -> Result<()> {
    if !at.is_folder() {
        return Ok(());
    }
    let proof = Proof::of(at)?;
    let writing = Writing { options, guard, proof: &proof };
    for folder in [vec![at.clone()], items_of(at)?].concat() {
        let other = options.from.as_ref().map(|from| of_item(from, at, &folder));
        let mut rounds = 0;
        while recover_in(&folder, other.as_ref(), &writing, report)? && !options.check && rounds < ROUNDS_MAX
        {
            rounds += 1;
        }
    }
    Ok(())
}

/// True if anything was done.
fn recover_in(
    folder: &Location,
    other: Option<&Location>,
    writing: &Writing<'_>,
    report: &mut RepairReport,
) -> Result<bool> {
    let options = writing.options;
    for format in builtin_formats() {
        options.monitor.check()?;
        let files = match format.recovery().map(|it| it.recover(folder, other)) {
            Some(Ok(files)) => files,
            None => Vec::new(),
            // What it would be made of is damaged, too.
            Some(Err(error)) if is_damage(&error, folder) => {
                add(&mut report.lost, error);
                Vec::new()
            }
            Some(Err(error)) => return Err(error),
        };
        if !files.is_empty() {
            return write(folder, files, writing, report);
        }
        // The first that knows the folder is the one that reads it.
        if format.recognise(folder).unwrap_or(false) {
            break;
        }
    }
    Ok(false)
}

/// How files are written, and which.
struct Writing<'w> {
    options: &'w RepairOptions,
    guard: &'w Guard<'w>,
    proof: &'w Proof,
}

/// What a checkpoint was when it was sealed or signed. What is put back under that is just this, or nothing: another one
/// would break it for good, and a replica could not mend it.
struct Proof(Vec<Seal>);

impl Proof {
    fn of(at: &Location) -> Result<Self> {
        let seal = match Seal::found(at) {
            Err(error) if is_damage(&error, at) => None,
            found => found?,
        };
        Ok(Self(seal.into_iter().chain(signature::unverified(at)?).collect()))
    }

    /// Whether these bytes may be written to a file of this path below a folder; true where nothing is sealed or signed.
    fn allows(&self, file: &Location, bytes: &[u8]) -> bool {
        self.0.iter().all(|seal| {
            let below = file.below(&seal.place.folder);
            let listed = seal.files.iter().find(|listed| Path::new(&listed.name) == below);
            listed.is_some_and(|listed| {
                let part =
                    |block: Block| bytes.get(block.start as usize..block.end as usize).unwrap_or_default();
                listed.len_bytes == bytes.len() as u64
                    && listed
                        .table
                        .blocks(0, listed.len_bytes)
                        .all(|block| listed.table.is_good(block, part(block)))
            })
        })
    }
}

/// True if anything was written.
fn write(
    folder: &Location,
    files: Vec<formats::RecoveredFile>,
    writing: &Writing<'_>,
    report: &mut RepairReport,
) -> Result<bool> {
    let mut has_written = false;
    let options = writing.options;
    if let Some(other) =
        files.iter().find(|file| !writing.proof.allows(&folder.join(&file.name), &file.bytes))
    {
        let other = folder.join(&other.name);
        add(
            &mut report.lost,
            Error::corrupt("what could be made is not what was sealed or signed").in_file(other).help(
                "`--from` takes it from a copy; or take the seal away (`regrow seal --remove`), or the signature, and repair again",
            ),
        );
    }
    for formats::RecoveredFile { name, bytes, how, is_guess } in files {
        if !writing.proof.allows(&folder.join(&name), &bytes) {
            continue;
        }
        has_written = true;
        let (path, len_bytes) = (folder.join(&name).describe(), bytes.len() as u64);
        if !options.check {
            writing.guard.check_folder()?;
            if is_guess {
                put_aside(folder, &name)?;
            }
            folder.store().put(name.as_bytes(), bytes.into())?;
            writing.guard.has_written()?;
        }
        match report.recovered.iter_mut().find(|file| file.path == path) {
            // Made once more, with what has come back meanwhile.
            Some(file) => file.bytes = len_bytes,
            None => report.recovered.push(RecoveredFile { path, bytes: len_bytes, how, is_guess }),
        }
    }
    Ok(has_written)
}

/// Keeps what is there of a file for which there is only a guess: somebody may mend it by hand. The first that was kept stays.
fn put_aside(folder: &Location, name: &str) -> Result<()> {
    let (above, file) = name.rsplit_once('/').map_or(("", name), |(above, file)| (above, file));
    let aside = match above {
        "" => format!("{DAMAGED_PREFIX}{file}"),
        above => format!("{above}/{DAMAGED_PREFIX}{file}"),
    };
    let store = folder.store();
    match store.get_whole(name.as_bytes()) {
        Ok(Some(bytes)) if bytes.iter().any(|&byte| byte != 0) => match store.len_bytes(aside.as_bytes())? {
            None => store.put(aside.as_bytes(), bytes),
            Some(_) => Ok(()),
        },
        Ok(_) => Ok(()),
        Err(error) if is_damage(&error, folder) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Adds an error unless it has been said.
fn add(lost: &mut Vec<Error>, error: Error) {
    if !lost.iter().any(|known| known.to_string() == error.to_string()) {
        lost.push(error);
    }
}

/// The item of another checkpoint that has the name of this one; of what is no item, and where there is none, the other itself.
pub(super) fn of_item(other: &Location, at: &Location, folder: &Location) -> Location {
    let item = other.join(folder.name());
    if folder.is_same(at) || !item.is_folder() { other.clone() } else { item }
}

/// The folders of the items of a checkpoint that has some.
pub(super) fn items_of(at: &Location) -> Result<Vec<Location>> {
    if !at.has_listings() {
        return Ok(Vec::new());
    }
    let has_items = at.first_file(&OF_ITEMS).is_some();
    let is_part =
        |name: &str| PARTS.iter().any(|part| name == *part || part.ends_with('_') && name.starts_with(part));
    let is_item = |name: &str| {
        (has_items || ITEMS.contains(&name)) && !name.contains(UNCOMMITTED_MARK) && !is_part(name)
    };
    let folders = at.entries()?.into_iter().filter(|entry| Entry::is_folder(entry) && !entry.is_link);
    let names = folders.filter_map(|folder| folder.name.into_string().ok());
    Ok(names.filter(|name| is_item(name)).map(|name| at.join(name)).collect())
}
