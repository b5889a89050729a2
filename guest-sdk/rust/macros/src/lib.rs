//! The attribute of `event-host-sdk`; use it through that crate.

mod handler;

use proc_macro::TokenStream;

/// Makes a plain function the component's handler of single events.
///
/// The function takes an `Event` and returns `Result<(), E>`, where `E` is
/// `Failure`, any `std::error::Error`, `anyhow::Error`, `Box<dyn Error>` or
/// `String`. A component has one handler. The crate must be a `cdylib`.
///
/// The function stays as it is, so tests call it like any other.
#[proc_macro_attribute]
pub fn handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(attribute.into(), item.into()).into()
}
