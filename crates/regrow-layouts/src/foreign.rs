//! Recognises files and folders of other programs, for error messages: a file by its first bytes, a
//! folder by the names in it.

use super::contents::layout_of;
use regrow_base::bytes::zip::first_member;
use regrow_base::error::{Error, ErrorKind};
use regrow_storage::location::Location;
use regrow_storage::{Entry, Found};

/// The number of bytes read from the start of a file: the length of a tar header.
const LOOKED_AT_BYTES: u64 = 512;

/// A file or folder of another program, as an error message describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The kind of file, with its article: `a git-lfs pointer`.
    pub what: String,
    /// Advice to the user, as the error's help.
    pub help: &'static str,
}

const DOWNLOAD: &str = "the server sent a web page, not the file: download it again";
const EXPORT: &str = "load it with the program that wrote it, and save its arrays with regrow.save";
const UNPACK: &str = "unpack it, and open the files in it";
const ARCHIVE: &str = "unpack it, or name the checkpoint in it: PATH/name";

const SOME_ZIP: &str = "a zip archive";
const EMPTY: &str = "an empty file";

/// Kinds of files for which the readers of these layouts give a better error.
const KEPT: [(&str, [&str; 2]); 2] = [(SOME_ZIP, ["npy", "torch"]), (EMPTY, ["equinox", "pytree_data"])];

/// The first bytes of known files, the kind of file, and the help text.
const BEGINNINGS: [(&[u8], &str, &str); 18] = [
    (
        b"version https://git-lfs.github.com/",
        "a git-lfs pointer, not the file itself",
        "fetch the file: git lfs pull",
    ),
    (b"GGUF", "a GGUF file of llama.cpp", "convert it to safetensors with the program that made it"),
    (b"lmgg", "a GGML file", EXPORT),
    (b"ggjt", "a GGML file", EXPORT),
    (b"tjgg", "a GGML file", EXPORT),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", EXPORT),
    (b"\x1f\x8b", "a gzip file", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (b"BZh", "a bzip2 file", UNPACK),
    (b"\xfd7zXZ\0", "an xz file", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (b"PAR1", "a Parquet file", EXPORT),
    (b"ARROW1", "an Arrow file", EXPORT),
    (b"MATLAB 5.0", "a MATLAB file", EXPORT),
    (b"\x89PNG", "a PNG image", "give the path of the file with the arrays"),
    (b"%PDF", "a PDF document", "give the path of the file with the arrays"),
    (b"SQLite format 3\0", "an SQLite database", EXPORT),
];

/// The first characters of HTML and XML files, in lower case, after white space.
const PAGES: [(&str, &str); 4] = [
    ("<!doctype html", "an HTML page"),
    ("<html", "an HTML page"),
    ("<head", "an HTML page"),
    ("<?xml", "an XML document"),
];

/// The kind of the file `at` a location, if another program made it; `None` if the kind is unknown
/// or the file cannot be read.
pub fn file_at(at: &Location) -> Option<Foreign> {
    let Ok(Some(Found::File { .. })) = at.look() else { return None };
    let first = at.read_beginning(LOOKED_AT_BYTES).ok()??;
    file_of(&first, &at.name_text())
}

fn file_of(first: &[u8], name: &str) -> Option<Foreign> {
    let known = |what: &str, help| Some(Foreign { what: what.to_owned(), help });
    if first.is_empty() {
        return known(EMPTY, "copy or download the file again");
    }
    if first.starts_with(b"\x1f\x8b") && (name.ends_with(".tar.gz") || name.ends_with(".tgz")) {
        return known("a gzipped tar archive", UNPACK);
    }
    if let Some((_, what, help)) = BEGINNINGS.iter().find(|(beginning, ..)| first.starts_with(beginning)) {
        return known(what, help);
    }
    let text =
        String::from_utf8_lossy(first).trim_start_matches('\u{feff}').trim_start().to_ascii_lowercase();
    if let Some((_, what)) = PAGES.iter().find(|(beginning, _)| text.starts_with(beginning)) {
        return known(what, DOWNLOAD);
    }
    if first.get(4..8) == Some(b"TFL3") {
        return known("a TensorFlow Lite model", EXPORT);
    }
    if first.get(257..262) == Some(b"ustar") {
        return known("a tar archive", ARCHIVE);
    }
    if first.starts_with(b"PK\x03\x04") || first.starts_with(b"PK\x05\x06") {
        let member = first_member(first).unwrap_or_default();
        return match member {
            b"metadata.json" | b"config.json" | b"model.weights.h5" => known("a Keras file (.keras)", EXPORT),
            _ if member.ends_with(b"/data.pkl") => known("a zip archive of torch.save", EXPORT),
            _ if member.ends_with(super::npy::SUFFIX.as_bytes()) => {
                known("an archive of NumPy (.npz)", EXPORT)
            }
            _ => known(SOME_ZIP, ARCHIVE),
        };
    }
    if is_onnx(first) {
        return known("an ONNX model", EXPORT);
    }
    if first.len() as u64 == LOOKED_AT_BYTES && first.iter().all(|&byte| byte == 0) {
        return known("all zeros", "a copy or download was interrupted: do it again");
    }
    None
}

/// Whether these bytes begin like an ONNX protobuf: a version, then a text such as the name of the
/// producer.
fn is_onnx(first: &[u8]) -> bool {
    let &[0x08, 1..=32, 0x12, len, ref rest @ ..] = first else { return false };
    let name = rest.get(..len.into());
    name.is_some_and(|name| {
        !name.is_empty() && name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ')
    })
}

/// The kind of a folder that another program made, by its entries.
pub fn folder_of(entries: &[Entry]) -> Option<Foreign> {
    let names: Vec<_> = entries.iter().map(|entry| entry.name.to_string_lossy()).collect();
    let has = |is_one: &dyn Fn(&str) -> bool| names.iter().any(|name| is_one(name));
    let what = if has(&|name| matches!(name, "saved_model.pb" | "saved_model.pbtxt")) {
        "a SavedModel of TensorFlow"
    } else if has(&|name| name.ends_with(".index")) && has(&|name| name.contains(".data-00000-of-")) {
        "a checkpoint of TensorFlow"
    } else if has(&|name| name == "model.weights.h5") {
        "an unpacked Keras model"
    } else {
        return None;
    };
    Some(Foreign { what: what.to_owned(), help: EXPORT })
}

/// Returns `error`, which a read of the checkpoint `at` a location gave. If another program made
/// the file or folder, returns an error that names its kind instead.
pub fn told(error: Error, at: &Location, layout: &str) -> Error {
    if !matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported | ErrorKind::NotACheckpoint
    ) {
        return error;
    }
    let is_folder = at.is_folder();
    let entries = if is_folder { at.entries().unwrap_or_default() } else { Vec::new() };
    if let Some(Foreign { what, help }) = folder_of(&entries) {
        return Error::new(error.kind(), format!("this is {what}")).in_file(at).help(help);
    }
    let folder = if is_folder { at.clone() } else { at.parent() };
    let described = folder.describe();
    let named =
        error.place().file.as_deref().and_then(|file| file.to_str()?.strip_prefix(described.to_str()?));
    let file = match named.map(|name| name.trim_start_matches('/')) {
        Some(name) if !name.is_empty() => folder.join(name),
        _ => at.clone(),
    };
    // The layout's own reader describes a damaged file of its layout better.
    if layout_of(&file).is_ok_and(|layout| layout.is_some()) {
        return error;
    }
    let Some(Foreign { what, help }) = file_at(&file) else { return error };
    if KEPT.iter().any(|(kept, layouts)| *kept == what && layouts.contains(&layout)) {
        return error;
    }
    // The reader has taken text for a length. So the file is not really beyond a limit.
    let kind = if error.kind() == ErrorKind::Limit { ErrorKind::Corrupt } else { error.kind() };
    Error::new(kind, format!("this is {what}")).in_file(&file).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(first: &[u8], name: &str) -> String {
        file_of(first, name).map(|found| found.what).unwrap_or_default()
    }

    #[test]
    fn files_of_other_programs_are_told_by_their_first_bytes() {
        let mut tar = vec![b'x'; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let zip = |member: &str| {
            let mut out = b"PK\x03\x04".to_vec();
            out.resize(26, 0);
            out.extend((member.len() as u16).to_le_bytes());
            out.extend([0, 0]);
            out.extend(member.as_bytes());
            out
        };
        for (first, name, what) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:"[..], "x", "git-lfs"),
            (b"\n <!DOCTYPE HTML><html>", "x", "HTML"),
            (b"<?xml version=\"1.0\"?><Error>", "x", "XML"),
            (b"GGUF\x03\0\0\0", "x", "GGUF"),
            (b"\x89HDF\r\n\x1a\n\0", "x", "HDF5"),
            (b"\x08\x07\x12\x07pytorch\x1a", "x", "ONNX"),
            (b"\x1c\0\0\0TFL3\x14\0", "x", "TensorFlow Lite"),
            (b"\x1f\x8b\x08", "x", "gzip file"),
            (b"\x1f\x8b\x08", "x.tar.gz", "gzipped tar"),
            (b"PAR1\x15", "x", "Parquet"),
            (b"", "x", "empty"),
            (&[0; 512], "x", "zeros"),
            (&tar, "x", "tar archive"),
            (&zip("metadata.json"), "x", "Keras"),
            (&zip("a/b.txt"), "x", "zip archive"),
        ] {
            assert!(named(first, name).contains(what), "{what}: {:?}", named(first, name));
        }
        for first in [&b"plain text"[..], b"\x08\x07\x12\x00", b"\x08", b"{\"a\": 1}", &[0; 100]] {
            assert_eq!(file_of(first, "x"), None);
        }
    }
}
