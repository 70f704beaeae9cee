//! What a function of either side looks like from the other: its name, its parameters and its result.
//!
//! This module decides what can be such a function, with an error at the token that prevents it, and writes the parts
//! of an expansion that both macros have: the constants that describe it, and its note.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, Ident, Lifetime, LitStr, Pat, PathArguments, Result,
    ReturnType, Safety, Signature, Token, Type, TypeImplTrait, TypeReference, Visibility,
};

/// `postcard-schema` describes tuples of up to this length, and the other side's arguments are such a tuple.
const PARAMETERS_MAX: usize = 6;

/// What can stand in the attribute's parentheses: nothing, or `name = "..."`, or `notify`, or both.
#[derive(Default)]
pub(crate) struct Options {
    /// The name for the other side, where it is not the function's own.
    name: Option<LitStr>,
    /// Where it says that nobody waits.
    pub(crate) notify: Option<Ident>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            if key == "name" && options.name.is_none() {
                input.parse::<Token![=]>()?;
                options.name = Some(input.parse()?);
            } else if key == "notify" && options.notify.is_none() {
                options.notify = Some(key);
            } else {
                return Err(Error::new(
                    key.span(),
                    "the only options are `name = \"...\"` and, for `#[host]`, `notify`",
                ));
            }
            if input.parse::<Option<Token![,]>>()?.is_none() {
                break;
            }
        }
        Ok(options)
    }
}

/// A function item up to its body.
pub(crate) struct Head {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// A block, or a semicolon.
    pub(crate) body: TokenStream,
}

impl Parse for Head {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        Ok(Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.parse()?,
        })
    }
}

/// One parameter.
pub(crate) struct Parameter {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

/// A function as the other side sees it.
pub(crate) struct Interface {
    name: LitStr,
    pub(crate) parameters: Vec<Parameter>,
    /// `T`, also where the function returns `Result<T, E>`.
    pub(crate) result: Type,
    /// Whether it returns `Result<T, E>`: whether the last part of the type's path reads so.
    pub(crate) fallible: bool,
}

impl Interface {
    /// Takes a function apart.
    ///
    /// # Errors
    /// If it is one that the other side cannot call.
    pub(crate) fn new(options: Options, signature: &Signature) -> Result<Self> {
        check_qualifiers(signature)?;
        let parameters = signature.inputs.iter().map(parameter).collect::<Result<Vec<_>>>()?;
        if let Some(extra) = parameters.get(PARAMETERS_MAX) {
            let message = format!("at most {PARAMETERS_MAX} parameters: put some of them into a struct");
            return Err(Error::new(extra.name.span(), message));
        }
        let name = options.name.unwrap_or_else(|| {
            let ident = signature.ident.unraw();
            LitStr::new(&ident.to_string(), ident.span())
        });
        let declared = match &signature.output {
            ReturnType::Default => syn::parse_quote!(()),
            ReturnType::Type(_, declared) => {
                refuse_impl_trait(declared)?;
                (**declared).clone()
            }
        };
        let (result, fallible) = match ok_type(&declared) {
            Some(ok) => (ok.clone(), true),
            None => (declared, false),
        };
        if let Type::Reference(TypeReference { mutability: Some(token), .. }) = &result {
            return Err(Error::new(token.span(), "a result is copied to the other side: leave out `mut`"));
        }
        Ok(Self { name, parameters, result, fallible })
    }

    /// Items that describe the function: `CORACLE_NAME`, `CORACLE_KEY`, and its note, whose type is the constant of
    /// this name in the ABI's module for notes.
    ///
    /// Their names are what a program does not use: its own types must mean the same beside them.
    pub(crate) fn items(&self, note_kind: &str) -> TokenStream {
        let private = private();
        let note_kind = Ident::new(note_kind, Span::call_site());
        let name = &self.name;
        let parameters: Vec<_> = self.parameters.iter().map(|it| it.name.unraw().to_string()).collect();
        let parameters = parameters.join(",");
        let arguments: Vec<_> = self.parameters.iter().map(|it| schema(&it.ty)).collect();
        // Not the tuple's own schema, so that an error about one of the types is at that type.
        let arguments = match &arguments[..] {
            [] => quote!(<() as #private::postcard_schema::Schema>::SCHEMA),
            [one] => one.clone(),
            more => quote! {
                &#private::postcard_schema::schema::NamedType {
                    name: "arguments",
                    ty: &#private::postcard_schema::schema::DataModelType::Tuple(&[#(#more),*]),
                }
            },
        };
        let result = schema(&self.result);
        quote! {
            const CORACLE_NAME: &::core::primitive::str = #name;
            const CORACLE_PARAMETERS: &::core::primitive::str = #parameters;
            const CORACLE_ARGUMENTS: &#private::postcard_schema::schema::NamedType = #arguments;
            const CORACLE_RESULT: &#private::postcard_schema::schema::NamedType = #result;
            const CORACLE_KEY: ::core::primitive::u64 =
                #private::abi::signature::key_from(CORACLE_NAME, CORACLE_ARGUMENTS, CORACLE_RESULT);
            #[used]
            #[unsafe(link_section = ".note.coracle")]
            static CORACLE_NOTE: #private::abi::note::Note<{
                #private::abi::note::function_bytes(
                    CORACLE_NAME, CORACLE_ARGUMENTS, CORACLE_RESULT, CORACLE_PARAMETERS,
                )
            }> = #private::abi::note::Note::function(
                #private::abi::note::#note_kind,
                CORACLE_NAME, CORACLE_ARGUMENTS, CORACLE_RESULT, CORACLE_PARAMETERS,
            );
        }
    }
}

/// Where the guest crate keeps what expansions need.
pub(crate) fn private() -> TokenStream {
    quote!(::coracle_guest::__private)
}

/// The type with `lifetime` for every lifetime in it, written or left out.
pub(crate) fn with_lifetime(ty: &Type, lifetime: &str) -> Type {
    let mut ty = ty.clone();
    SetLifetime(Lifetime::new(lifetime, Span::call_site())).visit_type_mut(&mut ty);
    ty
}

struct SetLifetime(Lifetime);

impl VisitMut for SetLifetime {
    fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
        *lifetime = self.0.clone();
    }

    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        reference.lifetime = Some(self.0.clone());
        visit_mut::visit_type_mut(self, &mut reference.elem);
    }
}

/// The expression for a type's schema.
fn schema(ty: &Type) -> TokenStream {
    let private = private();
    // The place of the type, so that an error points there, but the context of the expansion, so that the user's
    // lints do not look at it.
    let span = Span::call_site().located_at(ty.span());
    let ty = with_lifetime(ty, "'static");
    quote_spanned!(span=> <#ty as #private::postcard_schema::Schema>::SCHEMA)
}

/// Refuses what a function of the other side cannot be, all but its parameters' and its result's types.
fn check_qualifiers(signature: &Signature) -> Result<()> {
    if let Some(token) = &signature.asyncness {
        return Err(Error::new(token.span(), "a call returns its result, not a future: leave out `async`"));
    }
    if !matches!(signature.safety, Safety::Default) {
        return Err(Error::new(signature.safety.span(), "the other side cannot promise anything: leave this out"));
    }
    if let Some(token) = &signature.variadic {
        return Err(Error::new(token.span(), "a signature has a fixed number of parameters"));
    }
    for parameter in &signature.generics.params {
        if !matches!(parameter, GenericParam::Lifetime(_)) {
            return Err(Error::new(parameter.span(), "a signature has no generic types: write the types out"));
        }
    }
    Ok(())
}

/// Takes a parameter apart.
fn parameter(argument: &FnArg) -> Result<Parameter> {
    let typed = match argument {
        FnArg::Receiver(receiver) => {
            return Err(Error::new(receiver.span(), "methods cannot be called from the other side: use a function"));
        }
        FnArg::Typed(typed) => typed,
    };
    if let Some(attribute) = typed.attrs.iter().find(|it| it.path().is_ident("cfg") || it.path().is_ident("cfg_attr")) {
        return Err(Error::new(attribute.span(), "a signature has the same parameters everywhere"));
    }
    let name = match &*typed.pat {
        Pat::Ident(ident) if ident.by_ref.is_none() && ident.subpat.is_none() => ident.ident.clone(),
        pattern => return Err(Error::new(pattern.span(), "a parameter needs a plain name")),
    };
    refuse_impl_trait(&typed.ty)?;
    if let Type::Reference(TypeReference { mutability: Some(token), .. }) = &*typed.ty {
        return Err(Error::new(token.span(), "arguments are copies, which only the callee sees: leave out `mut`"));
    }
    Ok(Parameter { name, ty: (*typed.ty).clone() })
}

/// The `T` of a type that reads `Result<T, ...>`.
fn ok_type(declared: &Type) -> Option<&Type> {
    let Type::Path(path) = declared else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(ok) if last.ident == "Result" => Some(ok),
        _ => None,
    }
}

/// Refuses `impl Trait` anywhere in a type.
fn refuse_impl_trait(ty: &Type) -> Result<()> {
    struct Find(Option<Span>);
    impl<'t> Visit<'t> for Find {
        fn visit_type_impl_trait(&mut self, found: &'t TypeImplTrait) {
            self.0 = Some(found.span());
            visit::visit_type_impl_trait(self, found);
        }
    }
    let mut find = Find(None);
    find.visit_type(ty);
    match find.0 {
        Some(span) => Err(Error::new(span, "a signature has no generic types: write the type out")),
        None => Ok(()),
    }
}
