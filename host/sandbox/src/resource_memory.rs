//! The host's memory that the resources of one instance take.
//!
//! A guest makes resources by calls of WASI, and the host keeps them, with their bytes,
//! until the guest drops them. They are counted from what is in the table rather than
//! with each call: a count that is kept beside it would have to follow every way in which
//! a resource is made, filled, moved into another one, and dropped.

use http::HeaderMap;
use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::FieldMap;
use wasmtime_wasi_http::p2::bindings::http::types::{Method, Scheme};
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody, HostOutgoingBody};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};

use super::http::CHUNK_BYTES;

/// Bytes of any resource: its entry in the table, and a timer or the end of a task.
pub(super) const RESOURCE_BYTES: usize = 512;

/// Bytes of one header field besides its name and value: its entries in a table that may
/// be half empty.
const FIELD_BYTES: usize = 192;

/// The most bytes that the host keeps of a body that is not read: two chunks.
const BODY_BYTES: usize = 2 * CHUNK_BYTES;

/// Bytes of a connection whose response is awaited or read: 64 KiB for what is read, as
/// much for what is written, and as much for TLS and its tasks.
pub(super) const CONNECTION_BYTES: usize = 192 << 10;

/// Bytes of all resources.
pub(super) fn bytes(table: &mut ResourceTable) -> usize {
    table.iter_mut().map(|entry| RESOURCE_BYTES + of_one(entry)).sum()
}

/// Bytes of one resource besides [`RESOURCE_BYTES`].
fn of_one(entry: &dyn std::any::Any) -> usize {
    if let Some(request) = entry.downcast_ref::<HostOutgoingRequest>() {
        let HostOutgoingRequest { method, scheme, authority, path_with_query, headers, body } =
            request;
        let method = if let Method::Other(method) = method { method.capacity() } else { 0 };
        let scheme = if let Some(Scheme::Other(scheme)) = scheme { scheme.capacity() } else { 0 };
        let texts = [authority, path_with_query].into_iter().flatten().map(String::capacity);
        return method + scheme + texts.sum::<usize>() + fields(headers) + of_body(body.is_some());
    }
    if let Some(map) = entry.downcast_ref::<FieldMap>() {
        return fields(map);
    }
    if let Some(response) = entry.downcast_ref::<HostOutgoingResponse>() {
        return fields(&response.headers) + of_body(response.body.is_some());
    }
    if let Some(response) = entry.downcast_ref::<HostIncomingResponse>() {
        let connection = if response.body.is_some() { CONNECTION_BYTES } else { 0 };
        return fields(&response.headers) + connection;
    }
    let is_connection = match entry.downcast_ref::<HostFutureIncomingResponse>() {
        Some(answer) => !matches!(answer, HostFutureIncomingResponse::Consumed),
        None => entry.is::<HostIncomingBody>(),
    };
    if is_connection {
        return CONNECTION_BYTES;
    }
    match entry.downcast_ref::<HostFutureTrailers>() {
        Some(HostFutureTrailers::Waiting(_)) => CONNECTION_BYTES,
        Some(HostFutureTrailers::Done(Ok(Some(trailers)))) => fields(trailers),
        Some(HostFutureTrailers::Done(_) | HostFutureTrailers::Consumed) => 0,
        None => of_body(entry.is::<HostOutgoingBody>()),
    }
}

/// Bytes of a body, which is kept by its request and by its writer, whichever lives longer.
fn of_body(is_there: bool) -> usize {
    if is_there { BODY_BYTES } else { 0 }
}

/// Bytes of a set of header fields. Two resources may share one set until either is
/// changed; both count.
fn fields(map: &HeaderMap) -> usize {
    let names = map.keys().map(|name| name.as_str().len());
    names.sum::<usize>() + map.values().map(|value| value.len() + FIELD_BYTES).sum::<usize>()
}
