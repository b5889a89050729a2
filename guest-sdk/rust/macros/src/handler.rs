//! What `#[handler]` and `#[batch_handler]` make of a function.
//!
//! Whatever the syntax shows to be wrong is said here, at its place. What only
//! types can show (the argument is no `Event`, the error cannot become a
//! `Failure`) is left to the compiler, in an expression that has the place of
//! the type that is wrong.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, PatType, ReturnType, Type};

/// With what a handler is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One event.
    Single,
    /// Several events.
    Batch,
}

impl Kind {
    fn attribute(self) -> &'static str {
        match self {
            Self::Single => "`#[handler]`",
            Self::Batch => "`#[batch_handler]`",
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Single => "a handler looks like `fn name(event: Event) -> Result<(), Failure>`",
            Self::Batch => {
                "a batch handler looks like `fn name(events: Vec<Event>) -> Vec<Result<(), Failure>>`"
            }
        }
    }
}

/// The function and, beside it, the component's export or the errors.
pub(crate) fn expand(kind: Kind, attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let wanted = kind.wanted();
            let error = Error::new(error.span(), format!("{wanted}, and this is no function"));
            let error = error.to_compile_error();
            return quote! { #item #error };
        }
    };
    let addition = match check(kind, &attribute, &function) {
        Ok(signature) => export(kind, &function, signature),
        Err(error) => error.to_compile_error(),
    };
    // The function stays even beside an error, so that the one error does not
    // bring others about names that are missing.
    quote! { #function #addition }
}

/// The types of a signature that has the right shape.
struct Signature<'a> {
    argument: &'a Type,
    result: &'a Type,
}

fn check<'a>(
    kind: Kind,
    attribute: &TokenStream,
    function: &'a ItemFn,
) -> Result<Signature<'a>, Error> {
    let wanted = kind.wanted();
    let mut errors = Errors::default();
    if !attribute.is_empty() {
        errors.at(attribute, &format!("{} takes no arguments", kind.attribute()));
    }
    let signature = &function.sig;
    if let Some(keyword) = &signature.asyncness {
        errors.at(keyword, "a handler is not async: the host runs many, each blocks only itself");
    }
    if let Some(keyword) = &signature.unsafety {
        errors.at(keyword, "a handler cannot be unsafe: the host is its only caller");
    }
    if let Some(abi) = &signature.abi {
        errors.at(abi, "a handler is a plain Rust function; the attribute makes the export");
    }
    if !signature.generics.params.is_empty() {
        errors.at(&signature.generics, "a handler cannot be generic: the host names no types");
    }
    let argument = match signature.inputs.iter().collect::<Vec<_>>()[..] {
        [FnArg::Typed(PatType { ty, .. })] => Some(&**ty),
        [FnArg::Receiver(receiver)] => {
            errors.at(receiver, &format!("a handler is no method: {wanted}"));
            None
        }
        [] => {
            errors.at(&signature.ident, &format!("the argument is missing: {wanted}"));
            None
        }
        [_, ref others @ ..] => {
            for other in others {
                errors.at(other, &format!("one argument too many: {wanted}"));
            }
            None
        }
    };
    let result = match &signature.output {
        ReturnType::Type(_, result) => Some(&**result),
        ReturnType::Default => {
            errors.at(signature, &format!("the result is missing: {wanted}"));
            None
        }
    };
    errors.finish()?;
    match (argument, result) {
        (Some(argument), Some(result)) => Ok(Signature { argument, result }),
        // Without an error above, both are there; an error is the safe answer.
        _ => Err(Error::new(signature.span(), wanted)),
    }
}

fn export(
    kind: Kind,
    function: &ItemFn,
    Signature { argument, result }: Signature<'_>,
) -> TokenStream {
    let name = &function.sig.ident;
    let sdk = quote! { ::event_host_sdk };
    let private = quote! { ::event_host_sdk::__private };
    let answer = |failure| quote! { ::core::result::Result<(), #failure> };
    let (own, raw) = (answer(quote! { #sdk::Failure }), answer(quote! { #private::Failure }));
    // Names that no handler has: it may be called `handle`, too.
    let given = quote_spanned! { argument.span() => __event_host_given };
    match kind {
        Kind::Single => {
            let call = quote_spanned! { result.span() =>
                ::event_host_sdk::__private::into_failure(#name(#given))
            };
            let signature = quote! { fn __event_host_call(#given: #sdk::Event) -> #own };
            let guest = quote! {
                impl #private::Guest for Component {
                    fn handle(event: #private::Event) -> #raw {
                        #private::handle(event, __event_host_call)
                    }
                }

                #private::export!(Component with_types_in #private::bindings);
            };
            component(&signature, &call, &guest)
        }
        Kind::Batch => {
            let call = quote_spanned! { result.span() =>
                ::event_host_sdk::__private::into_failures(#name(#given))
            };
            let many = quote! { ::std::vec::Vec };
            let signature =
                quote! { fn __event_host_call(#given: #many<#sdk::Event>) -> #many<#own> };
            let guest = quote! {
                impl #private::BatchGuest for Component {
                    fn handle_batch(events: #many<#private::Event>) -> #many<#raw> {
                        #private::handle_batch(events, __event_host_call)
                    }
                }

                #private::export_batch!(Component with_types_in #private::bindings::batch);
            };
            component(&signature, &call, &guest)
        }
    }
}

/// The function that calls the handler, and what calls it from outside.
fn component(signature: &TokenStream, call: &TokenStream, guest: &TokenStream) -> TokenStream {
    quote! {
        const _: () = {
            // Natively only the compiler reads this, to find wrong types.
            #[allow(dead_code)]
            #signature {
                #call
            }

            #[cfg(target_family = "wasm")]
            const _: () = {
                struct Component;

                #guest
            };
        };
    }
}

/// Every error of a signature, so that one build shows them all.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn at(&mut self, place: impl ToTokens, message: &str) {
        let error = Error::new_spanned(place, message);
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn finish(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 2] = [Kind::Single, Kind::Batch];

    fn errors_of(kind: Kind, attribute: TokenStream, item: TokenStream) -> Vec<String> {
        let function = syn::parse2::<ItemFn>(item).unwrap();
        match check(kind, &attribute, &function) {
            Ok(_) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn a_plain_function_becomes_an_export_and_stays_callable() {
        for (kind, item, export) in [
            (
                Kind::Single,
                quote! { fn triage(event: Event) -> Result<(), Failure> { Ok(()) } },
                "export !",
            ),
            (
                Kind::Batch,
                quote! { fn triage(events: Vec<Event>) -> Vec<Result<(), Failure>> { vec![] } },
                "export_batch !",
            ),
        ] {
            let expanded = expand(kind, TokenStream::new(), item.clone()).to_string();
            let function = syn::parse2::<ItemFn>(item).unwrap().to_token_stream().to_string();
            assert!(expanded.starts_with(&function), "{expanded}");
            assert!(expanded.contains(export), "{expanded}");
            assert!(!expanded.contains("compile_error"), "{expanded}");
        }
    }

    #[test]
    fn a_handler_may_have_any_name() {
        for name in ["handle", "handle_batch", "given", "event", "main"] {
            let name = quote::format_ident!("{name}");
            for kind in KINDS {
                let item = quote! { fn #name(events: E) -> R { x } };
                let expanded = expand(kind, TokenStream::new(), item).to_string();
                // Its own function is what is called: nothing between the two has its name.
                let (_, addition) = expanded.split_once("const _").unwrap();
                let caller = addition.split("cfg").next().unwrap();
                assert!(!caller.contains(&format!("fn {name} ")), "{caller}");
                assert!(caller.contains(&format!("{name} (__event_host_given)")), "{caller}");
            }
        }
    }

    #[test]
    fn each_wrong_signature_is_told_what_is_wrong_with_it() {
        let none = TokenStream::new();
        let wrong = [
            (quote!(), quote! { async fn f(event: Event) -> R { x } }, "not async"),
            (quote!(), quote! { unsafe fn f(event: Event) -> R { x } }, "cannot be unsafe"),
            (quote!(), quote! { extern "C" fn f(event: Event) -> R { x } }, "plain Rust function"),
            (quote!(), quote! { fn f<T>(event: Event) -> R { x } }, "cannot be generic"),
            (quote!(), quote! { fn f() -> R { x } }, "argument is missing"),
            (quote!(), quote! { fn f(a: Event, b: u8) -> R { x } }, "one argument too many"),
            (quote!(), quote! { fn f(&self) -> R { x } }, "is no method"),
            (quote!(), quote! { fn f(event: Event) { x } }, "result is missing"),
            (quote!(batch), quote! { fn f(event: Event) -> R { x } }, "takes no arguments"),
        ];
        for kind in KINDS {
            for (attribute, item, message) in wrong.clone() {
                let errors = errors_of(kind, attribute, item.clone());
                assert_eq!(errors.len(), 1, "{item}: {errors:?}");
                assert!(errors[0].contains(message), "{item}: {errors:?}");
            }
            assert!(errors_of(kind, none.clone(), quote! { fn f(e: E) -> R { x } }).is_empty());
        }
    }

    #[test]
    fn each_kind_of_handler_is_told_what_its_own_looks_like() {
        let errors = KINDS.map(|kind| errors_of(kind, quote!(x), quote! { fn f() -> R { x } }));
        assert!(errors[0][0].starts_with("`#[handler]`"), "{errors:?}");
        assert!(errors[0][1].contains("(event: Event)"), "{errors:?}");
        assert!(errors[1][0].starts_with("`#[batch_handler]`"), "{errors:?}");
        assert!(errors[1][1].contains("(events: Vec<Event>)"), "{errors:?}");
    }

    #[test]
    fn one_build_shows_every_error_of_a_signature() {
        let errors = errors_of(Kind::Single, quote!(x), quote! { async fn f() {} });
        assert_eq!(errors.len(), 4, "{errors:?}");
    }

    #[test]
    fn what_is_no_function_is_told_what_a_handler_looks_like() {
        for kind in KINDS {
            let expanded = expand(kind, TokenStream::new(), quote! { struct Handler; }).to_string();
            assert!(expanded.contains("this is no function"), "{expanded}");
            assert!(expanded.contains("struct Handler"), "{expanded}");
        }
    }
}
