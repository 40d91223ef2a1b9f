//! Restores a damaged seal or signature from a replica, if every file here matches it.

use super::{RecoveredFile, Repair, RepairReport, by_checksums, is_damage};
use crate::error::{Error, Result};
use crate::location::Location;
use crate::seal::{Place, Seal, SealDocument};
use crate::signature;
use crate::store::StoreExt;

/// Repairs the seal and the signature of the checkpoint at a location. A missing one is not
/// written, because it may never have existed.
pub(super) fn restore(repair: &Repair<'_>, from: &Location, report: &mut RepairReport) -> Result<()> {
    let at = repair.at;
    for side in [SEAL, SIGNATURE] {
        let (place, theirs) = ((side.place_of)(at), (side.place_of)(from));
        // An item has no seal of its own: the seal of the whole checkpoint covers it.
        if !place.file.is_file() || place.covers_folder != theirs.covers_folder {
            continue;
        }
        let read = |place: &Place| match place.read(side.name) {
            Err(error) if is_damage(&error, &place.file) => Ok(None),
            read => read,
        };
        if read(&place)?.is_some_and(|bytes| (side.in_use)(&bytes, place.clone()).is_ok()) {
            continue;
        }
        let damaged =
            |what: &str| Error::corrupt(format!("{} is damaged, and {what}", side.name)).in_file(&place.file);
        let renamed = |bytes: Vec<u8>| (side.renamed)(bytes, &theirs.stem, &place.stem).ok();
        let bytes = read(&theirs)?.and_then(renamed);
        let Some((bytes, seal)) =
            bytes.and_then(|bytes| (side.in_use)(&bytes, place.clone()).ok().map(|seal| (bytes, seal)))
        else {
            report.lost.push(damaged("the other checkpoint has no usable one").help(side.help));
            continue;
        };
        if !by_checksums::fits(seal, at, &repair.options.monitor)? {
            let what = "the one of the other checkpoint does not fit the files of this one";
            report.lost.push(damaged(what).help(side.help));
            continue;
        }
        let (path, len_bytes) = (place.file.describe(), bytes.len() as u64);
        if !repair.options.check {
            place.file.parent().store().put(place.file.name().as_encoded_bytes(), bytes.into())?;
        }
        let how = "taken from the other checkpoint: it fits every file of this one".to_owned();
        report.recovered.push(RecoveredFile { path, bytes: len_bytes, how, is_guess: false });
    }
    Ok(())
}

/// A kind of side file that has checksums of the checkpoint's files.
struct Side {
    name: &'static str,
    help: &'static str,
    place_of: fn(&Location) -> Place,
    /// Its bytes after a rename of the files. The prefix of the names changes from the first text
    /// to the second.
    renamed: fn(Vec<u8>, &str, &str) -> Result<Vec<u8>>,
    in_use: fn(&[u8], Place) -> Result<Seal>,
}

const SEAL: Side = Side {
    name: "the seal",
    help: "if the checkpoint is right, seal it again: `regrow seal`",
    place_of: Place::of,
    renamed: |bytes, from, to| {
        let mut document = SealDocument::parse(&bytes)?;
        document.rename(from, to);
        document.to_bytes()
    },
    in_use: Seal::of,
};

const SIGNATURE: Side = Side {
    name: "the signature",
    help: "sign the checkpoint again with the key: `regrow sign`",
    place_of: signature::place_of,
    // A signature does not record the beginning of the file names.
    renamed: |bytes, _, _| Ok(bytes),
    in_use: signature::of_its_own_keys,
};
