//! Code for one struct or variant: the bodies of the four functions of `Pytree`.
//!
//! Derived code names its variables `__build`, `__key`, `__node`, `__restore`, `__items` and
//! `__field_0`, so that they differ from the user's names.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Path;
use syn::spanned::Spanned;

use crate::attributes::FieldDefault;
use crate::plan::{Field, Product, Shape, Stored};

/// One product, with the names and expressions that its code needs.
pub struct Code<'a> {
    pub product: &'a Product,
    /// The type's name in the tree: `Model`, `Enum::Variant`.
    pub name: &'a str,
    /// `Self`, `Self::Variant`.
    pub constructor: TokenStream,
    /// An expression for the reference to a field: `&self.a`, or the variable of a pattern.
    pub place: &'a dyn Fn(&Field) -> TokenStream,
    pub krate: &'a Path,
}

impl Code<'_> {
    /// The span to which errors about a field point: its type, or the module that converts the
    /// field. Names at the span resolve in the scope of derived code.
    fn span(field: &Field) -> Span {
        let span = field.with.as_ref().map_or_else(|| field.ty.span(), Spanned::span);
        span.resolved_at(Span::call_site())
    }

    fn support(&self) -> TokenStream {
        let krate = self.krate;
        quote!(#krate::__derive)
    }

    /// Statements that add the product under the key that is the expression `key`.
    pub fn flatten(&self, key: &TokenStream) -> TokenStream {
        let (support, name, krate) = (self.support(), self.name, self.krate);
        let fields = self.product.fields.iter().map(|field| {
            let (place, span) = ((self.place)(field), Self::span(field));
            // With an explicit type, an error about the field points at the type.
            let (ty, value) = match &field.with {
                Some(with) => (quote!(_), quote_spanned!(span=> &#with::to_pytree(#place))),
                None => (field.ty.to_token_stream(), place),
            };
            match (&field.stored, self.product.shape) {
                (Stored::Skipped, _) => quote!(),
                (_, Shape::Newtype) => {
                    quote_spanned!(span=> #krate::tree::Pytree::flatten(#value, #key, __build)?;)
                }
                (Stored::Named(name), _) => {
                    quote_spanned!(span=> #support::put::<#ty>(__build, #name, #value)?;)
                }
                (Stored::At(index), _) => {
                    quote_spanned!(span=> #support::put_at::<#ty>(__build, #index, #value)?;)
                }
                (Stored::Flattened, _) => {
                    quote_spanned!(span=> #support::put_flattened::<#ty>(__build, #value)?;)
                }
            }
        });
        match self.product.shape {
            Shape::Newtype => quote!(#(#fields)*),
            Shape::Tuple => quote! {
                #support::open_tuple(__build, #key)?;
                #(#fields)*
                __build.close()?;
            },
            Shape::Named | Shape::Unit => quote! {
                #support::open_struct(__build, #key, #name)?;
                #(#fields)*
                __build.close()?;
            },
        }
    }

    /// An expression of type `Option<Self>` from `__node`.
    pub fn unflatten(&self) -> TokenStream {
        let (support, name, constructor) = (self.support(), self.name, &self.constructor);
        let get = self.product.stored().map(|field| {
            let (variable, ty, value) = (&field.variable, &field.ty, self.get(field));
            // Every field is tried before the first `?`: one report names all differences.
            quote!(let #variable: ::core::option::Option<#ty> = #value;)
        });
        let members = self.product.fields.iter().map(|field| {
            let (member, variable, span) = (&field.member, &field.variable, Self::span(field));
            match (&field.stored, &field.default) {
                (Stored::Skipped, Some(FieldDefault::Function(path))) => quote!(#member: #path()),
                (Stored::Skipped, _) => quote_spanned!(span=> #member: ::core::default::Default::default()),
                _ => quote!(#member: #variable?),
            }
        });
        let whole = quote!(::core::option::Option::Some(#constructor { #(#members),* }));
        match self.product.shape {
            Shape::Newtype => quote!({ #(#get)* #whole }),
            Shape::Tuple => {
                let expect = self.expect_tuple();
                quote!({ let __items = #expect?; #(#get)* #whole })
            }
            Shape::Named => quote!({
                #support::expect_struct(__node, #name, __restore)?;
                #(#get)*
                #whole
            }),
            Shape::Unit => quote!(#support::expect_unit(__node, #name, __restore).map(|()| #constructor)),
        }
    }

    /// An expression of type `Option` that restores one field.
    fn get(&self, field: &Field) -> TokenStream {
        let (support, krate, ty, span) = (self.support(), self.krate, &field.ty, Self::span(field));
        let absent = match &field.default {
            Some(FieldDefault::Trait) => {
                quote_spanned!(span=> ::core::option::Option::Some(::core::default::Default::default))
            }
            Some(FieldDefault::Function(path)) => quote!(::core::option::Option::Some(#path)),
            None => quote!(::core::option::Option::None),
        };
        match (&field.stored, &field.with) {
            (_, Some(with)) if self.product.shape == Shape::Newtype => quote_spanned! {span=>
                #support::unflatten_with::<_, #ty, _>(__node, __restore, #with::from_pytree)
            },
            (_, None) if self.product.shape == Shape::Newtype => quote_spanned! {span=>
                <#ty as #krate::tree::Pytree>::unflatten(__node, __restore)
            },
            (Stored::Named(name), Some(with)) => quote_spanned! {span=>
                #support::get_with::<_, #ty, _>(__node, #name, __restore, #with::from_pytree, #absent)
            },
            (Stored::Named(name), None) => quote_spanned! {span=>
                #support::get::<#ty>(__node, #name, __restore, #absent)
            },
            (Stored::At(index), Some(with)) => quote_spanned! {span=>
                #support::get_at_with::<_, #ty, _>(&__items, #index, __restore, #with::from_pytree, #absent)
            },
            (Stored::At(index), None) => quote_spanned! {span=>
                #support::get_at::<#ty>(&__items, #index, __restore, #absent)
            },
            (Stored::Flattened | Stored::Skipped, _) => quote_spanned! {span=>
                <#ty as #krate::tree::Pytree>::unflatten(__node, __restore)
            },
        }
    }

    pub fn check(&self) -> TokenStream {
        let (support, krate) = (self.support(), self.krate);
        self.in_place(|field| {
            let (value, ty, span) = ((self.place)(field), &field.ty, Self::span(field));
            let optional = field.default.is_some();
            match (&field.stored, &field.with) {
                // A field that a module converts fits if the conversion succeeds.
                (_, Some(_)) => {
                    let get = self.get(field);
                    quote!(let _: ::core::option::Option<#ty> = #get;)
                }
                (Stored::Named(name), None) => quote_spanned! {span=>
                    #support::check::<#ty>(__node, #name, #value, #optional, __restore);
                },
                (Stored::At(index), None) if self.product.shape == Shape::Tuple => quote_spanned! {span=>
                    #support::check_at::<#ty>(&__items, #index, #value, #optional, __restore);
                },
                _ => quote_spanned!(span=> <#ty as #krate::tree::Pytree>::check(#value, __node, __restore);),
            }
        })
    }

    /// Statements that load the fields from `__node`. A missing field stays unchanged.
    pub fn load_into(&self) -> TokenStream {
        let (support, krate) = (self.support(), self.krate);
        self.in_place(|field| {
            let (value, ty, span) = ((self.place)(field), &field.ty, Self::span(field));
            let is_tuple = self.product.shape == Shape::Tuple;
            match (&field.stored, &field.with) {
                (stored, Some(_)) => {
                    let get = self.get(field);
                    let replace = quote!(#support::replace(#value, #get););
                    match stored {
                        Stored::Named(name) => quote!(if __node.child(#name).is_some() { #replace }),
                        Stored::At(index) if is_tuple => quote!(if __items.len() > #index { #replace }),
                        _ => replace,
                    }
                }
                (Stored::Named(name), None) => quote_spanned! {span=>
                    #support::load::<#ty>(__node, #name, #value, __restore);
                },
                (Stored::At(index), None) if is_tuple => quote_spanned! {span=>
                    #support::load_at::<#ty>(&__items, #index, #value, __restore);
                },
                _ => quote_spanned!(span=> <#ty as #krate::tree::Pytree>::load_into(#value, __node, __restore);),
            }
        })
    }

    /// The code of `check` and `load_into` around the code for their fields.
    fn in_place(&self, each: impl Fn(&Field) -> TokenStream) -> TokenStream {
        let (support, name) = (self.support(), self.name);
        let fields = self.product.stored().map(each);
        match self.product.shape {
            Shape::Newtype => quote!(#(#fields)*),
            Shape::Tuple => {
                let expect = self.expect_tuple();
                quote!(if let ::core::option::Option::Some(__items) = #expect { #(#fields)* })
            }
            Shape::Named => {
                quote!(if #support::expect_struct(__node, #name, __restore).is_some() { #(#fields)* })
            }
            Shape::Unit => quote!(let _ = #support::expect_unit(__node, #name, __restore);),
        }
    }

    fn expect_tuple(&self) -> TokenStream {
        let (support, name, len) = (self.support(), self.name, self.product.tuple_len());
        quote!(#support::expect_tuple(__node, #len, #name, __restore))
    }
}
