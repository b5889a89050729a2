//! What `#[handler]` makes of a function.
//!
//! Whatever the syntax shows to be wrong is said here, at its place. What only
//! types can show (the argument is no `Event`, the error cannot become a
//! `Failure`) is left to the compiler, in an expression that has the place of
//! the type that is wrong.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, PatType, ReturnType, Type};

const WANTED: &str = "a handler looks like `fn name(event: Event) -> Result<(), Failure>`";

/// The function and, beside it, the component's export or the errors.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = match syn::parse2::<ItemFn>(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let error = Error::new(error.span(), format!("{WANTED}, and this is no function"));
            let error = error.to_compile_error();
            return quote! { #item #error };
        }
    };
    let addition = match check(&attribute, &function) {
        Ok(signature) => export(&function, signature),
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

fn check<'a>(attribute: &TokenStream, function: &'a ItemFn) -> Result<Signature<'a>, Error> {
    let mut errors = Errors::default();
    if !attribute.is_empty() {
        errors.at(attribute, "`#[handler]` takes no arguments");
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
            errors.at(receiver, &format!("a handler is no method: {WANTED}"));
            None
        }
        [] => {
            errors.at(&signature.ident, &format!("the argument is missing: {WANTED}"));
            None
        }
        [_, ref others @ ..] => {
            for other in others {
                errors.at(other, &format!("one argument too many: {WANTED}"));
            }
            None
        }
    };
    let result = match &signature.output {
        ReturnType::Type(_, result) => Some(&**result),
        ReturnType::Default => {
            errors.at(signature, &format!("the result is missing: {WANTED}"));
            None
        }
    };
    errors.finish()?;
    match (argument, result) {
        (Some(argument), Some(result)) => Ok(Signature { argument, result }),
        // Without an error above, both are there; an error is the safe answer.
        _ => Err(Error::new(signature.span(), WANTED)),
    }
}

fn export(function: &ItemFn, Signature { argument, result }: Signature<'_>) -> TokenStream {
    let name = &function.sig.ident;
    let event = quote_spanned! { argument.span() => event };
    let call = quote_spanned! { result.span() =>
        ::event_host_sdk::__private::into_failure(#name(#event))
    };
    quote! {
        const _: () = {
            // Natively only the compiler reads this, to find wrong types.
            #[allow(dead_code)]
            fn handle(
                event: ::event_host_sdk::Event,
            ) -> ::core::result::Result<(), ::event_host_sdk::Failure> {
                #call
            }

            #[cfg(target_family = "wasm")]
            const _: () = {
                struct Component;

                impl ::event_host_sdk::__private::Guest for Component {
                    fn handle(
                        event: ::event_host_sdk::__private::Event,
                    ) -> ::core::result::Result<(), ::event_host_sdk::__private::Failure> {
                        ::event_host_sdk::__private::handle(event, handle)
                    }
                }

                ::event_host_sdk::__private::export!(
                    Component with_types_in ::event_host_sdk::__private::bindings
                );
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

    fn errors_of(attribute: TokenStream, item: TokenStream) -> Vec<String> {
        let function = syn::parse2::<ItemFn>(item).unwrap();
        match check(&attribute, &function) {
            Ok(_) => Vec::new(),
            Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn a_plain_function_becomes_an_export_and_stays_callable() {
        let item = quote! { fn triage(event: Event) -> Result<(), Failure> { Ok(()) } };
        let expanded = expand(TokenStream::new(), item.clone()).to_string();
        assert!(expanded.starts_with(&item.to_string()), "{expanded}");
        assert!(expanded.contains("export"), "{expanded}");
        assert!(!expanded.contains("compile_error"), "{expanded}");
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
        for (attribute, item, message) in wrong {
            let errors = errors_of(attribute, item.clone());
            assert_eq!(errors.len(), 1, "{item}: {errors:?}");
            assert!(errors[0].contains(message), "{item}: {errors:?}");
        }
        assert!(errors_of(none, quote! { fn f(event: Event) -> R { x } }).is_empty());
    }

    #[test]
    fn one_build_shows_every_error_of_a_signature() {
        let errors = errors_of(quote!(x), quote! { async fn f() {} });
        assert_eq!(errors.len(), 4, "{errors:?}");
    }

    #[test]
    fn what_is_no_function_is_told_what_a_handler_looks_like() {
        let expanded = expand(TokenStream::new(), quote! { struct Handler; }).to_string();
        assert!(expanded.contains("this is no function"), "{expanded}");
        assert!(expanded.contains("struct Handler"), "{expanded}");
    }
}
