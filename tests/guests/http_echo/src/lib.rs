//! Answers each request with its own headers and body, as any component of `wasi:http`
//! may: it knows nothing of this host.

mod bindings {
    wit_bindgen::generate!({
        path: ["../../../wit", "../http/wit"],
        world: "event-host:http-guests/plain",
        generate_all,
    });
}

use bindings::exports::wasi::http::incoming_handler::Guest;
use bindings::wasi::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};

/// The most that a stream takes at once.
const PIECE: usize = 4096;

struct Echo;

impl Guest for Echo {
    fn handle(request: IncomingRequest, answer: ResponseOutparam) {
        let fields = Fields::from_list(&request.headers().entries()).expect("the request's own");
        let response = OutgoingResponse::new(fields);
        let body = response.body().expect("its first");
        ResponseOutparam::set(answer, Ok(response));
        let incoming = request.consume().expect("its first");
        let input = incoming.stream().expect("its first");
        let output = body.write().expect("its first");
        while let Ok(data) = input.blocking_read(1 << 16) {
            for piece in data.chunks(PIECE) {
                output.blocking_write_and_flush(piece).expect("somebody reads it");
            }
        }
        drop(output);
        OutgoingBody::finish(body, None).expect("it has as many bytes as it says");
    }
}

bindings::export!(Echo with_types_in bindings);
