//! The bounds of a generic type: `T: Pytree` for each type parameter that a stored field names, and
//! `Default` for the type of each generic field that a load makes by `Default::default()`. A field
//! with `with` needs no `T: Pytree`.
//!
//! `Pytree` is required of parameters, not of field types: for a type that contains itself
//! (`Vec<Tree<T>>` in `Tree<T>`), a bound on the field type would be circular.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{DeriveInput, Generics, Ident, Path, parse_quote};

use crate::attributes::{ContainerAttributes, FieldDefault};
use crate::plan::{Product, Stored};

/// The generics of the type, with the bounds that its `impl` needs.
pub fn add(
    input: &DeriveInput,
    attributes: &ContainerAttributes,
    krate: &Path,
    products: &[&Product],
) -> Generics {
    let mut generics = input.generics.clone();
    if let Some(bound) = &attributes.bound {
        generics.make_where_clause().predicates.extend(bound.iter().cloned());
        return generics;
    }
    let parameters: HashSet<Ident> =
        generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    let (mut pytrees, mut defaults) = (HashSet::new(), Vec::new());
    for field in products.iter().flat_map(|product| &product.fields) {
        let mut named = HashSet::new();
        find(field.ty.to_token_stream(), &parameters, &mut named);
        if named.is_empty() {
            continue;
        }
        let is_skipped = matches!(field.stored, Stored::Skipped);
        let is_made_again =
            is_skipped && field.default.is_none() || matches!(field.default, Some(FieldDefault::Trait));
        if is_made_again {
            defaults.push(field.ty.clone());
        }
        if !is_skipped && field.with.is_none() {
            pytrees.extend(named);
        }
    }
    for parameter in generics.type_params_mut() {
        if pytrees.contains(&parameter.ident) {
            parameter.bounds.push(parse_quote!(#krate::tree::Pytree));
        }
    }
    let predicates = &mut generics.make_where_clause().predicates;
    predicates.extend(
        defaults.into_iter().map(|ty| -> syn::WherePredicate { parse_quote!(#ty: ::core::default::Default) }),
    );
    generics
}

fn find(tokens: TokenStream, parameters: &HashSet<Ident>, found: &mut HashSet<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if parameters.contains(&ident) => {
                found.insert(ident);
            }
            TokenTree::Group(group) => find(group.stream(), parameters, found),
            _ => {}
        }
    }
}

/// `impl<..> Pytree for Name<..> where ..`, up to the brace.
pub fn header(input: &DeriveInput, generics: &Generics, krate: &Path) -> TokenStream {
    let name = &input.ident;
    let (impl_generics, _, where_clause) = generics.split_for_impl();
    let (_, type_generics, _) = input.generics.split_for_impl();
    quote!(impl #impl_generics #krate::tree::Pytree for #name #type_generics #where_clause)
}
