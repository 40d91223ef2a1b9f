//! Removes a checkpoint from a bucket: first its markers, then the other objects.
//!
//! ```text
//! the target is locked  no other process replaces or removes the checkpoint
//! a claim is created    readers take the folder for one that is being written as soon as the marker is gone
//! the markers go        now the folder is no checkpoint
//! the objects go, and the claim last
//! ```
//! A killed removal leaves the same objects as a killed save, and the next save to the same target
//! removes them.

use std::sync::Arc;

use super::listing::Listing;
use super::marker::{
    CLAIM, Claim, MARKER, MOVED, OTHER_MARKER, Running, SETTLING, Sweeping, claim_of_siblings,
    is_bookkeeping, nonce, take_left,
};
use super::settle::{Copies, Hold, settle_moved, sweep};
use super::target::{
    NOT_ENDED_AROUND, check_gone, check_replaceable, claim_around, claim_siblings, has_begun, left_beside,
    left_for_good, not_ended,
};
use super::{Conditional, Extent, Keys, Object, Objects, key_of, split};
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::{RESPECTED_FOR, Removal, Removed, UNCOMMITTED_MARK, is_recent};

pub(super) fn remove(objects: &Arc<dyn Objects>, at: &Location, what: &Removal) -> Result<Removed> {
    match what {
        Removal::Folder => remove_folder(objects, at),
        Removal::Files { files, beside } => {
            let all: Vec<Location> = beside.iter().chain(files).cloned().collect();
            // A pytree of a data file and a manifest is named by a path that neither file has.
            match files.iter().any(|file| file.is_same(at)) {
                true => remove_files(objects, &all),
                false => remove_siblings(objects, at, &all, files),
            }
        }
    }
}

fn remove_files(objects: &Arc<dyn Objects>, files: &[Location]) -> Result<Removed> {
    let mut removed = Removed::default();
    for file in files {
        let key = key_of(objects, file.path())?;
        let Some(object) = objects.head(&key)? else { continue };
        objects.delete(&[key])?;
        removed.add(object.len_bytes);
    }
    Ok(removed)
}

/// Removes the side files of several files of one stem, and then the files. The file that makes the
/// checkpoint is removed before the other files. Without it, the other files count as files of an
/// unfinished removal.
fn remove_siblings(
    objects: &Arc<dyn Objects>,
    at: &Location,
    all: &[Location],
    files: &[Location],
) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    let nonce = nonce()?;
    let _running = Running::begin(&nonce);
    let suffix = |file: &Location| file.name_text().strip_prefix(&*at.name_text()).map(str::to_owned);
    let suffixes = files.iter().rev().map(suffix).collect::<Option<Vec<_>>>().unwrap_or_default();
    claim_siblings(objects, at, &key, &Claim { suffixes, ..Claim::new(&nonce) })?;
    let removed = remove_files(objects, all);
    objects.delete(&[claim_of_siblings(&key)])?;
    removed
}

fn remove_folder(objects: &Arc<dyn Objects>, at: &Location) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a whole bucket cannot be a checkpoint").in_file(at));
    }
    let below = settle_moved(objects, &key, Listing::of_checkpoint(objects, format!("{key}/"))?)?;
    if let Some(claim) = below.object(CLAIM).filter(|_| !below.is_marked())
        && let Some((found, _)) = objects.get(&claim.key)?
    {
        check_gone(at, Claim::parse(&found).as_ref())?;
    }
    check_replaceable(objects, at, &below).map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => error.help(
            "a removal would delete them too: move them elsewhere, or remove the folder \
                yourself",
        ),
        _ => error,
    })?;
    let hold = Hold::take(objects, &key)?;
    // Another process may have replaced this checkpoint by now, or removed it and begun another
    // one.
    let now = Listing::of_checkpoint(objects, below.prefix().to_owned())?;
    let has_begun = now.object(CLAIM).is_some() && !now.is_marked();
    if now.object(MOVED).is_some() || has_begun || below.is_marked() != now.is_marked() {
        return Err(Error::new(ErrorKind::AlreadyExists, "a save to this path has just ended or begun")
            .in_file(at)
            .help("check the path"));
    }
    let claim = format!("{key}/{CLAIM}");
    // A claim beside the marker has no meaning any more.
    objects.delete(std::slice::from_ref(&claim))?;
    let nonce = nonce()?;
    let _running = Running::begin(&nonce);
    if let Conditional::Lost(..) = objects.create(&claim, Claim::new(&nonce).to_bytes())? {
        return Err(Error::new(ErrorKind::AlreadyExists, "a save to this path has begun").in_file(at));
    }
    objects.delete(&[format!("{key}/{MARKER}"), format!("{key}/{OTHER_MARKER}")])?;
    let mut left = objects.list(&format!("{key}/"))?;
    // Keep the claim and the lock of the target until the end.
    left.retain(|object| object.key != claim && object.key != format!("{key}/{SETTLING}"));
    let mut removed = delete_all(objects, left)?;
    // Remove the temporary files of overwrites: the next save finds nothing to replace, and does
    // not look for them.
    let swept = sweep(objects, &key, Copies::Stay);
    drop(hold);
    // Delete the claim last: it marks the other objects as those of a dead writer.
    objects.delete(&[claim])?;
    swept?;
    if let Some(marker) = below.object(MARKER) {
        removed.add(marker.len_bytes);
    }
    Ok(removed)
}

/// Removes objects, claims last. Returns the number and length of the removed objects, without
/// bookkeeping objects.
fn delete_all(objects: &Arc<dyn Objects>, all: Vec<Object>) -> Result<Removed> {
    let mut removed = Removed::default();
    let (claims, others): (Vec<Object>, Vec<Object>) =
        all.into_iter().partition(|object| [CLAIM, SETTLING].iter().any(|claim| object.key.ends_with(claim)));
    others
        .iter()
        .filter(|object| !is_bookkeeping(object.key.rsplit('/').next().unwrap_or_default()))
        .for_each(|object| removed.add(object.len_bytes));
    for part in [others, claims] {
        objects.delete(&part.into_iter().map(|object| object.key).collect::<Vec<_>>())?;
    }
    Ok(removed)
}

/// Returns an error if a save, copy or removal in a folder, or of a checkpoint around it, has not
/// ended.
pub(super) fn check_finished(objects: &Arc<dyn Objects>, at: &Location) -> Result<()> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Ok(());
    }
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    if !below.is_empty() && is_begun(&below) {
        return Err(not_ended("a save, copy or removal of this checkpoint has not ended", at));
    }
    // A checkpoint with its own marker is complete, even if files around it are removed.
    match claim_around(objects, at)?.filter(|_| !below.is_marked()) {
        Some((around, _)) => Err(not_ended(NOT_ENDED_AROUND, &around)),
        None => Ok(()),
    }
}

/// Moves a checkpoint to its target if its writer died before the move. Returns whether there was
/// such a checkpoint.
pub(super) fn finish_unfinished(objects: &Arc<dyn Objects>, at: &Location) -> Result<bool> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Ok(false);
    }
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    let is_moved = below.object(MOVED).is_some();
    settle_moved(objects, &key, below).map(|_| is_moved)
}

pub(super) fn remove_unfinished(objects: &Arc<dyn Objects>, at: &Location, force: bool) -> Result<Removed> {
    let key = key_of(objects, at.path())?;
    if key.is_empty() {
        return Err(Error::invalid("a whole bucket cannot be a checkpoint").in_file(at));
    }
    if let Some((target, _)) = key.split_once(UNCOMMITTED_MARK) {
        // An overwrite that was killed at its end has its checkpoint in this folder.
        settle_moved(objects, target, Listing::of_checkpoint(objects, format!("{target}/"))?)?;
    }
    let mut removed = None;
    let mut take = |all: Vec<Object>| -> Result<()> {
        removed.get_or_insert_with(Removed::default).merge(delete_all(objects, all)?);
        Ok(())
    };
    let below = Listing::of_checkpoint(objects, format!("{key}/"))?;
    if !below.is_empty() && (at.name_text().contains(UNCOMMITTED_MARK) || is_begun(&below)) {
        let dead = check_dead(objects, at, &below, force)?;
        if let Some(left) = left_for_good(objects, at, &below)? {
            let _swept = take_claim_of(objects, at, dead)?;
            take(left)?;
        }
    } else if below.object(MOVED).is_some() {
        // The loop below removes the folder that the pointer names, so finish the overwrite first.
        settle_moved(objects, &key, below)?;
    }
    let (parent, name) = split(key.as_ref());
    let parent = if parent.as_os_str().is_empty() { String::new() } else { format!("{}/", parent.display()) };
    let Keys { objects: files, folders, .. } = objects.keys(&parent, Extent::Level)?;
    let is_left =
        |other: &str| other.strip_prefix(&name).is_some_and(|rest| rest.starts_with(UNCOMMITTED_MARK));
    for folder in folders.iter().filter(|folder| is_left(folder)) {
        let left = Listing::of_checkpoint(objects, format!("{parent}{folder}/"))?;
        let at = at.with_name(folder);
        let dead = check_dead(objects, &at, &left, force)?;
        if let Some(left) = left_for_good(objects, &at, &left)? {
            let _swept = take_claim_of(objects, &at, dead)?;
            take(left)?;
        }
    }
    for claim in files.into_iter().filter(|file| is_left(file.key.get(parent.len()..).unwrap_or_default())) {
        let Some((bytes, claim)) = objects.get(&claim.key)? else { continue };
        let found = Claim::parse(&bytes);
        if !force {
            check_gone(at, found.as_ref())?;
        }
        let _swept = take_claim_of(objects, at, Some(claim.clone()))?;
        let mut brought = Vec::new();
        for suffix in left_beside(objects, &key, found.as_ref())? {
            brought.extend(objects.head(&format!("{key}{suffix}"))?);
        }
        // Delete the claim last: other saves wait until it is gone.
        take(brought)?;
        take(vec![claim])?;
    }
    removed.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no unfinished save").in_file(at))
}

/// Whether a listing shows a save, copy or removal that has begun and not ended.
fn is_begun(listing: &Listing) -> bool {
    let is_held_alone = listing.objects().all(|(name, _)| name == SETTLING);
    (listing.object(CLAIM).is_some() || is_held_alone)
        && !listing.is_marked()
        && listing.object(MOVED).is_none()
}

/// Takes the claim of a dead writer, if there is one, until the writer's files are removed.
fn take_claim_of(
    objects: &Arc<dyn Objects>,
    at: &Location,
    dead: Option<Object>,
) -> Result<Option<Sweeping>> {
    match dead {
        Some(dead) => take_left(objects, &dead)?.map(Some).ok_or_else(|| has_begun(at)),
        None => Ok(None),
    }
}

/// Returns an error if the writer of a folder may still live. Otherwise returns its claim, if any.
fn check_dead(
    objects: &Arc<dyn Objects>,
    at: &Location,
    listing: &Listing,
    force: bool,
) -> Result<Option<Object>> {
    // Once the pointer exists, the process that finishes the overwrite holds a claim of its own.
    if let Some(claim) = listing.object(CLAIM).or_else(|| listing.object(SETTLING)) {
        let found = objects.get(&claim.key)?;
        if !force {
            check_gone(at, found.as_ref().and_then(|(bytes, _)| Claim::parse(bytes)).as_ref())?;
        }
        return Ok(found.map(|(_, object)| object));
    }
    if force {
        return Ok(None);
    }
    let modified = listing.objects().map(|(_, object)| object.modified).max();
    match is_recent(modified) {
        false => Ok(None),
        true => Err(Error::new(ErrorKind::AlreadyExists, "its writer may still be running")
            .in_file(at)
            .expected(format_args!("no change for {} minutes", RESPECTED_FOR.as_secs() / 60), "a later one")
            .help("wait until it ends; if that process is dead, pass `force`")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::super::marker::Moved;
    use super::super::{Facts, MemoryObjects, ObjectStorage, ObjectWrites, Tag, Upload};
    use super::*;
    use crate::PublishOptions;
    use crate::monitor::Monitor;

    /// Work of the writer right after another process has read its claim.
    type Interlude = fn(&MemoryObjects);

    /// A bucket in which another process works at the same time.
    struct Overtaken {
        objects: MemoryObjects,
        interlude: Mutex<Option<Interlude>>,
        /// Whether objects can be replaced under a condition. Some servers cannot do this.
        knows_conditions: bool,
    }

    impl std::fmt::Debug for Overtaken {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.objects.fmt(f)
        }
    }

    impl Objects for Overtaken {
        fn url(&self, key: &str) -> String {
            self.objects.url(key)
        }
        fn facts(&self) -> Facts {
            self.objects.facts()
        }
        fn head(&self, key: &str) -> Result<Option<Object>> {
            self.objects.head(key)
        }
        fn get_up_to(&self, key: &str, len_max_bytes: u64) -> Result<Option<(Bytes, Object)>> {
            let found = self.objects.get_up_to(key, len_max_bytes);
            if key.ends_with(CLAIM)
                && let Some(interlude) = self.interlude.lock().unwrap().take()
            {
                interlude(&self.objects);
            }
            found
        }
        fn read(&self, object: &Object, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
            self.objects.read(object, offset_bytes, out)
        }
        fn keys(&self, begins: &str, extent: Extent) -> Result<Keys> {
            self.objects.keys(begins, extent)
        }
        fn writes(&self, _key: &str) -> Result<&dyn ObjectWrites> {
            Ok(self)
        }
        #[cfg(feature = "cloud")]
        fn cache_name(&self) -> Option<String> {
            None
        }
    }

    impl ObjectWrites for Overtaken {
        fn put(&self, key: &str, bytes: Bytes) -> Result<Tag> {
            self.objects.put(key, bytes)
        }
        fn create(&self, key: &str, bytes: Bytes) -> Result<Conditional> {
            self.objects.create(key, bytes)
        }
        fn replace(&self, old: &Object, bytes: Bytes) -> Result<Conditional> {
            match self.knows_conditions {
                true => self.objects.replace(old, bytes),
                false => Err(Error::unsupported("this server does not know If-Match")),
            }
        }
        fn delete(&self, keys: &[String]) -> Result<()> {
            self.objects.delete(keys)
        }
        fn copy(&self, from: &Object, to: &str) -> Result<Tag> {
            self.objects.copy(from, to)
        }
        fn upload(&self, key: &str, expected_len_bytes: u64) -> Result<Box<dyn Upload>> {
            self.objects.upload(key, expected_len_bytes)
        }
    }

    const STAGED: &str = "x.orbax-checkpoint-tmp-of-it";

    /// A folder in which a writer of this process has started a save and ended.
    fn begun(folder: &str, interlude: Option<Interlude>) -> (Arc<dyn Objects>, Location) {
        let objects = MemoryObjects::new("b");
        objects.put(&format!("{folder}/{CLAIM}"), Claim::new("of-it").to_bytes()).unwrap();
        objects.put(&format!("{folder}/data"), Bytes::from_static(b"...")).unwrap();
        let (interlude, knows_conditions) = (Mutex::new(interlude), true);
        let objects: Arc<dyn Objects> = Arc::new(Overtaken { objects, interlude, knows_conditions });
        let at = Location::new(Arc::new(ObjectStorage::new(Arc::clone(&objects))), "x");
        (objects, at)
    }

    fn names(objects: &Arc<dyn Objects>) -> Vec<String> {
        objects.list("").unwrap().into_iter().map(|object| object.key).collect()
    }

    fn commits(objects: &MemoryObjects) {
        objects.put(&format!("x/{MARKER}"), Bytes::new()).unwrap();
        objects.delete(&[format!("x/{CLAIM}")]).unwrap();
    }

    fn commits_and_cannot_remove_its_claim(objects: &MemoryObjects) {
        objects.put(&format!("x/{MARKER}"), Bytes::new()).unwrap();
    }

    fn commits_an_overwrite(objects: &MemoryObjects) {
        let moved = Moved { nonce: "of-it".to_owned(), folder: STAGED.to_owned() };
        objects.put(&format!("{STAGED}/{MARKER}"), Bytes::new()).unwrap();
        objects.put(&format!("x/{MOVED}"), moved.to_bytes()).unwrap();
        objects.delete(&[format!("{STAGED}/{CLAIM}")]).unwrap();
    }

    fn makes_room_for_another(objects: &MemoryObjects) {
        objects.put(&format!("x/{CLAIM}"), Claim::new("of another").to_bytes()).unwrap();
    }

    #[test]
    fn what_a_writer_that_is_gone_has_left_goes() {
        for folder in ["x", STAGED] {
            for force in [false, true] {
                let (objects, at) = begun(folder, None);
                remove_unfinished(&objects, &at, force).unwrap();
                assert_eq!(names(&objects), Vec::<String>::new(), "{folder}");
            }
        }
        let (objects, _) = begun(STAGED, None);
        sweep(&objects, "x", Copies::Go).unwrap();
        assert_eq!(names(&objects), Vec::<String>::new());
    }

    #[test]
    fn a_claim_is_taken_over_from_a_server_that_knows_no_conditions() {
        let bucket = MemoryObjects::new("b");
        let (interlude, knows_conditions) = (Mutex::new(None), false);
        let objects: Arc<dyn Objects> =
            Arc::new(Overtaken { objects: bucket.clone(), interlude, knows_conditions });
        let dead = |objects: &Arc<dyn Objects>| {
            objects.put("x", Claim::new("of the dead").to_bytes()).unwrap();
            objects.head("x").unwrap().unwrap()
        };
        let now = || Claim::parse(&objects.get("x").unwrap().unwrap().0).unwrap();
        let found = dead(&objects);
        let running = take_left(&objects, &found).unwrap().unwrap();
        assert!(now().is_sweeping && !now().is_gone());
        drop(running);
        assert!(now().is_gone(), "who has taken it has ended");
        // With conditional writes, the second of two processes does not get the claim.
        let objects: Arc<dyn Objects> = Arc::new(bucket);
        let found = dead(&objects);
        let running = take_left(&objects, &found).unwrap().unwrap();
        assert!(take_left(&objects, &found).unwrap().is_none());
        // The drop releases the claim, so the next removal can take it.
        drop(running);
        let left = Claim::parse(&objects.get("x").unwrap().unwrap().0).unwrap();
        assert!(left.is_released && !left.is_sweeping);
    }

    #[test]
    fn what_has_committed_before_its_writer_was_gone_stays() {
        let cases: [(&str, Interlude, ErrorKind); 4] = [
            ("x", commits, ErrorKind::NotFound),
            ("x", commits_and_cannot_remove_its_claim, ErrorKind::NotFound),
            (STAGED, commits_an_overwrite, ErrorKind::NotFound),
            ("x", makes_room_for_another, ErrorKind::AlreadyExists),
        ];
        for (at_case, (folder, interlude, kind)) in cases.into_iter().enumerate() {
            let (objects, at) = begun(folder, Some(interlude));
            let error = remove_unfinished(&objects, &at, false).unwrap_err();
            assert_eq!(error.kind(), kind, "{at_case}: {error}");
            let data = format!("{folder}/data");
            assert!(names(&objects).contains(&data), "{at_case}: {:?}", names(&objects));
        }
        let (objects, _) = begun(STAGED, Some(commits_an_overwrite));
        sweep(&objects, "x", Copies::Go).unwrap();
        assert!(names(&objects).contains(&format!("{STAGED}/data")), "{:?}", names(&objects));
    }

    #[test]
    fn files_of_one_stem_that_may_belong_to_others_stay() {
        let suffixes = |all: &[&str]| all.iter().map(|suffix| (*suffix).to_owned()).collect::<Vec<_>>();
        let (pair, data) = (suffixes(&[".data", ".manifest"]), suffixes(&[".data"]));
        let other = suffixes(&[".data", ".json"]);
        // For each case: the suffixes in the claim, the files that exist, and whether the data
        // counts as a file of the dead writer.
        let cases = [
            (&pair, vec![".data"], true),
            (&pair, vec![".data", ".manifest"], false),
            (&data, vec![".data"], false),
            (&other, vec![".data", ".json"], false),
            (&other, vec![".data"], true),
            (&Vec::new(), vec![".data"], false),
            (&suffixes(&["/data", ".data", ".manifest"]), vec![".data"], false),
        ];
        for (number, (claimed, there, is_left)) in cases.into_iter().enumerate() {
            let begin = || -> (Arc<dyn Objects>, Location) {
                let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("b"));
                let claim = Claim { suffixes: claimed.clone(), ..Claim::new("of the dead") };
                objects.put(&claim_of_siblings("x"), claim.to_bytes()).unwrap();
                for suffix in &there {
                    objects.put(&format!("x{suffix}"), Bytes::from_static(b"...")).unwrap();
                }
                let at = Location::new(Arc::new(ObjectStorage::new(Arc::clone(&objects))), "x");
                (objects, at)
            };
            let has_data = |objects: &Arc<dyn Objects>| objects.head("x.data").unwrap().is_some();
            let (objects, at) = begin();
            remove_unfinished(&objects, &at, false).unwrap();
            assert_eq!(has_data(&objects), !is_left, "{number}");
            assert!(objects.head(&claim_of_siblings("x")).unwrap().is_none(), "{number}");
            // A save without `overwrite` replaces only files of a dead writer.
            let (objects, at) = begin();
            let monitor = Monitor::new();
            let begun = at.publish_siblings(&pair, PublishOptions::of_new(&monitor));
            assert_eq!(begun.is_ok(), is_left, "{number}: {begun:?}");
            if let Err(error) = begun {
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{number}");
                assert!(has_data(&objects), "{number}");
            }
        }
    }

    /// The folder `x` around the target has a dead writer's claim. The folder `x/1` has a marker or
    /// not.
    #[test]
    fn what_is_part_of_something_unfinished_is_told_by_its_own_marker() {
        for (is_marked, nested) in [(false, "x/1"), (true, "x/1"), (false, "x/1/item"), (true, "x/1/item")] {
            let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("b"));
            objects.put(&format!("x/{CLAIM}"), Claim::new("of the dead").to_bytes()).unwrap();
            objects.put(&format!("{nested}/data"), Bytes::from_static(b"...")).unwrap();
            if is_marked {
                objects.put(&format!("x/1/{MARKER}"), Bytes::new()).unwrap();
            }
            let storage = Arc::new(ObjectStorage::new(Arc::clone(&objects)));
            let said = |error: Error| (error.kind(), error.place().file.clone());
            let around = Some((ErrorKind::Uncommitted, Some(Location::new(storage.clone(), "x").describe())));
            let at = Location::new(storage.clone(), nested);
            let expected = around.clone().filter(|_| !is_marked);
            assert_eq!(check_finished(&objects, &at).err().map(said), expected, "{nested} {is_marked}");
            // A new step in the folder `x` is refused in all cases. A new file in the complete
            // checkpoint `x/1` is accepted.
            let monitor = Monitor::new();
            let terms = PublishOptions::of_overwrite(&monitor);
            let step = Location::new(storage.clone(), "x/2");
            assert_eq!(step.publish_folder(terms).err().map(said), around, "{nested} {is_marked}");
            let file = at.with_name("file").publish_file(terms);
            let expected = if nested == "x/1" { around } else { expected };
            assert_eq!(file.err().map(said), expected, "{nested} {is_marked}");
        }
    }

    /// The removal of a dead save's files ends while a new save waits for it.
    #[test]
    fn a_save_that_has_waited_for_a_removal_looks_again() {
        let pair = [".data".to_owned(), ".manifest".to_owned()];
        for (overwrite, is_removed) in [(false, true), (true, true), (false, false)] {
            let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new("b"));
            let claim = Claim { is_sweeping: true, suffixes: pair.to_vec(), ..Claim::new("of a removal") };
            let running = super::super::marker::Running::begin(&claim.nonce);
            objects.put(&claim_of_siblings("x"), claim.to_bytes()).unwrap();
            objects.put("x.data", Bytes::from_static(b"...")).unwrap();
            let at = Location::new(Arc::new(ObjectStorage::new(Arc::clone(&objects))), "x");
            std::thread::scope(|scope| {
                let removes = scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    let data = is_removed.then(|| "x.data".to_owned());
                    objects.delete(&data.into_iter().collect::<Vec<_>>()).unwrap();
                    objects.delete(&[claim_of_siblings("x")]).unwrap();
                });
                let monitor = Monitor::new();
                let terms = PublishOptions { overwrite, ..PublishOptions::of_new(&monitor) };
                let begun = at.publish_siblings(&pair, terms);
                removes.join().unwrap();
                assert_eq!(begun.is_ok(), is_removed, "{overwrite}: {begun:?}");
                // The next save treats all of these files as files of a dead writer.
                let now =
                    objects.get(&claim_of_siblings("x")).unwrap().and_then(|(now, _)| Claim::parse(&now));
                assert_eq!(now.map(|now| now.suffixes), is_removed.then(|| pair.to_vec()), "{overwrite}");
            });
            drop(running);
        }
    }
}
