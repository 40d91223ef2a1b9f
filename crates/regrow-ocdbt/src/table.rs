//! The data file table that opens every manifest, version tree node and B+tree node.
//!
//! ```text
//! | num_files n | path_prefix_length x n-1 | path_suffix_length x n | base_path_length x n | suffix bytes |
//! ```
//!
//! A name is `base + rel`, relative to the structure's *transitive path* T: the file is `T + base +
//! rel`, and a node found in it is read with `T + base` as its own T. So a database can refer to
//! the nodes of another database below it. A name shares a prefix with the previous name. Names are
//! untrusted: [`DataFile::path`] is returned only after a check that it stays inside the database's
//! folder.

use std::sync::Arc;

use crate::bytes::varint::write_varint;
use crate::error::Result;

use super::fields::Fields;
use super::rule::Rule;

/// The longest path, with T; also the longest key.
pub(super) const PATH_LEN_MAX_BYTES: usize = 65535;

const FILE_LEN_MIN_BYTES: u64 = 2;

/// One file that a structure may point into.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct DataFile {
    /// T + base + rel.
    path: Arc<[u8]>,
    /// Length of T + base.
    transitive_len: usize,
    safe: bool,
}

impl DataFile {
    /// A file of the database itself, with T empty.
    pub(super) fn new(base: &[u8], relative: &[u8]) -> Self {
        let path: Arc<[u8]> = [base, relative].concat().into();
        let safe = is_safe(&path);
        Self { path, transitive_len: base.len(), safe }
    }

    /// The file's key in the store of the database; `E_PATH` if the path is empty or could lead
    /// elsewhere.
    pub(super) fn path(&self) -> Result<&Arc<[u8]>> {
        if self.safe {
            return Ok(&self.path);
        }
        Err(Rule::Path
            .error(format_args!("the data file name {:?} is not safe", self.path.escape_ascii().to_string()))
            .help("do not use this database: its data files must be inside its folder"))
    }

    /// The unchecked name, for comparing and for writing it again.
    pub(super) fn base_and_relative(&self) -> (&[u8], &[u8]) {
        self.path.split_at(self.transitive_len.min(self.path.len()))
    }

    /// The transitive path T of a node in this file.
    pub(super) fn transitive(&self) -> &[u8] {
        self.base_and_relative().0
    }
}

/// Whether a path leads to a file below the folder: no component is empty, `.`, `..` or a lock.
pub(super) fn is_safe(path: &[u8]) -> bool {
    let component_is_safe = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.ends_with(b".__lock");
    path.len() <= PATH_LEN_MAX_BYTES
        && !path.contains(&0)
        && path.split(|&byte| byte == b'/' || byte == b'\\').all(component_is_safe)
}

/// Reads a table of names below the transitive path. The total length of all paths is at most
/// `paths_len_max_bytes`.
pub(super) fn read(
    input: &mut Fields<'_>,
    transitive: &[u8],
    paths_len_max_bytes: u64,
) -> Result<Vec<DataFile>> {
    let count = input.v64("num_files")?;
    let count = input.fits(count, FILE_LEN_MIN_BYTES, "num_files")?;
    let prefix_lens = input.column(count.saturating_sub(1), "path_prefix_length", Fields::v16)?;
    let suffix_lens = input.column(count, "path_suffix_length", Fields::v16)?;
    let base_lens = input.column(count, "base_path_length", Fields::v16)?;

    let prefix_lens = std::iter::once(0).chain(prefix_lens);
    let mut files = Vec::with_capacity(count);
    let mut path = transitive.to_vec();
    let mut base_before = 0;
    let mut total_bytes = 0_u64;
    for (i, ((prefix_len, suffix_len), base_len)) in prefix_lens.zip(suffix_lens).zip(base_lens).enumerate() {
        let (prefix_len, suffix_len) = (usize::from(prefix_len), usize::from(suffix_len));
        let base_len = usize::from(base_len);
        let broken =
            |what: &str| input.fail(Rule::Table, format_args!("path {i} of the data file table {what}"));
        if prefix_len > path.len() - transitive.len() {
            return Err(broken("shares more bytes than the previous path has"));
        }
        let path_len = prefix_len + suffix_len;
        if transitive.len() + path_len > PATH_LEN_MAX_BYTES {
            return Err(broken("is too long")
                .expected(format_args!("at most {PATH_LEN_MAX_BYTES} bytes"), transitive.len() + path_len));
        }
        if base_len > path_len {
            return Err(
                broken("is shorter than its base").expected(format_args!("at least {base_len}"), path_len)
            );
        }
        if prefix_len > base_len.min(base_before) && base_len != base_before {
            return Err(broken("shares bytes past the end of a base path"));
        }
        path.truncate(transitive.len() + prefix_len);
        path.extend_from_slice(input.take(suffix_len, "path_suffix")?);
        total_bytes += path.len() as u64;
        if total_bytes > paths_len_max_bytes {
            return Err(input.fail(Rule::Limit, "the names in the data file table are too long together"));
        }
        let transitive_len = transitive.len() + base_len;
        files.push(DataFile { safe: is_safe(&path), path: path.as_slice().into(), transitive_len });
        base_before = base_len;
    }
    Ok(files)
}

pub(super) fn file_at<'f>(files: &'f [DataFile], id: u64, input: &Fields<'_>) -> Result<&'f DataFile> {
    usize::try_from(id).ok().and_then(|id| files.get(id)).ok_or_else(|| {
        input
            .fail(Rule::FileId, "data_file_id is beyond the data file table")
            .expected(format_args!("below {}", files.len()), id)
    })
}

/// Appends a table of `(base, relative)` pairs, which are distinct and in order.
pub(super) fn write(out: &mut Vec<u8>, files: &[(&[u8], &[u8])]) {
    // `shared[i]` counts the bytes that `files[i]` shares with the file before. It includes
    // relative paths only where the bases are equal.
    let shared: Vec<usize> = std::iter::once(0)
        .chain(files.iter().zip(files.iter().skip(1)).map(|(before, file)| {
            if before.0 == file.0 {
                file.0.len() + common_prefix_len(before.1, file.1)
            } else {
                common_prefix_len(before.0, file.0)
            }
        }))
        .collect();
    let len = |&(base, relative): &(&[u8], &[u8])| base.len() + relative.len();

    write_varint(out, files.len() as u64);
    for &shared in shared.iter().skip(1) {
        write_varint(out, shared as u64);
    }
    for (file, shared) in files.iter().zip(&shared) {
        write_varint(out, (len(file) - shared) as u64);
    }
    for (base, _) in files {
        write_varint(out, base.len() as u64);
    }
    for ((base, relative), &shared) in files.iter().zip(&shared) {
        let of_relative = shared.saturating_sub(base.len());
        out.extend_from_slice(base.get(shared..).unwrap_or_default());
        out.extend_from_slice(relative.get(of_relative..).unwrap_or_default());
    }
}

/// The length of the common prefix of two names or keys.
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    const WORD: usize = 8;
    let (words, _) = a.as_chunks::<WORD>();
    let (others, _) = b.as_chunks::<WORD>();
    let equal = WORD * words.iter().zip(others).take_while(|(a, b)| a == b).count();
    let rest = a.iter().zip(b).skip(equal);
    equal + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_merged_parents_table_is_written_as_tensorstore_writes_it() {
        let (first, second) =
            (&b"d/8ef6530ad19750ae5133c8417aecc310"[..], &b"d/310e82c592f2d67f81c27718deeebd7f"[..]);
        let mut out = Vec::new();
        write(&mut out, &[(b"ocdbt.process_0/", first), (b"ocdbt.process_1/", second)]);
        let head = [2, 0x0e, 0x32, 0x24, 0x10, 0x10];
        let expected = [
            &head[..],
            b"ocdbt.process_0/d/8ef6530ad19750ae5133c8417aecc3101/d/310e82c592f2d67f81c27718deeebd7f",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_followed() {
        for path in
            ["", "/d/x", "d//x", "d/../x", "../x", "..\\x", "./x", "d/x.__lock", "d/x.__lock/y", "d/\0", "d/"]
        {
            assert!(DataFile::new(b"", path.as_bytes()).path().is_err(), "{path:?}");
        }
        for path in ["x", "d/x", "a.b/..c", "model.safetensors"] {
            assert!(DataFile::new(b"", path.as_bytes()).path().is_ok(), "{path:?}");
        }
    }

    #[test]
    fn the_rules_of_shared_prefixes_hold() {
        let rule = |bytes: &[u8]| Rule::of(&read(&mut Fields::new(bytes), b"", 1 << 20).unwrap_err());
        assert_eq!(rule(&[1, 1, 2, b'a']), Some(Rule::Table), "base longer than the path");
        assert_eq!(rule(&[2, 2, 1, 0, 0, 0, b'a']), Some(Rule::Table), "prefix longer than the path before");
        let below = read(&mut Fields::new(&[2, 2, 1, 0, 0, 0, b'a']), b"below/", 1 << 20).unwrap_err();
        assert_eq!(Rule::of(&below), Some(Rule::Table), "also where what leads there is longer");
        assert_eq!(rule(&[2, 2, 2, 0, 1, 2, b'a', b'b']), Some(Rule::Table), "prefix past a base");
        assert_eq!(rule(&[2, 0]), Some(Rule::Eof), "count that cannot fit");
        assert_eq!(rule(&[1, 3, 0, b'a']), Some(Rule::Eof));
        let long = vec![b'x'; PATH_LEN_MAX_BYTES];
        let error = read(&mut Fields::new(&[1, 1, 0, b'a']), &long, 1 << 20).unwrap_err();
        assert_eq!(Rule::of(&error), Some(Rule::Table), "T counts");
        let (expected, found) = error.expected_found().unwrap();
        assert!(expected.ends_with("65535 bytes") && found == "65536", "{expected}, {found}");
        // The longest path; then the same path with a smaller limit for all paths together.
        let fits = read(&mut Fields::new(&[1, 1, 0, b'a']), &long[1..], PATH_LEN_MAX_BYTES as u64).unwrap();
        assert_eq!(fits[0].path.len(), PATH_LEN_MAX_BYTES);
        let error =
            read(&mut Fields::new(&[1, 1, 0, b'a']), &long[1..], PATH_LEN_MAX_BYTES as u64 - 1).unwrap_err();
        assert_eq!(Rule::of(&error), Some(Rule::Limit));
        // Two paths: "aaa", and "ab", which shares one byte. Together they have five bytes.
        let two = [2, 1, 3, 1, 0, 0, b'a', b'a', b'a', b'b'];
        assert_eq!(read(&mut Fields::new(&two), b"", 5).unwrap().len(), 2);
        assert_eq!(Rule::of(&read(&mut Fields::new(&two), b"", 4).unwrap_err()), Some(Rule::Limit));
    }

    proptest! {
        #[test]
        fn prefixes_end_where_bytes_differ(common in "[ab]{0,20}", a in "[cd]{0,20}", b in "[ef]{0,20}") {
            let (a, b) = (format!("{common}{a}"), format!("{common}{b}"));
            prop_assert_eq!(common_prefix_len(a.as_bytes(), b.as_bytes()), common.len());
        }
    }

    proptest! {
        #[test]
        fn a_table_comes_back(
            files in proptest::collection::btree_set(("[ab/]{0,4}", "[ab/]{0,4}"), 0..8),
            transitive in "[a-c]{0,3}",
        ) {
            let files: Vec<_> = files.iter().map(|(base, rel)| (base.as_bytes(), rel.as_bytes())).collect();
            let mut out = Vec::new();
            write(&mut out, &files);
            let mut input = Fields::new(&out);
            let read = read(&mut input, transitive.as_bytes(), 1 << 20).unwrap();
            input.end().unwrap();
            prop_assert_eq!(read.len(), files.len());
            for (read, (base, relative)) in read.iter().zip(files) {
                prop_assert_eq!(&*read.path, &[transitive.as_bytes(), base, relative].concat());
                prop_assert_eq!(read.transitive(), &[transitive.as_bytes(), base].concat());
            }
        }
    }
}
