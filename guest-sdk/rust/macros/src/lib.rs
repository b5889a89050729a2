//! The attributes of `event-host-sdk`; use them through that crate.

mod handler;

use handler::Kind;
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
    handler::expand(Kind::Single, attribute.into(), item.into()).into()
}

/// Makes a plain function the component's handler of batches.
///
/// The function takes a `Vec<Event>` and returns a `Vec<Result<(), E>>`, one result
/// for each event and in their order, where `E` is what `handler` lets it be. A
/// component has one handler, of single events or of batches. The crate must be a
/// `cdylib`.
///
/// The function stays as it is, so tests call it like any other.
#[proc_macro_attribute]
pub fn batch_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(Kind::Batch, attribute.into(), item.into()).into()
}
