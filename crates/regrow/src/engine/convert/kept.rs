//! The rules of a conversion, read from a TOML file.
//!
//! ```toml
//! # Hugging Face's GPT-2, as our Flax model has it.
//! layout = "orbax"
//! only = ["h.*", "wte.weight"]
//!
//! [options]                    # options of the layout
//! zarr3 = true
//!
//! [[rename]]                   # the first rule that matches a whole key path decides
//! from = 'h\.(\d+)\.(.*)'
//! to = 'blocks/$1/$2'
//!
//! [[transpose]]                # `leaves` are globs over the key paths of the source
//! leaves = "wte.weight"
//! axes = [1, 0]
//!
//! [[reshape]]
//! leaves = "h.*.attn.c_attn.weight"
//! shape = [-1, 3, 12, 64]
//!
//! [[cast]]
//! leaves = "**"
//! dtype = "bfloat16"
//! ```

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ConvertOptions, Rename};
use crate::array::Dtype;
use crate::engine::{Layout, SaveOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::located;
use crate::location::ToLocation;
use crate::tree::PathPattern;

/// The longest file of rules that regrow reads.
const LEN_MAX_BYTES: u64 = 4 << 20;

/// The rules of a conversion as read from a TOML file. Missing entries are empty.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConvertRules {
    /// The name of the layout to write; the default layout if `None`.
    pub layout: Option<String>,
    /// Options of that layout, by name.
    pub options: Map<String, Value>,
    /// The same as [`ConvertOptions::only`].
    pub only: Vec<String>,
    /// The same as [`ConvertOptions::rename`].
    pub rename: Vec<RenameRule>,
    /// The same as [`SaveOptions::cast`].
    pub cast: Vec<CastRule>,
    /// The same as [`ConvertOptions::transpose`].
    pub transpose: Vec<TransposeRule>,
    /// The same as [`ConvertOptions::reshape`].
    pub reshape: Vec<ReshapeRule>,
    /// The same as [`ConvertOptions::lossy`].
    pub lossy: bool,
}

/// A rule that gives leaves a new key path.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameRule {
    /// A regular expression over a whole key path of the source.
    pub from: String,
    /// The replacement, with `$1` for the text of a group.
    pub to: String,
}

/// A rule that casts leaves to another dtype.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CastRule {
    /// A glob over the key paths of the source.
    pub leaves: String,
    /// The name of the dtype.
    pub dtype: String,
}

/// A rule that transposes leaves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransposeRule {
    /// A glob over the key paths of the source.
    pub leaves: String,
    /// The axes of the source in their new order.
    pub axes: Vec<usize>,
}

/// A rule that reshapes leaves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReshapeRule {
    /// A glob over the key paths of the source.
    pub leaves: String,
    /// The new shape, after the transpose. One extent may be -1 and is computed.
    pub shape: Vec<i64>,
}

impl ConvertRules {
    /// Reads a file of rules from a path or URL.
    ///
    /// # Errors
    /// `NotFound` if the file does not exist; `InvalidArgument` if the file is too long or not
    /// UTF-8, if it is not a valid TOML file of rules (then with line and column), or if the
    /// layout, an option, a pattern, an expression or a dtype is not valid.
    pub fn read(file: impl ToLocation) -> Result<Self> {
        let file = located(file)?;
        let read = || {
            let bytes = file.read_beginning(LEN_MAX_BYTES + 1)?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "the file of rules does not exist")
                    .help("give the path of a TOML file with the rules of a conversion")
            })?;
            if bytes.len() as u64 > LEN_MAX_BYTES {
                return Err(Error::invalid("the file of rules is too long")
                    .expected(format_args!("at most {LEN_MAX_BYTES} bytes"), "more"));
            }
            let text = std::str::from_utf8(&bytes).map_err(|error| {
                Error::invalid("the file of rules is not text").at_byte(error.valid_up_to() as u64)
            })?;
            let rules = Self::parse(text)?;
            rules.options()?;
            Ok(rules)
        };
        read().map_err(|error| error.in_file(file.describe()))
    }

    /// Parses the text of a file of rules.
    ///
    /// # Errors
    /// `InvalidArgument`, with line and column.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            // Quote the keys of the file with `"`: `wording` replaces words in backquotes by
            // options of the caller's language.
            let error = error.to_string().replace('`', "\"");
            let text = format!("the file of rules is not valid: {error}");
            Error::invalid(text.trim_end()).help(
                "a file of rules has layout, options, only, lossy, and the tables [[rename]] (from, to), \
                 [[cast]] (leaves, dtype), [[transpose]] (leaves, axes), [[reshape]] (leaves, shape)",
            )
        })
    }

    /// The layout with its options.
    ///
    /// # Errors
    /// `InvalidArgument` for a layout or an option that does not exist.
    pub fn to_layout(&self) -> Result<Layout> {
        let name = self.layout.as_deref().unwrap_or(Layout::default().name());
        Layout::from_name(name, Value::Object(self.options.clone()))
    }

    /// The rules as options of [`convert`](super::convert).
    ///
    /// # Errors
    /// `InvalidArgument` for a layout, pattern, expression or dtype that is not valid.
    pub fn options(&self) -> Result<ConvertOptions> {
        fn each<R, T>(rules: &[R], of: impl Fn(&R) -> Result<T>) -> Result<Vec<T>> {
            rules.iter().map(of).collect()
        }
        let leaves = |glob: &str| PathPattern::new(glob);
        Ok(ConvertOptions {
            save: SaveOptions {
                layout: self.to_layout()?,
                cast: each(&self.cast, |rule| Ok((leaves(&rule.leaves)?, dtype(&rule.dtype)?)))?,
                ..SaveOptions::default()
            },
            only: each(&self.only, |glob| leaves(glob))?,
            rename: each(&self.rename, |rule| Rename::new(&rule.from, &rule.to))?,
            transpose: each(&self.transpose, |rule| Ok((leaves(&rule.leaves)?, rule.axes.clone())))?,
            reshape: each(&self.reshape, |rule| Ok((leaves(&rule.leaves)?, rule.shape.clone())))?,
            lossy: self.lossy,
            ..ConvertOptions::default()
        })
    }
}

fn dtype(name: &str) -> Result<Dtype> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = Dtype::all().map(Dtype::name).collect();
        Error::invalid(format!("a cast has the unknown dtype {name:?}"))
            .expected(format_args!("one of {}", names.join(", ")), format_args!("{name:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        layout = "orbax"
        only = ["h/**"]
        lossy = true
        [options]
        zarr3 = true
        [[rename]]
        from = 'h/(\d+)/(.*)'
        to = 'blocks/$1/$2'
        [[rename]]
        from = '(.*)'
        to = 'rest/$1'
        [[transpose]]
        leaves = "**/kernel"
        axes = [1, 0]
        [[reshape]]
        leaves = "**/qkv"
        shape = [3, -1]
        [[cast]]
        leaves = "**"
        dtype = "bfloat16"
    "#;

    #[test]
    fn every_kind_of_rule_is_read_in_its_order() {
        let options = ConvertRules::parse(WHOLE).unwrap().options().unwrap();
        assert_eq!(options.save.layout.name(), "orbax");
        assert!(options.lossy);
        assert_eq!(options.only.len(), 1);
        let renames: Vec<&str> = options.rename.iter().map(Rename::pattern).collect();
        assert_eq!(renames, [r"h/(\d+)/(.*)", "(.*)"]);
        assert_eq!(options.transpose[0].1, [1, 0]);
        assert_eq!(options.reshape[0].1, [3, -1]);
        assert_eq!(options.save.cast[0].1, Dtype::BFloat16);
    }

    #[test]
    fn an_empty_file_is_a_conversion_without_rules() {
        let options = ConvertRules::parse("# nothing\n").unwrap().options().unwrap();
        assert_eq!(options.save.layout.name(), "regrow");
        assert!(options.rename.is_empty() && options.only.is_empty() && !options.lossy);
    }

    #[test]
    fn errors_name_the_line_or_the_rule() {
        let place = |text: &str| ConvertRules::parse(text).unwrap_err().to_string();
        assert!(place("\nrenames = []").contains("line 2"), "{}", place("\nrenames = []"));
        assert!(place("[[rename]]\nfrom = 'a'").contains("missing field \"to\""));
        assert!(place("layout = 3").contains("line 1"));
        assert!(place("[[transpose]]\nleaves = 'a'\naxes = [-1]").contains("line 3"));
        for (text, named) in [
            ("layout = 'tape'", "tape"),
            ("[options]\nuse_zarr9 = true", "use_zarr9"),
            ("[[rename]]\nfrom = '('\nto = 'a'", "\"(\""),
            ("[[rename]]\nfrom = 'a'\nto = '$1'", "$1"),
            ("[[cast]]\nleaves = '**'\ndtype = 'float7'", "float7"),
            ("only = ['[']", "["),
        ] {
            let error = ConvertRules::parse(text).unwrap().options().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.to_string().contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_is_named_in_its_errors() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.toml");
        assert_eq!(ConvertRules::read(&file).unwrap_err().kind(), ErrorKind::NotFound);
        for bytes in [&b"layout = 'tape'"[..], b"\xff\xfe", b"a = ", &vec![b'#'; LEN_MAX_BYTES as usize + 1]]
        {
            std::fs::write(&file, bytes).unwrap();
            let error = ConvertRules::read(&file).unwrap_err();
            assert_eq!(error.place().file.as_deref(), Some(&*file), "{error}");
        }
        std::fs::write(&file, WHOLE).unwrap();
        assert_eq!(ConvertRules::read(&file).unwrap(), ConvertRules::parse(WHOLE).unwrap());
    }
}
