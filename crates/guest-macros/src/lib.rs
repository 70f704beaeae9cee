//! The attribute macros of `coracle-guest`, which documents them.
//!
//! An expansion is as thin as it can be: it names types, and leaves everything else to functions of the guest crate
//! (behind `__private`) and to `const` functions of the ABI crate. What a program says about itself, its notes, is
//! so made in one place, and this crate knows syntax only.
//!
//! | module | what it does |
//! |---|---|
//! | `interface` | what both kinds of functions have: name, parameters, result; and what they must not have |
//! | `function` | `#[function]` |
//! | `host` | `#[host]` |

mod function;
mod host;
mod interface;

use proc_macro::TokenStream;

/// Lets the host call this function.
#[proc_macro_attribute]
pub fn function(options: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(options.into(), item.into()).into()
}

/// Declares a function of the host.
#[proc_macro_attribute]
pub fn host(options: TokenStream, item: TokenStream) -> TokenStream {
    host::expand(options.into(), item.into()).into()
}
