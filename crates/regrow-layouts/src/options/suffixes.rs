//! The layout that the suffix of a path selects for a save: `x.npz` is one file of one layout, and
//! never a folder.

use std::ffi::OsStr;

use super::list::{Layout, formats};
use crate::Format;
use regrow_base::error::{Error, Result};
use regrow_storage::location::{Location, suffix_of};

/// Suffixes of files that regrow does not write, each with the program that does.
const NOT_WRITTEN: [(&str, &str); 26] = [
    ("pt", "PyTorch"),
    ("pth", "PyTorch"),
    ("bin", "PyTorch"),
    ("ckpt", "PyTorch or TensorFlow"),
    ("distcp", "PyTorch"),
    ("sft", "safetensors under a name that its readers do not look for"),
    ("pkl", "pickle"),
    ("pickle", "pickle"),
    ("joblib", "joblib"),
    ("h5", "HDF5"),
    ("hdf5", "HDF5"),
    ("keras", "Keras"),
    ("gguf", "GGUF"),
    ("ggml", "GGML"),
    ("onnx", "ONNX"),
    ("tflite", "TensorFlow Lite"),
    ("pb", "TensorFlow"),
    ("mat", "MATLAB"),
    ("parquet", "Parquet"),
    ("zip", "an archive"),
    ("tar", "an archive"),
    ("gz", "a compressed file"),
    ("tgz", "an archive"),
    ("zst", "a compressed file"),
    ("xz", "a compressed file"),
    ("bz2", "a compressed file"),
];

impl Layout {
    /// The layout of a save to `at` without a given layout: the layout of the suffix, or the
    /// default layout for other names.
    ///
    /// # Errors
    /// `InvalidArgument` for the suffix of a file that regrow does not write, such as `.pt`.
    pub fn for_target(at: &Location) -> Result<Self> {
        if let Some(layout) = layout_of(at.name()) {
            return Self::from_name(layout, serde_json::Value::Null);
        }
        match owner_of(at.name()) {
            None => Ok(Self::default()),
            Some((suffix, owner)) => Err(Error::invalid(format!(
                "regrow does not write .{suffix} files ({owner})"
            ))
            .in_file(at)
            .help(format!(
                "for one file end the path in {}; for a folder in the default layout give no suffix; or \
                 give a layout that writes one file",
                written().map(|(suffix, _)| suffix).collect::<Vec<_>>().join(", ")
            ))),
        }
    }
}

/// Returns an error if a folder at this path would have the name of a file. Other programs would
/// take the folder for a file.
///
/// # Errors
/// `InvalidArgument` with the suffix.
pub fn refuse_folder_named_like_a_file(at: &Location, layout: &str) -> Result<()> {
    let chosen = layout_of(at.name());
    let Some(suffix) = suffix_of(at.name()).filter(|_| chosen.is_some() || owner_of(at.name()).is_some())
    else {
        return Ok(());
    };
    let error = Error::invalid(format!(
        "the path ends in .{suffix} like a file, but the layout {layout} writes a folder"
    ))
    .in_file(at);
    Err(match chosen {
        Some(chosen) if chosen != layout => {
            error.help(format!("leave out the layout to write {chosen}, or give a path without .{suffix}"))
        }
        _ => error.help(format!("give a path without .{suffix}")),
    })
}

fn layout_of(name: &OsStr) -> Option<&'static str> {
    let suffix = suffix_of(name)?;
    written().find(|(written, _)| written.strip_prefix('.') == Some(&*suffix)).map(|(_, layout)| layout)
}

/// The suffixes of single files, each with the layout that a save chooses for it.
fn written() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |format: &'static dyn Format| {
        format.file_names().suffixes.iter().map(|&suffix| (suffix, format.name()))
    };
    formats().flat_map(of)
}

fn owner_of(name: &OsStr) -> Option<(&'static str, &'static str)> {
    let suffix = suffix_of(name)?;
    NOT_WRITTEN.iter().find(|(other, _)| *other == suffix).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_of_a_file_chooses_its_layout_or_is_refused() {
        let of = |name: &str| Layout::for_target(&Location::local(format!("/runs/{name}")));
        for (name, layout) in [
            ("x.safetensors", "safetensors"),
            ("x.NPZ", "npy"),
            ("a.b.npy", "npy"),
            ("x.msgpack", "flax"),
            ("x.eqx", "equinox"),
            ("x", "regrow"),
            ("step_1.5", "regrow"),
            ("checkpoint_7", "regrow"),
            ("npz", "regrow"),
            (".npz", "regrow"),
        ] {
            assert_eq!(of(name).unwrap().name(), layout, "{name}");
        }
        for (suffix, owner) in NOT_WRITTEN {
            let error = of(&format!("x.{suffix}")).unwrap_err().to_string();
            assert!(error.contains(owner) && error.contains(".safetensors"), "{error}");
        }
    }

    #[test]
    fn a_folder_never_has_the_name_of_a_file() {
        let of = |name: &str| refuse_folder_named_like_a_file(&Location::local(name), "regrow");
        let written: Vec<&str> = written().filter_map(|(suffix, _)| suffix.strip_prefix('.')).collect();
        assert_eq!(written, ["safetensors", "npz", "npy", "eqx", "msgpack"]);
        for suffix in written.into_iter().chain(NOT_WRITTEN.map(|(suffix, _)| suffix)) {
            let error = of(&format!("x.{suffix}")).unwrap_err().to_string();
            assert!(error.contains(&format!("without .{suffix}")), "{error}");
        }
        for name in ["x", "run.1", "checkpoint_7", "a.npz.d"] {
            of(name).unwrap();
        }
    }
}
