//! The members of an archive: their names and the positions of their bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use crate::bytes::zip;
use crate::error::{Error, ErrorKind, Result};
use crate::system::name_of_bytes;
use crate::{Entry, EntryKind};

/// An archive with more members than this is refused.
const MEMBERS_MAX: usize = 10_000_000;

/// Longest name. A zip has 16 bits for the length of a name.
const NAME_LEN_MAX_BYTES: usize = u16::MAX as usize;

/// Longest total length of all names.
const NAMES_LEN_MAX_BYTES: usize = 1 << 30;

/// The members of an archive, by name.
///
/// - A name consists of parts with slashes between them. No part is empty, `.` or `..`, and no name
///   begins with a slash.
/// - No name lies below the name of a value: a value is not a folder.
#[derive(Debug, Default)]
pub(super) struct Index {
    members: BTreeMap<Box<[u8]>, Member>,
    names_len_bytes: usize,
}

/// What a name in an archive refers to.
#[derive(Debug, Clone)]
pub(super) enum Member {
    /// A file: its bytes.
    Value(Value),
    /// A folder that has its own member. Most folders have none: they exist only because members
    /// lie below them.
    Folder,
    /// Something without bytes, such as a link. The text describes it: `a symbolic link`.
    Other(&'static str),
}

/// The bytes of a member.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub len_bytes: u64,
    pub place: Place,
}

/// Where the bytes of a member lie in the archive.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// The bytes begin at this offset, uncompressed.
    At(u64),
    /// The bytes lie behind a header, which is read when the bytes are first needed.
    Behind(Arc<BehindHeader>),
    /// The bytes cannot be read in place. The text says why: `compressed`.
    Refused(&'static str),
}

/// A member of a zip archive, known only from the directory.
#[derive(Debug)]
pub(super) struct BehindHeader {
    pub header: zip::Header,
    /// Where the next member or the directory begins.
    pub end_bytes: u64,
    /// Where the data begins, once it is known.
    pub offset_bytes: OnceLock<u64>,
}

impl Index {
    /// Adds a member under its [clean](clean) name. Returns the member that had this name before.
    ///
    /// # Errors
    /// `Limit` if the archive has too many members; `Corrupt` for bytes without a name.
    pub(super) fn insert(&mut self, name: Vec<u8>, member: Member) -> Result<Option<Member>> {
        if name.is_empty() {
            // The member `./` is the folder that was packed.
            return match member {
                Member::Folder => Ok(None),
                _ => Err(Error::corrupt("a member of the archive has no name")),
            };
        }
        self.names_len_bytes = self.names_len_bytes.saturating_add(name.len());
        if self.names_len_bytes > NAMES_LEN_MAX_BYTES || self.members.len() >= MEMBERS_MAX {
            return Err(Error::new(ErrorKind::Limit, "the archive has too many members").expected(
                format_args!("at most {MEMBERS_MAX}, with names of {NAMES_LEN_MAX_BYTES} bytes in all"),
                "more",
            ));
        }
        match self.members.entry(name.into_boxed_slice()) {
            Slot::Occupied(mut slot) => Ok(Some(slot.insert(member))),
            Slot::Vacant(slot) => {
                slot.insert(member);
                Ok(None)
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_no_folder = |member: &Member| !matches!(member, Member::Folder);
        for (name, _) in self.members.iter().filter(|(_, member)| is_no_folder(member)) {
            if self.has_below(name) {
                let name = String::from_utf8_lossy(name);
                return Err(Error::corrupt(format!("{name:?} is both a file and a folder in the archive")));
            }
        }
        Ok(())
    }

    /// The member of this name; a folder if any member lies below the name.
    pub(super) fn member(&self, name: &[u8]) -> Option<Member> {
        match self.members.get(name) {
            Some(member) => Some(member.clone()),
            None if name.is_empty() || self.has_below(name) => Some(Member::Folder),
            None => None,
        }
    }

    pub(super) fn value(&self, name: &[u8]) -> Option<&Value> {
        match self.members.get(name) {
            Some(Member::Value(value)) => Some(value),
            _ => None,
        }
    }

    /// All values whose names begin with `prefix`, in the order of their names.
    pub(super) fn values<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let from = self.members.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        let below = from.take_while(move |(name, _)| name.starts_with(prefix));
        below.filter(|(_, member)| matches!(member, Member::Value(_))).map(|(name, _)| &**name)
    }

    /// The names directly below a folder. The result is empty if the folder is empty or the name is
    /// not a folder.
    pub(super) fn entries(&self, folder: &[u8]) -> Vec<Entry> {
        let prefix = folder_prefix(folder);
        let mut entries = Vec::new();
        let mut from = Bound::Included(prefix.clone());
        // Each step skips all names below an entry, so a folder of a million members costs one
        // step.
        loop {
            let range = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let next = self.members.range::<[u8], _>(range).next();
            let Some((name, member)) = next.filter(|(name, _)| name.starts_with(&prefix)) else {
                return entries;
            };
            let rest = name.get(prefix.len()..).unwrap_or_default();
            let end = rest.iter().position(|&byte| byte == b'/');
            let part = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            let found = match (end, member) {
                (Some(_), _) | (None, Member::Folder) => EntryKind::Folder,
                (None, Member::Value(_)) => EntryKind::File,
                (None, Member::Other(_)) => EntryKind::Other,
            };
            let is_link = end.is_none() && matches!(member, Member::Other(_));
            // A folder may have its own member and members below it. Names such as `a-b` may sort
            // between the two.
            let is_twice = found == EntryKind::Folder && end.is_some() && {
                let whole = [prefix.as_slice(), part].concat();
                self.members.contains_key(whole.as_slice())
            };
            if !is_twice {
                entries.push(Entry { name: name_of_bytes(part), found, is_link });
            }
            from = match end {
                // `0` is the byte after `/`, so this bound skips all names below the folder.
                Some(_) => Bound::Included([prefix.as_slice(), part, b"0"].concat()),
                None => Bound::Excluded(name.to_vec()),
            };
        }
    }

    fn has_below(&self, name: &[u8]) -> bool {
        let prefix = folder_prefix(name);
        let from = (Bound::Included(prefix.as_slice()), Bound::Unbounded);
        self.members.range::<[u8], _>(from).next().is_some_and(|(below, _)| below.starts_with(&prefix))
    }
}

/// The prefix of all names below a folder.
pub(super) fn folder_prefix(folder: &[u8]) -> Vec<u8> {
    match folder.is_empty() {
        true => Vec::new(),
        false => [folder, b"/"].concat(),
    }
}

/// Normalizes a name: `./a//b/` and `/a/b` become `a/b`. The top becomes the empty name.
///
/// # Errors
/// `Corrupt` if the name leads out of the archive or cannot be a path; `Limit` if it is too long.
pub(super) fn clean(name: &[u8]) -> Result<Vec<u8>> {
    let shown = || String::from_utf8_lossy(name.get(..name.len().min(200)).unwrap_or_default());
    if name.len() > NAME_LEN_MAX_BYTES {
        return Err(Error::new(
            ErrorKind::Limit,
            format!("the name {:?}... of an archive's member", shown()),
        )
        .expected(format_args!("at most {NAME_LEN_MAX_BYTES} bytes"), name.len()));
    }
    if name.contains(&0) {
        return Err(Error::corrupt(format!("the name {:?} of an archive's member has a zero byte", shown())));
    }
    let mut cleaned = Vec::with_capacity(name.len());
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                return Err(Error::corrupt(format!("the name {:?} points outside the archive", shown()))
                    .help("pack it again, with names below one folder"));
            }
            part => {
                if !cleaned.is_empty() {
                    cleaned.push(b'/');
                }
                cleaned.extend_from_slice(part);
            }
        }
    }
    Ok(cleaned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[&str]) -> Index {
        let mut index = Index::default();
        for name in names {
            let member = match name.ends_with('/') {
                true => Member::Folder,
                false => Member::Value(Value { len_bytes: 0, place: Place::At(0) }),
            };
            index.insert(clean(name.as_bytes()).unwrap(), member).unwrap();
        }
        index
    }

    #[test]
    fn folders_are_listed_each_once() {
        let index = index(&["./", "a/", "a-b", "a/x", "a/y/z", "a0", "b/c/d", "b/c/e", "b!", "/abs/x"]);
        index.check().unwrap();
        let names = |folder: &str| {
            let entries = index.entries(folder.as_bytes());
            let mut names: Vec<_> = entries
                .iter()
                .map(|entry| format!("{}{}", entry.name.display(), if entry.is_folder() { "/" } else { "" }))
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(""), ["a-b", "a/", "a0", "abs/", "b!", "b/"]);
        assert_eq!(names("a"), ["x", "y/"]);
        assert_eq!(names("b"), ["c/"]);
        assert_eq!(names("b/c"), ["d", "e"]);
        assert_eq!(names("a-b"), [""; 0]);
        assert!(matches!(index.member(b"b"), Some(Member::Folder)));
        assert!(matches!(index.member(b""), Some(Member::Folder)));
        assert!(index.member(b"c").is_none());
        assert_eq!(index.values(b"a/").collect::<Vec<_>>(), [&b"a/x"[..], b"a/y/z"]);
    }

    #[test]
    fn names_that_are_no_paths_are_refused() {
        assert_eq!(clean(b"./a//b/.").unwrap(), b"a/b");
        for name in [&b"../x"[..], b"a/../b", b"a/..", b"a\0b"] {
            assert_eq!(clean(name).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(clean(&vec![b'x'; 1 << 20]).unwrap_err().kind(), ErrorKind::Limit);
        assert!(index(&["a", "a-b", "a/b"]).check().is_err());
        let value = Member::Value(Value { len_bytes: 0, place: Place::At(0) });
        assert!(Index::default().insert(Vec::new(), value).is_err());
    }
}
