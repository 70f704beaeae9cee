//! `#[function]`: a function of the guest that the host can call.

use crate::interface::{Head, Interface, Options, private, with_lifetime};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::visit::Visit;
use syn::{Error, Lifetime, Result, Type, parse2};

/// The item as it is, and after it what the host needs; or the item and an error.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let added = added(options, item.clone()).unwrap_or_else(Error::into_compile_error);
    quote!(#item #added)
}

/// A constant without a name around a note, an `invoke` function and an entry in the list of functions.
fn added(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let head: Head = parse2(item)?;
    if head.body.to_string() == ";" {
        let message = "a function of the guest has a body; one of the host is declared with `#[host]`";
        return Err(Error::new_spanned(head.body, message));
    }
    let options: Options = parse2(options)?;
    if let Some(notify) = options.notify {
        return Err(Error::new(notify.span(), "the host waits for its calls: `notify` is for `#[host]`"));
    }
    let interface = Interface::new(options, &head.signature)?;
    let mut arguments = Vec::new();
    let mut types = Vec::new();
    let mut passed = Vec::new();
    for (number, parameter) in interface.parameters.iter().enumerate() {
        refuse_static(&parameter.ty)?;
        // With the macro's own hygiene, so that no argument hides the function.
        let argument = format_ident!("argument_{number}", span = Span::mixed_site());
        let (ty, by_reference) = decoded(&parameter.ty);
        types.push(with_lifetime(&ty, "'coracle"));
        passed.push(if by_reference { quote!(&#argument) } else { quote!(#argument) });
        arguments.push(argument);
    }
    // `(T)` is `T`, as on the wire.
    let decode = quote! { let (#(#arguments),*): (#(#types),*) = };

    let private = private();
    let function = &head.signature.ident;
    let call = quote!(#function(#(#passed),*));
    let answer = if interface.fallible {
        quote! {
            match #call {
                ::core::result::Result::Ok(value) => output.reply(&value),
                ::core::result::Result::Err(error) => output.refuse(&error),
            }
        }
    } else {
        quote!(output.reply(&#call))
    };
    let conditions = head.attributes.iter().filter(|it| it.path().is_ident("cfg"));
    let items = interface.items("EXPORT");
    Ok(quote! {
        #(#conditions)*
        const _: () = {
            #items

            fn coracle_invoke<'coracle>(
                arguments: &'coracle [::core::primitive::u8],
                output: &mut #private::Output<'_>,
            ) -> ::core::result::Result<(), #private::Failure> {
                #decode #private::decode(arguments)?;
                #answer
            }

            #[#private::linkme::distributed_slice(#private::FUNCTIONS)]
            #[linkme(crate = #private::linkme)]
            static CORACLE_ENTRY: #private::Function =
                #private::Function { key: CORACLE_KEY, invoke: coracle_invoke };
        };
    })
}

/// The type to decode for a parameter of this type, and whether to pass a reference to it.
///
/// `&str` and `&[u8]` point into the host's message. Behind any other reference is a value that must be made first;
/// of a slice, a vector.
fn decoded(ty: &Type) -> (Type, bool) {
    let Type::Reference(reference) = ty else { return (ty.clone(), false) };
    match &*reference.elem {
        Type::Path(path) if path.path.is_ident("str") => (ty.clone(), false),
        Type::Slice(slice) if matches!(&*slice.elem, Type::Path(item) if item.path.is_ident("u8")) => {
            (ty.clone(), false)
        }
        Type::Slice(slice) => {
            let (private, item) = (private(), &slice.elem);
            (syn::parse_quote!(#private::alloc::vec::Vec<#item>), true)
        }
        inside => (inside.clone(), true),
    }
}

/// Refuses `'static` in a parameter: what lies in the host's message is gone after the call.
fn refuse_static(ty: &Type) -> Result<()> {
    struct Find(Option<Span>);
    impl<'t> Visit<'t> for Find {
        fn visit_lifetime(&mut self, lifetime: &'t Lifetime) {
            if lifetime.ident == "static" {
                self.0 = Some(lifetime.span());
            }
        }
    }
    let mut find = Find(None);
    find.visit_type(ty);
    match find.0 {
        Some(span) => Err(Error::new(span, "arguments last as long as the call: leave out `'static`")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expansion of `#[function(options)] item`, without white space.
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
    fn refused(options: &str, item: &str, message: &str) {
        let expansion = expansion(options, item);
        assert!(expansion.contains("compile_error"), "{expansion}");
        assert!(expansion.contains(&message.replace(' ', "")), "{expansion}");
        assert!(expansion.starts_with(&item.replace(' ', "")), "the item must stay");
    }

    #[test]
    fn the_item_stays_and_an_entry_is_added() {
        let item = "/// Adds.\n pub fn add(a: i32, b: i32) -> i32 { a + b }";
        contains(
            item,
            &[
                "pub fn add(a: i32, b: i32) -> i32 { a + b }",
                "const CORACLE_NAME: &::core::primitive::str = \"add\"",
                "const CORACLE_PARAMETERS: &::core::primitive::str = \"a,b\"",
                "#[used] #[unsafe(link_section = \".note.coracle\")]",
                "note::EXPORT",
                "let (argument_0, argument_1): (i32, i32) = ::coracle_guest::__private::decode(arguments)?;",
                "output.reply(&add(argument_0, argument_1))",
                "distributed_slice(::coracle_guest::__private::FUNCTIONS)",
            ],
        );
    }

    #[test]
    fn no_parameters_and_one() {
        contains(
            "fn f() {}",
            &[
                "let (): () =",
                "CORACLE_RESULT: & ::coracle_guest::__private::postcard_schema::schema::NamedType = <() as",
            ],
        );
        contains("fn f(x: T) {}", &["let (argument_0): (T) =", "NamedType = <T as"]);
    }

    #[test]
    fn references_point_into_the_message_or_to_a_value() {
        contains("fn f(a: &str, b: &[u8]) {}", &["(&'coracle str, &'coracle [u8])", "f(argument_0, argument_1)"]);
        contains("fn f(a: &Point) {}", &[": (Point) =", "f(&argument_0)", "<&'static Point as"]);
        contains("fn f(a: &[Point]) {}", &["Vec<Point>", "f(&argument_0)", "<&'static [Point] as"]);
        contains("fn f<'x>(a: Cow<'x, str>, b: Option<&str>) {}", &["(Cow<'coracle, str>, Option<&'coracle str>)"]);
    }

    #[test]
    fn a_result_is_taken_apart() {
        let wanted = ["NamedType = <String as", "Ok(value) => output.reply(&value)", "output.refuse(&error)"];
        contains("fn f() -> Result<String, E> { g() }", &wanted);
        contains("fn f() -> io::Result<String> { g() }", &wanted);
        contains("fn f() -> Option<String> { g() }", &["NamedType = <Option<String> as", "output.reply(&f())"]);
    }

    #[test]
    fn conditions_hold_for_what_is_added() {
        contains("#[cfg(feature = \"x\")] fn f() {}", &["#[cfg(feature = \"x\")] const _: () ="]);
    }

    #[test]
    fn names_are_plain_or_chosen() {
        contains("fn r#type(r#in: u8) {}", &["str = \"type\"", "str = \"in\"", "r#type(argument_0)"]);
        assert!(expansion("name = \"fs.read\"", "fn f() {}").contains("str=\"fs.read\""));
    }

    #[test]
    fn what_cannot_be_called_is_refused() {
        refused("", "async fn f() {}", "leave out `async`");
        refused("", "unsafe fn f() {}", "leave this out");
        refused("", "fn f<T>(t: T) {}", "no generic types");
        refused("", "fn f<const N: usize>() {}", "no generic types");
        refused("", "fn f(&self) {}", "use a function");
        refused("", "fn f((a, b): (u8, u8)) {}", "plain name");
        refused("", "fn f(_: u8) {}", "plain name");
        refused("", "fn f(a: impl Copy) {}", "no generic types");
        refused("", "fn f() -> Vec<impl Copy> {}", "no generic types");
        refused("", "fn f(a: &mut u8) {}", "leave out `mut`");
        refused("", "fn f() -> &mut u8 {}", "leave out `mut`");
        refused("", "fn f(a: &'static str) {}", "leave out `'static`");
        refused("", "fn f(#[cfg(x)] a: u8) {}", "the same parameters everywhere");
        refused("", "fn f(a: A, b: B, c: C, d: D, e: E, f: F, g: G) {}", "at most 6 parameters");
        refused("", "fn f();", "has a body");
        refused("", "struct S;", "expected");
        refused("nmae = \"f\"", "fn f() {}", "only options");
        refused("notify", "fn f() {}", "the host waits");
        refused("name = f", "fn f() {}", "expected string literal");
    }
}
