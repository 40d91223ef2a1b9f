//! Parses `#[pytree(...)]`.

use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Attribute, LitStr, Path, Result, Token, WherePredicate};

/// The attributes of a struct or an enum.
#[derive(Default)]
pub struct ContainerAttributes {
    pub rename: Option<String>,
    pub rename_all: Option<Case>,
    pub bound: Option<Punctuated<WherePredicate, Token![,]>>,
    pub krate: Option<Path>,
}

/// The attributes of a field.
#[derive(Default)]
pub struct FieldAttributes {
    pub skip: bool,
    pub flatten: bool,
    pub rename: Option<String>,
    pub default: Option<FieldDefault>,
    pub with: Option<Path>,
}

/// The source of the value of a missing field.
pub enum FieldDefault {
    Trait,
    Function(Path),
}

impl ContainerAttributes {
    pub fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut out = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("rename") {
                set(&meta, &mut out.rename, |text| Ok(text.value()))
            } else if meta.path.is_ident("rename_all") {
                set(&meta, &mut out.rename_all, |text| Case::parse(&text))
            } else if meta.path.is_ident("bound") {
                set(&meta, &mut out.bound, |text| text.parse_with(Punctuated::parse_terminated))
            } else if meta.path.is_ident("crate") {
                set(&meta, &mut out.krate, |text| text.parse())
            } else {
                Err(unknown(&meta, "a type takes rename, rename_all, bound and crate"))
            }
        })?;
        Ok(out)
    }
}

impl FieldAttributes {
    pub fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut out = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("skip") {
                out.skip = true;
                Ok(())
            } else if meta.path.is_ident("flatten") {
                out.flatten = true;
                Ok(())
            } else if meta.path.is_ident("rename") {
                set(&meta, &mut out.rename, |text| Ok(text.value()))
            } else if meta.path.is_ident("default") {
                if meta.input.peek(Token![=]) {
                    set(&meta, &mut out.default, |text| Ok(FieldDefault::Function(text.parse()?)))
                } else {
                    out.default = Some(FieldDefault::Trait);
                    Ok(())
                }
            } else if meta.path.is_ident("with") {
                set(&meta, &mut out.with, |text| text.parse())
            } else {
                Err(unknown(&meta, "a field takes skip, rename, default, flatten and with"))
            }
        })?;
        let stored_otherwise = out.rename.is_some() || out.default.is_some() || out.with.is_some();
        let first = attributes.iter().find(|attribute| attribute.path().is_ident("pytree"));
        match first {
            Some(at) if out.skip && (out.flatten || out.rename.is_some() || out.with.is_some()) => {
                Err(syn::Error::new_spanned(at, "a skipped field is not stored: it takes only a default"))
            }
            Some(at) if out.flatten && stored_otherwise => Err(syn::Error::new_spanned(
                at,
                "a flattened field has no name: it does not take rename, default or with",
            )),
            _ => Ok(out),
        }
    }
}

pub fn variant_rename(attributes: &[Attribute]) -> Result<Option<String>> {
    let mut rename = None;
    each(attributes, |meta| {
        if meta.path.is_ident("rename") {
            set(&meta, &mut rename, |text| Ok(text.value()))
        } else {
            Err(unknown(&meta, "a variant takes rename"))
        }
    })?;
    Ok(rename)
}

fn each(attributes: &[Attribute], mut one: impl FnMut(ParseNestedMeta<'_>) -> Result<()>) -> Result<()> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("pytree"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut one))
}

/// Parses `= "text"` into `slot`. Returns an error if the attribute is given twice.
fn set<T>(
    meta: &ParseNestedMeta<'_>,
    slot: &mut Option<T>,
    parse: impl FnOnce(LitStr) -> Result<T>,
) -> Result<()> {
    let value = parse(meta.value()?.parse()?)?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(meta.error("this attribute is given twice")),
    }
}

fn unknown(meta: &ParseNestedMeta<'_>, known: &str) -> syn::Error {
    let name: Vec<String> = meta.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    meta.error(format!("unknown pytree attribute `{}`: {known}", name.join("::")))
}

/// The form in which `rename_all` writes names.
#[derive(Clone, Copy)]
pub enum Case {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
}

impl Case {
    const NAMES: [(&'static str, Self); 7] = [
        ("lowercase", Self::Lower),
        ("UPPERCASE", Self::Upper),
        ("PascalCase", Self::Pascal),
        ("camelCase", Self::Camel),
        ("snake_case", Self::Snake),
        ("SCREAMING_SNAKE_CASE", Self::ScreamingSnake),
        ("kebab-case", Self::Kebab),
    ];

    fn parse(text: &LitStr) -> Result<Self> {
        let value = text.value();
        let found = Self::NAMES.iter().find(|(name, _)| *name == value);
        found.map(|(_, case)| *case).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            syn::Error::new_spanned(text, format!("rename_all takes one of {}", names.join(", ")))
        })
    }

    /// Rewrites a field's `snake_case` or a variant's `PascalCase`.
    pub fn apply(self, name: &str) -> String {
        let words = words(name);
        let capital = |word: &String| {
            let mut chars = word.chars();
            chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
        };
        match self {
            Self::Lower => words.concat(),
            Self::Upper => words.concat().to_uppercase(),
            Self::Pascal => words.iter().map(capital).collect(),
            Self::Camel => {
                let rest = words.iter().skip(1).map(capital);
                words.first().cloned().into_iter().chain(rest).collect()
            }
            Self::Snake => words.join("_"),
            Self::ScreamingSnake => words.join("_").to_uppercase(),
            Self::Kebab => words.join("-"),
        }
    }
}

fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before_lower = false;
    for c in name.chars() {
        let starts = c == '_' || (c.is_uppercase() && before_lower);
        before_lower = c != '_' && !c.is_uppercase();
        if starts && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
