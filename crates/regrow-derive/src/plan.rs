//! The stored parts of a struct or variant.

use std::collections::HashSet;

use quote::format_ident;
use syn::{Fields, Ident, Member, Path, Result, Type};

use crate::attributes::{Case, FieldAttributes, FieldDefault};

/// The form of a product in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Fields with names: a dataclass.
    Named,
    /// Fields by position: a tuple.
    Tuple,
    /// One field by position: the pytree of the field itself.
    Newtype,
    /// No fields.
    Unit,
}

/// A struct, or one variant of an enum.
pub struct Product {
    pub shape: Shape,
    pub fields: Vec<Field>,
}

/// A field, stored or not.
pub struct Field {
    pub member: Member,
    /// The variable for the field in derived code.
    pub variable: Ident,
    pub ty: Type,
    pub stored: Stored,
    pub default: Option<FieldDefault>,
    pub with: Option<Path>,
}

/// How a field is stored.
pub enum Stored {
    Skipped,
    /// As a child of this name.
    Named(String),
    /// As a child at this position.
    At(usize),
    /// The children of the field are stored as children of the product.
    Flattened,
}

impl Product {
    pub fn of(fields: &Fields, rename_all: Option<Case>) -> Result<Self> {
        let shape = match fields {
            Fields::Named(_) => Shape::Named,
            Fields::Unnamed(fields) if fields.unnamed.len() == 1 => Shape::Newtype,
            Fields::Unnamed(_) => Shape::Tuple,
            Fields::Unit => Shape::Unit,
        };
        let mut out = Self { shape, fields: Vec::new() };
        let mut names = Names { rename_all, known: HashSet::new(), positions: 0 };
        for (i, field) in fields.iter().enumerate() {
            let attributes = FieldAttributes::of(&field.attrs)?;
            let stored = match attributes.skip || is_phantom(&field.ty) {
                true => Stored::Skipped,
                false => names.stored(field, &attributes)?,
            };
            if matches!(stored, Stored::Skipped) && shape == Shape::Newtype {
                // There is no field to store: the product is an empty tuple.
                out.shape = Shape::Tuple;
            }
            out.fields.push(Field {
                member: match &field.ident {
                    Some(ident) => Member::Named(ident.clone()),
                    None => Member::Unnamed(i.into()),
                },
                variable: format_ident!("__field_{i}"),
                ty: field.ty.clone(),
                stored,
                default: attributes.default,
                with: attributes.with,
            });
        }
        Ok(out)
    }

    /// The stored fields. Flattened fields come last: they take the children that no other field
    /// takes.
    pub fn stored(&self) -> impl Iterator<Item = &Field> {
        let flattened = |field: &&Field| matches!(field.stored, Stored::Flattened);
        let own = self.fields.iter().filter(move |field| !flattened(field));
        own.filter(|field| !matches!(field.stored, Stored::Skipped))
            .chain(self.fields.iter().filter(flattened))
    }

    pub fn tuple_len(&self) -> usize {
        self.fields.iter().filter(|field| matches!(field.stored, Stored::At(_))).count()
    }
}

/// The names and positions of the fields so far.
struct Names {
    rename_all: Option<Case>,
    known: HashSet<String>,
    positions: usize,
}

impl Names {
    fn stored(&mut self, field: &syn::Field, attributes: &FieldAttributes) -> Result<Stored> {
        let refuse = |what: &str| Err(syn::Error::new_spanned(field, what));
        let Some(ident) = &field.ident else {
            if attributes.flatten || attributes.rename.is_some() {
                return refuse("fields of a tuple have positions: flatten and rename need named fields");
            }
            self.positions += 1;
            return Ok(Stored::At(self.positions - 1));
        };
        if attributes.flatten {
            return Ok(Stored::Flattened);
        }
        let own = unraw(ident);
        let name = match (&attributes.rename, self.rename_all) {
            (Some(name), _) => name.clone(),
            (None, Some(case)) => case.apply(&own),
            (None, None) => own,
        };
        match self.known.insert(name.clone()) {
            true => Ok(Stored::Named(name)),
            false => refuse(&format!("another field is also stored as `{name}`")),
        }
    }
}

/// An identifier without `r#`.
pub fn unraw(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
}

fn is_phantom(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "PhantomData"))
}
