//! The items of an opened checkpoint: their folder, their kinds, and the record of their files.

use bytes::Bytes;

use super::COMMIT_MARKERS;
use super::items_record::{ItemKind, ItemsRecord};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::is_desktop_file;
use regrow_storage::location::Location;
use regrow_store::StoreExt;

/// The opened folder of a checkpoint with items. If the checkpoint has a seal, reads check it.
#[derive(Debug)]
pub struct ItemFolder {
    /// The location of the folder.
    pub at: Location,
    /// The name of each item, and its kind in words.
    pub items: Vec<(String, String)>,
    /// The list of items that the save wrote, if it wrote one.
    pub record: Option<ItemsRecord>,
    /// Whether the caller asked for no single item, so that all items were opened.
    pub is_whole: bool,
    /// The errors of items and documents that are lost.
    pub lost: Vec<Error>,
}

const FILES: &str = "files: ";

/// Whether this kind, in words, is the kind of an item that is plain files.
pub fn is_files(kind: &str) -> bool {
    kind.starts_with(FILES)
}

impl ItemFolder {
    /// The names of the items that are plain files.
    pub fn of_files(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter(|(_, kind)| is_files(kind)).map(|(name, _)| name.as_str())
    }

    /// The files of an item, sorted by their paths below it. Checks files that have a recorded
    /// checksum. If the record lists the item's files, returns only the listed files.
    ///
    /// # Errors
    /// `Corrupt` for a file that is missing or differs from its record; errors of the storage.
    pub fn files(&self, item: &str) -> Result<Vec<(String, Bytes)>> {
        let folder = self.at.join(item);
        let store = folder.opened()?;
        let known = self.record.as_ref().and_then(|record| Some((record, record.item(item)?)));
        let names: Vec<String> = match known {
            Some((record, known))
                if matches!(known.kind, ItemKind::Files | ItemKind::Json | ItemKind::Metrics) =>
            {
                record.files_of(known).map(|(name, _)| name.to_owned()).collect()
            }
            _ => {
                let names = store.list(b"")?.into_iter().filter_map(|key| String::from_utf8(key).ok());
                let is_own = |name: &String| !COMMIT_MARKERS.contains(&name.as_str()) && !is_of_desktop(name);
                names.filter(is_own).collect()
            }
        };
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let Some(bytes) = store.get_whole(name.as_bytes())? else {
                return Err(Error::corrupt("a file of an item is missing")
                    .in_file(folder.join(&name))
                    .help("open another step, or heal this one: `regrow repair --from COPY`"));
            };
            if let Some((record, _)) = known {
                record.check(&self.at, &format!("{item}/{name}"), &bytes).in_file(folder.join(&name))?;
            }
            files.push((name, bytes));
        }
        files.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(files)
    }

    /// The errors of recorded files that are missing or changed, and of lost items.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn findings(&self) -> Result<Vec<Error>> {
        let mut findings: Vec<Error> = self.lost.iter().map(Error::duplicate).collect();
        let Some(record) = &self.record else { return Ok(findings) };
        let store = self.at.opened()?;
        for file in &record.files {
            let path = self.at.join(&file.name).describe();
            let is_said = findings
                .iter()
                .any(|said| said.place().file.as_ref().is_some_and(|lost| path.starts_with(lost)));
            if !is_said {
                findings.extend(ItemsRecord::look(&*store, file)?);
            }
        }
        Ok(findings)
    }
}

fn is_of_desktop(path: &str) -> bool {
    is_desktop_file(path.rsplit('/').next().unwrap_or(path))
}
