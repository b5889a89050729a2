//! `wasi:http` as a guest calls it: what `wasmtime-wasi-http` does, with every call
//! counted against the instance's memory, and with texts of a bounded length.
//!
//! Every call goes through here, those that take nothing too, so that none is forgotten
//! when another one comes to make the host keep something.

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::bindings::io::error::Error as IoError;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable};
use wasmtime_wasi_http::p2::bindings::LinkOptions;
use wasmtime_wasi_http::p2::bindings::http::types::{
    self, Duration, ErrorCode, Method, Scheme, StatusCode, Trailers,
};
use wasmtime_wasi_http::p2::bindings::http::{outgoing_handler, types::HeaderError as FieldsError};
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody, HostOutgoingBody};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingRequest, HostIncomingResponse, HostOutgoingRequest,
    HostOutgoingResponse, HostResponseOutparam,
};
use wasmtime_wasi_http::p2::{HeaderError, HeaderResult, HttpError, HttpResult};
use wasmtime_wasi_http::{FieldMap, RequestOptions, WasiHttpCtxView, WasiHttpView};

use super::HostState;

/// Bytes of a method. The longest that is registered has 17.
const METHOD_BYTES: usize = 64;

/// Bytes of a path with its query: as much as servers commonly take.
const PATH_BYTES: usize = 8 << 10;

/// Bytes of a host with its port. The longest name has 253, and each of them may be
/// written as three.
const AUTHORITY_BYTES: usize = 1 << 10;

/// Bytes of a scheme.
const SCHEME_BYTES: usize = 64;

/// What one call adds at most to what the host keeps, in bytes: a connection, or header
/// fields, and the resource that stands for it.
const MOST_A_CALL: usize = 256 << 10;

impl WasiHttpView for HostState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.resources)
    }
}

/// Links `wasi:http` for requests that go out.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    outgoing_handler::add_to_linker::<_, CountedHttp>(linker, count_for)?;
    types::add_to_linker::<_, CountedHttp>(linker, &(&LinkOptions::default()).into(), count_for)
}

struct CountedHttp;

impl HasData for CountedHttp {
    type Data<'a> = Counted<'a>;
}

/// The host's side of one call.
struct Counted<'a>(&'a mut HostState);

/// The call of a guest with this side.
fn count_for(host: &mut HostState) -> Counted<'_> {
    Counted(host)
}

impl Counted<'_> {
    /// Counts what a call has made the host keep.
    fn count(&mut self) -> wasmtime::Result<()> {
        self.0.charge_resources(MOST_A_CALL);
        self.0.within_memory()
    }
}

/// An answer that can end the attempt instead.
trait Trap {
    fn trap(error: wasmtime::Error) -> Self;
}

impl Trap for wasmtime::Error {
    fn trap(error: wasmtime::Error) -> Self {
        error
    }
}

impl Trap for HeaderError {
    fn trap(error: wasmtime::Error) -> Self {
        Self::trap(error)
    }
}

impl Trap for HttpError {
    fn trap(error: wasmtime::Error) -> Self {
        Self::trap(error)
    }
}

/// Each function of each interface: called as it is, and counted.
macro_rules! counted {
    ($($interface:ident { $(fn $name:ident($($argument:ident: $of:ty),*) -> $answer:ty;)* })*) => {
        $(
            impl types::$interface for Counted<'_> {
                $(counted!(@function $interface $name ($($argument: $of),*) $answer);)*
            }
        )*
    };
    (@function $interface:ident $name:ident ($($argument:ident: $of:ty),*) $answer:ty) => {
        fn $name(&mut self, $($argument: $of),*) -> $answer {
            let answer = types::$interface::$name(&mut self.0.http(), $($argument),*)?;
            self.count().map(|()| answer).map_err(Trap::trap)
        }
    };
}

counted! {
    HostFields {
        fn new() -> wasmtime::Result<Resource<FieldMap>>;
        fn from_list(entries: Vec<(String, Vec<u8>)>) -> HeaderResult<Resource<FieldMap>>;
        fn get(fields: Resource<FieldMap>, name: String) -> wasmtime::Result<Vec<Vec<u8>>>;
        fn has(fields: Resource<FieldMap>, name: String) -> wasmtime::Result<bool>;
        fn set(fields: Resource<FieldMap>, name: String, values: Vec<Vec<u8>>) -> HeaderResult<()>;
        fn delete(fields: Resource<FieldMap>, name: String) -> HeaderResult<()>;
        fn append(fields: Resource<FieldMap>, name: String, value: Vec<u8>) -> HeaderResult<()>;
        fn entries(fields: Resource<FieldMap>) -> wasmtime::Result<Vec<(String, Vec<u8>)>>;
        fn clone(fields: Resource<FieldMap>) -> wasmtime::Result<Resource<FieldMap>>;
        fn drop(fields: Resource<FieldMap>) -> wasmtime::Result<()>;
    }
    HostIncomingRequest {
        fn method(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Method>;
        fn path_with_query(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Option<String>>;
        fn scheme(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Option<Scheme>>;
        fn authority(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Option<String>>;
        fn headers(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Resource<FieldMap>>;
        fn consume(request: Resource<HostIncomingRequest>) -> wasmtime::Result<Result<Resource<HostIncomingBody>, ()>>;
        fn drop(request: Resource<HostIncomingRequest>) -> wasmtime::Result<()>;
    }
    HostResponseOutparam {
        fn set(param: Resource<HostResponseOutparam>, response: Result<Resource<HostOutgoingResponse>, ErrorCode>) -> wasmtime::Result<()>;
        fn send_informational(param: Resource<HostResponseOutparam>, status: StatusCode, headers: Resource<FieldMap>) -> HttpResult<()>;
        fn drop(param: Resource<HostResponseOutparam>) -> wasmtime::Result<()>;
    }
    HostIncomingResponse {
        fn status(response: Resource<HostIncomingResponse>) -> wasmtime::Result<StatusCode>;
        fn headers(response: Resource<HostIncomingResponse>) -> wasmtime::Result<Resource<FieldMap>>;
        fn consume(response: Resource<HostIncomingResponse>) -> wasmtime::Result<Result<Resource<HostIncomingBody>, ()>>;
        fn drop(response: Resource<HostIncomingResponse>) -> wasmtime::Result<()>;
    }
    HostFutureTrailers {
        fn subscribe(trailers: Resource<HostFutureTrailers>) -> wasmtime::Result<Resource<DynPollable>>;
        fn get(trailers: Resource<HostFutureTrailers>) -> wasmtime::Result<Option<Result<Result<Option<Resource<Trailers>>, ErrorCode>, ()>>>;
        fn drop(trailers: Resource<HostFutureTrailers>) -> wasmtime::Result<()>;
    }
    HostIncomingBody {
        fn stream(body: Resource<HostIncomingBody>) -> wasmtime::Result<Result<Resource<DynInputStream>, ()>>;
        fn finish(body: Resource<HostIncomingBody>) -> wasmtime::Result<Resource<HostFutureTrailers>>;
        fn drop(body: Resource<HostIncomingBody>) -> wasmtime::Result<()>;
    }
    HostOutgoingResponse {
        fn new(headers: Resource<FieldMap>) -> wasmtime::Result<Resource<HostOutgoingResponse>>;
        fn body(response: Resource<HostOutgoingResponse>) -> wasmtime::Result<Result<Resource<HostOutgoingBody>, ()>>;
        fn status_code(response: Resource<HostOutgoingResponse>) -> wasmtime::Result<StatusCode>;
        fn set_status_code(response: Resource<HostOutgoingResponse>, status: StatusCode) -> wasmtime::Result<Result<(), ()>>;
        fn headers(response: Resource<HostOutgoingResponse>) -> wasmtime::Result<Resource<FieldMap>>;
        fn drop(response: Resource<HostOutgoingResponse>) -> wasmtime::Result<()>;
    }
    HostFutureIncomingResponse {
        fn get(response: Resource<HostFutureIncomingResponse>) -> wasmtime::Result<Option<Result<Result<Resource<HostIncomingResponse>, ErrorCode>, ()>>>;
        fn subscribe(response: Resource<HostFutureIncomingResponse>) -> wasmtime::Result<Resource<DynPollable>>;
        fn drop(response: Resource<HostFutureIncomingResponse>) -> wasmtime::Result<()>;
    }
    HostOutgoingBody {
        fn write(body: Resource<HostOutgoingBody>) -> wasmtime::Result<Result<Resource<DynOutputStream>, ()>>;
        fn finish(body: Resource<HostOutgoingBody>, trailers: Option<Resource<Trailers>>) -> HttpResult<()>;
        fn drop(body: Resource<HostOutgoingBody>) -> wasmtime::Result<()>;
    }
    HostRequestOptions {
        fn new() -> wasmtime::Result<Resource<RequestOptions>>;
        fn connect_timeout(options: Resource<RequestOptions>) -> wasmtime::Result<Option<Duration>>;
        fn set_connect_timeout(options: Resource<RequestOptions>, duration: Option<Duration>) -> wasmtime::Result<Result<(), ()>>;
        fn first_byte_timeout(options: Resource<RequestOptions>) -> wasmtime::Result<Option<Duration>>;
        fn set_first_byte_timeout(options: Resource<RequestOptions>, duration: Option<Duration>) -> wasmtime::Result<Result<(), ()>>;
        fn between_bytes_timeout(options: Resource<RequestOptions>) -> wasmtime::Result<Option<Duration>>;
        fn set_between_bytes_timeout(options: Resource<RequestOptions>, duration: Option<Duration>) -> wasmtime::Result<Result<(), ()>>;
        fn drop(options: Resource<RequestOptions>) -> wasmtime::Result<()>;
    }
}

impl types::Host for Counted<'_> {
    fn http_error_code(&mut self, error: Resource<IoError>) -> wasmtime::Result<Option<ErrorCode>> {
        types::Host::http_error_code(&mut self.0.http(), error)
    }

    fn convert_error_code(&mut self, error: HttpError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn convert_header_error(&mut self, error: HeaderError) -> wasmtime::Result<FieldsError> {
        error.downcast()
    }
}

impl outgoing_handler::Host for Counted<'_> {
    fn handle(
        &mut self,
        request: Resource<HostOutgoingRequest>,
        options: Option<Resource<RequestOptions>>,
    ) -> HttpResult<Resource<HostFutureIncomingResponse>> {
        let answer = outgoing_handler::Host::handle(&mut self.0.http(), request, options)?;
        self.count().map_err(HttpError::trap)?;
        Ok(answer)
    }
}

/// What the contract says of a text that cannot be.
type Taken = wasmtime::Result<Result<(), ()>>;

/// Whether a text is longer than it may be.
fn is_too_long(text: Option<&String>, most: usize) -> bool {
    text.is_some_and(|text| text.len() > most)
}

impl types::HostOutgoingRequest for Counted<'_> {
    fn set_method(&mut self, request: Resource<HostOutgoingRequest>, method: Method) -> Taken {
        let other = if let Method::Other(other) = &method { Some(other) } else { None };
        if is_too_long(other, METHOD_BYTES) {
            return Ok(Err(()));
        }
        let answer = self.0.http().set_method(request, method)?;
        self.count()?;
        Ok(answer)
    }

    fn set_path_with_query(
        &mut self,
        request: Resource<HostOutgoingRequest>,
        path: Option<String>,
    ) -> Taken {
        if is_too_long(path.as_ref(), PATH_BYTES) {
            return Ok(Err(()));
        }
        let answer = self.0.http().set_path_with_query(request, path)?;
        self.count()?;
        Ok(answer)
    }

    fn set_scheme(
        &mut self,
        request: Resource<HostOutgoingRequest>,
        scheme: Option<Scheme>,
    ) -> Taken {
        let other = if let Some(Scheme::Other(other)) = &scheme { Some(other) } else { None };
        if is_too_long(other, SCHEME_BYTES) {
            return Ok(Err(()));
        }
        let answer = self.0.http().set_scheme(request, scheme)?;
        self.count()?;
        Ok(answer)
    }

    fn set_authority(
        &mut self,
        request: Resource<HostOutgoingRequest>,
        authority: Option<String>,
    ) -> Taken {
        if is_too_long(authority.as_ref(), AUTHORITY_BYTES) {
            return Ok(Err(()));
        }
        let answer = self.0.http().set_authority(request, authority)?;
        self.count()?;
        Ok(answer)
    }

    counted!(@function HostOutgoingRequest new
        (headers: Resource<FieldMap>) wasmtime::Result<Resource<HostOutgoingRequest>>);
    counted!(@function HostOutgoingRequest body
        (request: Resource<HostOutgoingRequest>)
        wasmtime::Result<Result<Resource<HostOutgoingBody>, ()>>);
    counted!(@function HostOutgoingRequest method
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<Method>);
    counted!(@function HostOutgoingRequest path_with_query
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<Option<String>>);
    counted!(@function HostOutgoingRequest scheme
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<Option<Scheme>>);
    counted!(@function HostOutgoingRequest authority
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<Option<String>>);
    counted!(@function HostOutgoingRequest headers
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<Resource<FieldMap>>);
    counted!(@function HostOutgoingRequest drop
        (request: Resource<HostOutgoingRequest>) wasmtime::Result<()>);
}
