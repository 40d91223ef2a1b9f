//! The `impl` of a struct or an enum.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DataEnum, DeriveInput, Path, Result, parse_quote};

use crate::attributes::{ContainerAttributes, variant_rename};
use crate::bounds;
use crate::plan::{Field, Product, Shape, Stored, unraw};
use crate::product::Code;

pub fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = ContainerAttributes::of(&input.attrs)?;
    let krate: Path = attributes.krate.clone().unwrap_or_else(|| parse_quote!(::regrow));
    let name = attributes.rename.clone().unwrap_or_else(|| unraw(&input.ident));
    let (products, bodies) = match &input.data {
        Data::Struct(data) => {
            let product = Product::of(&data.fields, attributes.rename_all)?;
            let bodies = struct_bodies(&product, &name, &krate);
            (vec![product], bodies)
        }
        Data::Enum(data) => {
            let variants = Variants::of(input, data, &attributes, &name)?;
            let bodies = variants.bodies(&name, &krate);
            (variants.0.into_iter().map(|variant| variant.product).collect(), bodies)
        }
        Data::Union(data) => {
            let what = "a union cannot be a pytree: regrow cannot know which field is valid";
            return Err(syn::Error::new_spanned(data.union_token, what));
        }
    };
    let generics = bounds::add(input, &attributes, &krate, &products.iter().collect::<Vec<_>>());
    let header = bounds::header(input, &generics, &krate);
    let Bodies { flatten, unflatten, check, load_into } = bodies;
    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated, unused_qualifications)]
        #header {
            fn flatten(
                &self,
                __key: #krate::tree::Key,
                __build: &mut #krate::tree::TreeBuilder<#krate::tree::Leaf>,
            ) -> #krate::Result<()> {
                #flatten
                ::core::result::Result::Ok(())
            }

            fn unflatten(
                __node: #krate::tree::NodeRef<'_>,
                __restore: &mut #krate::tree::Restore,
            ) -> ::core::option::Option<Self> {
                #unflatten
            }

            fn check(&self, __node: #krate::tree::NodeRef<'_>, __restore: &mut #krate::tree::Restore) {
                #check
            }

            fn load_into(&mut self, __node: #krate::tree::NodeRef<'_>, __restore: &mut #krate::tree::Restore) {
                #load_into
            }
        }
    })
}

struct Bodies {
    flatten: TokenStream,
    unflatten: TokenStream,
    check: TokenStream,
    load_into: TokenStream,
}

fn struct_bodies(product: &Product, name: &str, krate: &Path) -> Bodies {
    let shared = |field: &Field| {
        let member = &field.member;
        quote!(&self.#member)
    };
    let unique = |field: &Field| {
        let member = &field.member;
        quote!(&mut self.#member)
    };
    let code = Code { product, name, constructor: quote!(Self), place: &shared, krate };
    let in_place = Code { product, name, constructor: quote!(Self), place: &unique, krate };
    Bodies {
        flatten: code.flatten(&quote!(__key)),
        unflatten: code.unflatten(),
        check: code.check(),
        load_into: in_place.load_into(),
    }
}

struct Variant {
    ident: syn::Ident,
    key: String,
    /// `Enum::Variant`: the name of the dataclass inside.
    full_name: String,
    product: Product,
}

impl Variant {
    fn arms(&self, index: usize, krate: &Path) -> Bodies {
        let support = quote!(#krate::__derive);
        let (ident, key) = (&self.ident, &self.key);
        if self.product.shape == Shape::Unit {
            let nothing = quote!((Self::#ident, #index, _) => {});
            return Bodies {
                flatten: quote!(Self::#ident => #support::put_unit_variant(__build, __key, #key)?,),
                unflatten: quote!((#index, _) => ::core::option::Option::Some(Self::#ident),),
                check: nothing.clone(),
                load_into: nothing,
            };
        }
        let place = |field: &Field| {
            let variable = &field.variable;
            quote!(#variable)
        };
        let code = Code {
            product: &self.product,
            name: &self.full_name,
            constructor: quote!(Self::#ident),
            place: &place,
            krate,
        };
        let stored = self.product.fields.iter().filter(|field| !matches!(field.stored, Stored::Skipped));
        let bindings = stored.map(|field| {
            let (member, variable) = (&field.member, &field.variable);
            quote!(#member: #variable)
        });
        let pattern = quote!(Self::#ident { #(#bindings,)* .. });
        let add = code.flatten(&quote!(#krate::tree::Key::dict(#key)));
        let (get, compare, load) = (code.unflatten(), code.check(), code.load_into());
        let some = quote!(::core::option::Option::Some(__data));
        Bodies {
            flatten: quote!(#pattern => {
                #support::open_variant(__build, __key)?;
                #add
                __build.close()?;
            }),
            unflatten: quote!((#index, #some) => __restore.inside(__data, |__node, __restore| #get)?,),
            check: quote!((#pattern, #index, #some) => {
                __restore.inside(__data, |__node, __restore| { #compare });
            }),
            load_into: quote!((#pattern, #index, #some) => {
                __restore.inside(__data, |__node, __restore| { #load });
            }),
        }
    }
}

struct Variants(Vec<Variant>);

impl Variants {
    fn of(
        input: &DeriveInput,
        data: &DataEnum,
        attributes: &ContainerAttributes,
        name: &str,
    ) -> Result<Self> {
        if data.variants.is_empty() {
            return Err(syn::Error::new_spanned(
                &input.ident,
                "an enum without variants has no value to save",
            ));
        }
        let mut out: Vec<Variant> = Vec::new();
        for variant in &data.variants {
            let own = unraw(&variant.ident);
            let key = match (variant_rename(&variant.attrs)?, attributes.rename_all) {
                (Some(key), _) => key,
                (None, Some(case)) => case.apply(&own),
                (None, None) => own,
            };
            if out.iter().any(|other| other.key == key) {
                let what = format!("another variant is also stored as `{key}`");
                return Err(syn::Error::new_spanned(variant, what));
            }
            out.push(Variant {
                ident: variant.ident.clone(),
                full_name: format!("{name}::{key}"),
                key,
                product: Product::of(&variant.fields, None)?,
            });
        }
        Ok(Self(out))
    }

    fn bodies(&self, name: &str, krate: &Path) -> Bodies {
        let support = quote!(#krate::__derive);
        let known = self.0.iter().map(|variant| {
            let (key, has_data) = (&variant.key, variant.product.shape != Shape::Unit);
            quote!((#key, #has_data))
        });
        let which = quote!(#support::variant(__node, #name, &[#(#known),*], __restore));
        let arms: Vec<Bodies> =
            self.0.iter().enumerate().map(|(index, variant)| variant.arms(index, krate)).collect();
        let of = |pick: fn(&Bodies) -> &TokenStream| arms.iter().map(pick);
        let flatten = of(|arms| &arms.flatten);
        let unflatten = of(|arms| &arms.unflatten);
        let check = of(|arms| &arms.check);
        let load_into = of(|arms| &arms.load_into);
        let unflatten_self = quote!(<Self as #krate::tree::Pytree>::unflatten(__node, __restore));
        let let_which = quote! {
            let ::core::option::Option::Some((__index, __data)) = #which else { return };
        };
        Bodies {
            flatten: quote!(match self { #(#flatten)* }),
            unflatten: quote! {
                let (__index, __data) = #which?;
                match (__index, __data) {
                    #(#unflatten)*
                    _ => ::core::option::Option::None,
                }
            },
            check: quote! {
                #let_which
                match (self, __index, __data) {
                    #(#check)*
                    _ => { let _ = #unflatten_self; }
                }
            },
            load_into: quote! {
                #let_which
                match (&mut *self, __index, __data) {
                    #(#load_into)*
                    _ => #support::replace(self, #unflatten_self),
                }
            },
        }
    }
}
