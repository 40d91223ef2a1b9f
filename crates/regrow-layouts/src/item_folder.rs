//! The items of an opened checkpoint: the positions of their files, and their records.

use bytes::Bytes;

use super::COMMIT_MARKERS;
use super::items_record::{ItemKind, ItemsRecord};
use regrow_base::error::{Error, Result, ResultExt};
use regrow_storage::is_desktop_file;
use regrow_storage::location::Location;
use regrow_store::StoreExt;

/// The folder of a checkpoint of items, as it was opened: under its seal, if it has one.
#[derive(Debug)]
pub struct ItemFolder {
    /// Where it is.
    pub at: Location,
    /// Name and kind in words.
    pub items: Vec<(String, String)>,
    /// The list of items that the save wrote, if it wrote one.
    pub record: Option<ItemsRecord>,
    /// Whether no item was asked for: all of them were opened.
    pub is_whole: bool,
    /// What is lost of the items and the documents.
    pub lost: Vec<Error>,
}

/// What the kind of an item begins with, in words, that is files as they are.
const FILES: &str = "files: ";

/// Whether the kind of an item, in words, says that it is files as they are.
pub fn is_files(kind: &str) -> bool {
    kind.starts_with(FILES)
}

impl ItemFolder {
    /// The names of the items that are files as they are.
    pub fn of_files(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter(|(_, kind)| is_files(kind)).map(|(name, _)| name.as_str())
    }

    /// The files of an item by their names below it, in the order of these, each checked where a
    /// checksum is recorded. Of what is recorded, these files and no others.
    ///
    /// # Errors
    /// `Corrupt` for a file that is missing or is another one; errors of the storage.
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

    /// What is wrong with the files that are recorded, and what is lost.
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
