//! `#[host]`: a function of the host that the guest can call.

use crate::interface::{Head, Interface, Options, private};
use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Result, Type, parse2};

/// The declared function with a body that asks the host, or an error.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    expand_or_error(options, item).unwrap_or_else(Error::into_compile_error)
}

fn expand_or_error(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let Head { attributes, visibility, signature, body } = parse2(item)?;
    if body.to_string() != ";" {
        return Err(Error::new_spanned(body, "the host has the body: end this declaration with `;`"));
    }
    let options: Options = parse2(options)?;
    let notify = options.notify.clone();
    let interface = Interface::new(options, &signature)?;
    if let Type::Reference(reference) = &interface.result {
        return Err(Error::new_spanned(reference, "a reply is a value of its own: return an owned type"));
    }
    let private = private();
    let arguments = interface.parameters.iter().map(|it| &it.name);
    let result = &interface.result;
    if let Some(notify) = &notify
        && !matches!(result, Type::Tuple(tuple) if tuple.elems.is_empty())
    {
        return Err(Error::new(notify.span(), "nobody waits for a result: leave out `notify`, or return nothing"));
    }
    // `(x)` is `x`, as on the wire.
    let call = match notify {
        Some(_) => quote!(#private::host_notify(CORACLE_KEY, &(#(#arguments),*))),
        None => quote!(#private::host_call::<_, #result>(CORACLE_KEY, &(#(#arguments),*))),
    };
    let answer = if interface.fallible {
        quote!(::core::result::Result::map_err(#call, ::core::convert::From::from))
    } else {
        quote! {
            match #call {
                ::core::result::Result::Ok(value) => value,
                ::core::result::Result::Err(error) => {
                    ::core::panic!("host function `{}`: {}", CORACLE_NAME, error)
                }
            }
        }
    };
    let items = interface.items("REQUIRE");
    Ok(quote! {
        #(#attributes)*
        #visibility #signature {
            #items
            #answer
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expansion of `#[host(options)] item`, without white space.
    fn expansion(options: &str, item: &str) -> String {
        expand(options.parse().unwrap(), item.parse().unwrap()).to_string().replace([' ', '\n'], "")
    }

    #[track_caller]
    fn contains(item: &str, wanted: &[&str]) {
        let expansion = expansion("", item);
        assert!(!expansion.contains("compile_error"), "{expansion}");
        for wanted in wanted {
            assert!(expansion.contains(&wanted.replace(' ', "")), "{wanted}\nis not in\n{expansion}");
        }
    }

    #[track_caller]
    fn refused(item: &str, message: &str) {
        let expansion = expansion("", item);
        assert!(expansion.contains("compile_error"), "{expansion}");
        assert!(expansion.contains(&message.replace(' ', "")), "{expansion}");
    }

    #[test]
    fn a_declaration_gets_a_body() {
        contains(
            "#[inline] pub(crate) fn greet(name: &str) -> String;",
            &[
                "#[inline] pub(crate) fn greet(name: &str) -> String {",
                "const CORACLE_NAME: &::core::primitive::str = \"greet\"",
                "NamedType = <&'static str as",
                "note::REQUIRE",
                "::coracle_guest::__private::host_call::<_, String>(CORACLE_KEY, &(name))",
                "::core::panic!",
            ],
        );
    }

    #[test]
    fn arguments_are_what_their_tuple_is() {
        contains("fn f();", &["host_call::<_, ()>(CORACLE_KEY, &())"]);
        contains("fn f(a: u8, b: Vec<u8>);", &["(CORACLE_KEY, &(a, b))"]);
    }

    #[test]
    fn a_result_is_passed_on() {
        contains("fn f() -> Result<u8, HostError>;", &["host_call::<_, u8>", "map_err", "NamedType = <u8 as"]);
    }

    #[test]
    fn what_nobody_waits_for_returns_nothing() {
        let notify = |item: &str| expansion("notify, name = \"metrics.count\"", item);
        let text = notify("fn count(n: u64);");
        assert!(text.contains("host_notify(CORACLE_KEY,&(n))") && text.contains("\"metrics.count\""), "{text}");
        assert!(notify("fn count() -> Result<(), HostError>;").contains("map_err(::coracle_guest"));
        assert!(notify("fn count() -> u8;").contains("compile_error"));
    }

    #[test]
    fn what_cannot_be_declared_is_refused() {
        refused("fn f() {}", "end this declaration with `;`");
        refused("fn f() -> &str;", "return an owned type");
        refused("fn f() -> Result<&str, HostError>;", "return an owned type");
        refused("async fn f();", "leave out `async`");
        refused("fn f(&self);", "use a function");
        refused("fn f<T>(t: T);", "no generic types");
    }
}
