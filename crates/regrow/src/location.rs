//! Where a checkpoint is. This build reads and writes paths of the local file system; an address of a store is refused.
//!
//! Whatever opens, saves, loads, verifies or converts asks [`local`] first. Without that, `gs://bucket/step_1` would be a
//! path like any other, and be saved into a folder `gs:` below the working folder.
//!
//! | given | is |
//! |---|---|
//! | `gs://bucket/x`, `file:///x`, any `scheme://` | an address: refused |
//! | `gs:/bucket/x`, of a scheme that is known | an address after `pathlib` or `normpath`: refused |
//! | `./gs:/bucket/x`, `/data/gs:/x`, `run:/x`, `a:b` | a path |

use std::path::Path;

use crate::error::{Error, Result};

/// Schemes that are taken for one with a single slash, too.
const SCHEMES: [&str; 26] = [
    "abfs", "abfss", "adl", "az", "azure", "dbfs", "file", "ftp", "gcs", "gs", "hdfs", "hf", "http", "https",
    "memory", "oci", "oss", "r2", "s3", "s3a", "s3n", "sftp", "ssh", "wasb", "wasbs", "webdav",
];

/// The path itself, if it is one of the local file system.
///
/// # Errors
/// `Unsupported` for an address with a scheme.
pub fn local(path: &Path) -> Result<&Path> {
    let Some((scheme, rest)) = scheme_of(path) else { return Ok(path) };
    let help = match scheme.as_str() {
        "file" => format!("leave out the scheme: /{}", rest.trim_start_matches('/')),
        _ => format!(
            "copy the files to a local disk, or mount the store; a local folder of this name is ./{scheme}:/..."
        ),
    };
    Err(Error::unsupported(format!(
        "an address with the scheme {scheme}:// is not on a local file system, which is all that can be read and written"
    ))
    .in_file(path)
    .help(help))
}

/// The scheme of an address, in lower case, and what follows it; `None` for a path.
fn scheme_of(path: &Path) -> Option<(String, String)> {
    let text = path.to_string_lossy();
    let (scheme, rest) = text.split_once(':')?;
    let is_name = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let scheme = scheme.to_ascii_lowercase();
    let is_address = rest.starts_with("//") || rest.starts_with('/') && SCHEMES.contains(&scheme.as_str());
    (is_name && is_address).then(|| (scheme, rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn addresses_are_refused_by_name() {
        for (address, scheme) in [
            ("gs://bucket/x", "gs://"),
            ("S3://bucket/x", "s3://"),
            ("gs:/bucket/x", "gs://"),
            ("az://c/x", "az://"),
            ("https://host/x", "https://"),
            ("git+ssh://host/x", "git+ssh://"),
            ("my-store.v2://x", "my-store.v2://"),
            ("file:///home/x", "file://"),
        ] {
            let error = local(Path::new(address)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{address}");
            assert!(error.to_string().contains(scheme), "{error}");
            assert!(error.help_text().is_some());
        }
        let file = local(Path::new("file:///home/x")).unwrap_err();
        assert_eq!(file.help_text(), Some("leave out the scheme: /home/x"));
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        for path in [
            "x",
            "/x",
            "./gs:/bucket/x",
            "/data/gs:/x",
            "run:/x",
            "a:b",
            "gs:",
            ":",
            "://x",
            "",
            "2://x",
            "a b://x",
        ] {
            assert_eq!(local(Path::new(path)).unwrap(), Path::new(path));
        }
    }
}
