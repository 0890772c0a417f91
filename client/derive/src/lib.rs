//! The derive macro of `pg-outbox`, which exports it with the feature `derive`.

mod expand;
mod options;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements the trait `OutboxEvent` of `pg-outbox` for a struct. The documentation of the trait describes the attribute
/// `#[outbox(..)]`.
#[proc_macro_derive(OutboxEvent, attributes(outbox))]
pub fn derive_outbox_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::implementation(&input).unwrap_or_else(Error::into_compile_error).into()
}
