//! The macro `#[derive(Pytree)]`. The crate `regrow` exports the macro: programs need not name this
//! crate.
//!
//! | module | does |
//! |---|---|
//! | `attributes` | parses `#[pytree(...)]`, refuses invalid attributes |
//! | `plan` | the stored parts of a struct or variant: its shape, its fields, their names |
//! | `bounds` | the bounds of a generic type |
//! | `product` | code for one struct or variant |
//! | `container` | the `impl`: a struct is one product, an enum one of several |

use proc_macro::TokenStream;

mod attributes;
mod bounds;
mod container;
mod plan;
mod product;

/// Makes a struct or an enum a pytree, so that `regrow::save` and `regrow::load` take it.
///
/// # What is stored
///
/// | Rust | pytree |
/// |---|---|
/// | `struct Model { kernel: .., bias: .. }` | a dataclass `Model` with the attributes `kernel`, `bias` |
/// | `struct Pair(A, B);` | a tuple |
/// | `struct Metres(f64);` | the pytree of the one field |
/// | `struct Marker;` | a dataclass without attributes |
/// | `enum E { Off, Rate(f32), Size(u8, u8), Range { low: f32 } }` | `"Off"`, `{"Rate": ..}`, `{"Size": (.., ..)}`, `{"Range": E::Range(low=..)}` |
///
/// The one-key dict of an enum holds the variant's name in every layout that has dicts. A load
/// finds fields by the text of keys or by position: a dict that Python wrote restores a struct, and
/// a list restores a tuple.
///
/// # Attributes
///
/// Of a field, `#[pytree(...)]`:
///
/// | attribute | means |
/// |---|---|
/// | `skip` | not stored; `Default::default()` on load, untouched by `load_into`. A `PhantomData` field is always skipped |
/// | `rename = "name"` | stored under another name |
/// | `default`, `default = "path"` | if the field is missing: `Default::default()`, or the result of the function |
/// | `flatten` | the fields of the struct or the entries of the map inside become fields of this struct |
/// | `with = "module"` | `module::to_pytree(&T) -> R` and `module::from_pytree(R) -> Result<T, E>` convert to a type that is a pytree |
///
/// Of a variant: `rename = "name"`. Of the whole type: `rename = "optax.ScaleByAdamState"`,
/// `rename_all = "camelCase"` (fields of a struct, variants of an enum; also `lowercase`,
/// `UPPERCASE`, `PascalCase`, `snake_case`, `SCREAMING_SNAKE_CASE`, `kebab-case`), `bound = "T:
/// MyTrait"` in place of the bounds that are found (`T: Pytree` for each type parameter that a
/// stored field names), `crate = "path"`.
#[proc_macro_derive(Pytree, attributes(pytree))]
pub fn derive_pytree(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    container::derive(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
