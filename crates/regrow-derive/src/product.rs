//! Code for one struct or variant: the bodies of the four functions of `Pytree`.
//!
//! Derived code names its variables `__build`, `__key`, `__node`, `__restore`, `__items` and `__field_0`, so that it
//! meets nothing of the user's.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Path;
use syn::spanned::Spanned;

use crate::attributes::FieldDefault;
use crate::plan::{Field, Product, Shape, Stored};

/// One product, with what its code needs to know.
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
    /// Where errors about a field point: at its type, or at the module that converts it; in the scope of derived
    /// code.
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
            let value = self.converted(field);
            let span = Self::span(field);
            match &field.stored {
                Stored::Skipped => quote!(),
                Stored::Named(name) => quote_spanned!(span=> #support::put(__build, #name, #value)?;),
                Stored::At(index) => quote_spanned!(span=> #support::put_at(__build, #index, #value)?;),
                Stored::Flattened => quote_spanned!(span=> #support::put_flattened(__build, #value)?;),
            }
        });
        match self.product.shape {
            Shape::Newtype => {
                let value = self.product.fields.iter().map(|field| self.converted(field));
                quote!(#(#krate::tree::Pytree::flatten(#value, #key, __build)?;)*)
            }
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

    /// A reference to what is stored of a field.
    fn converted(&self, field: &Field) -> TokenStream {
        let place = (self.place)(field);
        match &field.with {
            Some(with) => quote_spanned!(Self::span(field)=> &#with::to_pytree(#place)),
            None => place,
        }
    }

    /// An expression of type `Option<Self>` from `__node`.
    pub fn unflatten(&self) -> TokenStream {
        let (support, name, constructor, krate) = (self.support(), self.name, &self.constructor, self.krate);
        let get = self.product.stored().map(|field| {
            let (variable, ty) = (&field.variable, &field.ty);
            let absent = self.absent(field);
            let span = Self::span(field);
            let value = match (&field.stored, &field.with) {
                (Stored::Named(name), Some(with)) => {
                    quote_spanned!(span=> #support::get_with(__node, #name, __restore, #with::from_pytree, #absent))
                }
                (Stored::Named(name), None) if field.default.is_none() => {
                    quote_spanned!(span=> #support::get::<#ty>(__node, #name, __restore))
                }
                (Stored::Named(name), None) => {
                    quote_spanned!(span=> #support::get_or::<#ty>(__node, #name, __restore, #absent))
                }
                (Stored::At(index), Some(with)) => {
                    quote_spanned!(span=> #support::get_at_with(&__items, #index, __restore, #with::from_pytree, #absent))
                }
                (Stored::At(index), None) if field.default.is_none() => {
                    quote_spanned!(span=> #support::get_at::<#ty>(&__items, #index, __restore))
                }
                (Stored::At(index), None) => {
                    quote_spanned!(span=> #support::get_at_or::<#ty>(&__items, #index, __restore, #absent))
                }
                (Stored::Flattened | Stored::Skipped, _) => {
                    quote_spanned!(span=> <#ty as #krate::tree::Pytree>::unflatten(__node, __restore))
                }
            };
            // Every field is tried before the first `?`: one report names all differences.
            quote!(let #variable: ::core::option::Option<#ty> = #value;)
        });
        let members = self.product.fields.iter().map(|field| {
            let (member, variable) = (&field.member, &field.variable);
            match (&field.stored, &field.default) {
                (Stored::Skipped, Some(FieldDefault::Function(path))) => quote!(#member: #path()),
                (Stored::Skipped, _) => {
                    quote_spanned!(Self::span(field)=> #member: ::core::default::Default::default())
                }
                _ => quote!(#member: #variable?),
            }
        });
        let whole = quote!(::core::option::Option::Some(#constructor { #(#members),* }));
        match self.product.shape {
            Shape::Newtype => {
                let field = self.product.fields.iter().map(|field| {
                    let ty = &field.ty;
                    match &field.with {
                        Some(with) => {
                            quote_spanned!(Self::span(field)=> #support::unflatten_with(__node, __restore, #with::from_pytree))
                        }
                        None => quote_spanned!(Self::span(field)=> <#ty as #krate::tree::Pytree>::unflatten(__node, __restore)),
                    }
                });
                quote!(#(#field.map(#constructor))*)
            }
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

    /// What a missing field is: a closure that gives an `Option`.
    fn absent(&self, field: &Field) -> TokenStream {
        match &field.default {
            Some(FieldDefault::Trait) => {
                quote_spanned!(Self::span(field)=> || ::core::option::Option::Some(::core::default::Default::default()))
            }
            Some(FieldDefault::Function(path)) => quote!(|| ::core::option::Option::Some(#path())),
            None => quote!(|| ::core::option::Option::None),
        }
    }

    /// Statements that check the fields against `__node`.
    pub fn check(&self) -> TokenStream {
        let (support, krate) = (self.support(), self.krate);
        let fields = self.product.stored().map(|field| {
            let (value, optional, ty) = ((self.place)(field), field.default.is_some(), &field.ty);
            match (&field.stored, &field.with) {
                (Stored::Flattened, _) => quote_spanned!(Self::span(field)=> #krate::tree::Pytree::check(#value, __node, __restore);),
                (Stored::Named(name), None) => {
                    quote_spanned!(Self::span(field)=> #support::check(__node, #name, #value, #optional, __restore);)
                }
                (Stored::At(index), None) if !optional => {
                    quote_spanned!(Self::span(field)=> #support::check_at(&__items, #index, #value, __restore);)
                }
                // What a module converts, or a default stands in for, fits if it can be made.
                _ => {
                    let get = self.get_alone(field);
                    quote!(let _: ::core::option::Option<#ty> = #get;)
                }
            }
        });
        self.in_place(quote!(#(#fields)*), |field| match &field.with {
            Some(with) => {
                let ty = &field.ty;
                quote! {
                    let _: ::core::option::Option<#ty> =
                        #support::unflatten_with(__node, __restore, #with::from_pytree);
                }
            }
            None => {
                let value = (self.place)(field);
                quote_spanned!(Self::span(field)=> #krate::tree::Pytree::check(#value, __node, __restore);)
            }
        })
    }

    /// Statements that load the fields from `__node`.
    pub fn load_into(&self) -> TokenStream {
        let (support, krate) = (self.support(), self.krate);
        let fields = self.product.stored().map(|field| {
            let value = (self.place)(field);
            match (&field.stored, &field.with) {
                (Stored::Flattened, _) => quote_spanned!(Self::span(field)=> #krate::tree::Pytree::load_into(#value, __node, __restore);),
                (Stored::Named(name), None) => quote_spanned!(Self::span(field)=> #support::load(__node, #name, #value, __restore);),
                (Stored::At(index), None) => quote_spanned!(Self::span(field)=> #support::load_at(&__items, #index, #value, __restore);),
                (Stored::Named(name), Some(_)) => {
                    let get = self.get_alone(field);
                    quote!(if __node.child(#name).is_some() { #support::replace(#value, #get); })
                }
                _ => {
                    let get = self.get_alone(field);
                    quote!(#support::replace(#value, #get);)
                }
            }
        });
        self.in_place(quote!(#(#fields)*), |field| {
            let value = (self.place)(field);
            match &field.with {
                Some(with) => quote! {
                    #support::replace(#value, #support::unflatten_with(__node, __restore, #with::from_pytree));
                },
                None => quote_spanned!(Self::span(field)=> #krate::tree::Pytree::load_into(#value, __node, __restore);),
            }
        })
    }

    /// What `check` and `load_into` have in common around their fields.
    fn in_place(&self, fields: TokenStream, newtype: impl Fn(&Field) -> TokenStream) -> TokenStream {
        let (support, name) = (self.support(), self.name);
        match self.product.shape {
            Shape::Newtype => self.product.fields.iter().map(newtype).collect(),
            Shape::Tuple => {
                let expect = self.expect_tuple();
                quote!(if let ::core::option::Option::Some(__items) = #expect { #fields })
            }
            Shape::Named => {
                quote!(if #support::expect_struct(__node, #name, __restore).is_some() { #fields })
            }
            Shape::Unit => quote!(let _ = #support::expect_unit(__node, #name, __restore);),
        }
    }

    /// The expression that regrows one field with a module or a default.
    fn get_alone(&self, field: &Field) -> TokenStream {
        let (support, ty, absent) = (self.support(), &field.ty, self.absent(field));
        match (&field.stored, &field.with) {
            (Stored::Named(name), Some(with)) => {
                quote_spanned!(Self::span(field)=> #support::get_with::<_, #ty, _>(__node, #name, __restore, #with::from_pytree, #absent))
            }
            (Stored::At(index), Some(with)) => {
                quote_spanned!(Self::span(field)=> #support::get_at_with::<_, #ty, _>(&__items, #index, __restore, #with::from_pytree, #absent))
            }
            (Stored::At(index), None) => {
                quote_spanned!(Self::span(field)=> #support::get_at_or::<#ty>(&__items, #index, __restore, #absent))
            }
            _ => ty.to_token_stream(),
        }
    }

    fn expect_tuple(&self) -> TokenStream {
        let (support, name, len) = (self.support(), self.name, self.product.tuple_len());
        quote!(#support::expect_tuple(__node, #len, #name, __restore))
    }
}
