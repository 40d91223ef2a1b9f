//! The list of the layouts. A new layout is a folder, and a line here.

use std::sync::{LazyLock, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    EquinoxOptions, FlaxOptions, NpyOptions, OrbaxOptions, PytreeDataOptions, RegrowOptions,
    SafetensorsOptions, TrakOptions,
};
use crate::Format;
use regrow_base::error::{Error, Result};

/// Makes [`Layout`], and the formats in the order of the list: a reader tries the more
/// particular layouts first.
macro_rules! layouts {
    (
        written { $($(#[$doc:meta])* $layout:ident($options:ident) in $folder:ident;)* }
        read_only { $($other:ident in $other_folder:ident;)* }
    ) => {
        /// The layouts that can be written.
        #[derive(Debug, Clone)]
        pub enum Layout {
            $($(#[$doc])* $layout($options),)*
            /// A layout that [`add_format`] has added, with its options.
            #[doc(hidden)]
            Other(&'static dyn Format, Value),
        }

        impl Layout {
            /// The names that [`from_name`](Self::from_name) takes.
            pub const NAMES: [&'static str; [$(crate::$folder::NAME),*].len()] = [$(crate::$folder::NAME),*];

            /// The layout of a name, with options as JSON: an object with fields of its options
            /// type (`null` for none).
            ///
            /// # Errors
            /// `InvalidArgument` for a name or an option that is not known, or a value of the wrong
            /// type.
            pub fn from_name(name: &str, options: Value) -> Result<Self> {
                $(if name == crate::$folder::NAME {
                    return parse(name, options).map(Self::$layout);
                })*
                match added().iter().find(|format| format.name() == name) {
                    Some(format) => Ok(Self::Other(*format, options)),
                    None => Err(Error::invalid(format!("the layout {name:?} is not known")).expected(
                        format_args!("one of {}", Self::NAMES.join(", ")),
                        format_args!("{name:?}"),
                    )),
                }
            }

            /// The object that reads and writes the layout.
            pub fn format(&self) -> &'static dyn Format {
                match self {
                    $(Self::$layout(_) => &crate::$folder::$layout,)*
                    Self::Other(format, _) => *format,
                }
            }
        }

        const BUILTIN: &[&dyn Format] =
            &[$(&crate::$folder::$layout,)* $(&crate::$other_folder::$other,)*];
    };
}

layouts! {
    written {
        /// An Orbax checkpoint and safetensors files in one set of bytes.
        Regrow(RegrowOptions) in regrow;
        /// A TRAK result store.
        Trak(TrakOptions) in trak;
        /// One of Orbax' own forms.
        Orbax(OrbaxOptions) in orbax;
        /// Plain safetensors files.
        Safetensors(SafetensorsOptions) in safetensors;
        /// Data and manifest.
        PytreeData(PytreeDataOptions) in pytree_data;
        /// `.npy`, `.npz`, or a folder of `.npy` files.
        Npy(NpyOptions) in npy;
        /// Equinox' leaf file.
        Equinox(EquinoxOptions) in equinox;
        /// Flax' msgpack.
        Flax(FlaxOptions) in flax;
    }
    read_only {
        Torch in torch;
    }
}

impl Layout {
    /// The layout's name.
    pub fn name(&self) -> &'static str {
        self.format().name()
    }
}

/// Layouts that are still to be added to the list.
static TO_ADD: Mutex<Option<Vec<&'static dyn Format>>> = Mutex::new(Some(Vec::new()));

/// All layouts. The first use closes the list: no layout can be added after it.
static ALL: LazyLock<Vec<&'static dyn Format>> = LazyLock::new(|| {
    let added = TO_ADD.lock().unwrap_or_else(PoisonError::into_inner).take();
    [BUILTIN, &added.unwrap_or_default()].concat()
});

/// Adds a layout of another crate. A save names it with [`Layout::Other`].
///
/// # Errors
/// `InvalidArgument` after the first use of the list, such as an open or a save.
#[doc(hidden)]
pub fn add_format(format: &'static dyn Format) -> Result<()> {
    let mut to_add = TO_ADD.lock().unwrap_or_else(PoisonError::into_inner);
    let formats = to_add.as_mut().ok_or_else(|| {
        Error::invalid(format!("the layout {} comes too late", format.name()))
            .help("add it before the first call")
    })?;
    formats.push(format);
    Ok(())
}

/// Every layout, in the order in which readers try them; added layouts are last.
pub fn formats() -> impl Iterator<Item = &'static dyn Format> + Clone {
    ALL.iter().copied()
}

fn added() -> &'static [&'static dyn Format] {
    ALL.get(BUILTIN.len()..).unwrap_or_default()
}

/// Names of options of layouts in other tools, and old names, each with today's name.
const OTHER_NAMES: [(&str, &str); 9] = [
    ("use_ocdbt", "ocdbt"),
    ("use_zarr3", "zarr3"),
    ("data_format", "format"),
    ("metadata", "format"),
    ("strict_orbax", "strict"),
    ("strict_upstream", "strict"),
    ("max_chunk_size", "max_chunk_bytes"),
    ("max_shard_size", "max_shard_bytes"),
    ("sep", "separator"),
];

fn parse<T: Default + DeserializeOwned>(name: &str, options: Value) -> Result<T> {
    if options.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(options.clone()).map_err(|error| {
        // serde's error does not name the option, so try each option alone to find the
        // wrong one.
        let single = |(name, value): (&String, &Value)| {
            let alone = json!({ name.as_str(): value });
            serde_json::from_value::<T>(alone).err().map(|error| (name.clone(), error))
        };
        match options.as_object().and_then(|options| options.iter().find_map(single)) {
            Some((option, error)) => {
                let error = Error::invalid(format!(
                    "the option `{option}` of layout {name:?} cannot be used: {error}"
                ));
                match OTHER_NAMES.iter().find(|(other, _)| *other == option) {
                    Some((_, own)) => error.help(format!("the option is called `{own}`")),
                    None => error,
                }
            }
            None => Error::invalid(format!("the options of layout {name:?} cannot be used: {error}")),
        }
    })
}
