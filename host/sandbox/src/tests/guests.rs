//! Handlers written by hand, so that tests need no toolchain for WebAssembly
//! and can misbehave to the byte.
//!
//! A guest is a core module with the contract's metadata, which the host makes
//! a component of, as it does for guests of real languages. Memory: 0 to 511
//! free, 512 a message to emit, 640 what a host call answers, 1024 the
//! handler's answer, 2048 text, from 8192 what the host passes in.

use std::path::Path;

use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// A guest in parts; what is not given does what a good guest does.
pub(crate) struct Guest<'a> {
    /// Imports, and everything else that must come first.
    pub(crate) imports: &'a str,
    /// Memories, globals, functions, data.
    pub(crate) items: &'a str,
    /// The body of `cabi_realloc`, with its four parameters by number; the
    /// default gives memory from 8192 on and grows it.
    pub(crate) realloc: &'a str,
    /// The body of the function that is called after the answer was read.
    pub(crate) post: &'a str,
    /// The body of `handle`: `$event` is where the event is; the result is
    /// where the answer is.
    pub(crate) handle: &'a str,
}

const REALLOC: &str = r#"
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get 3)))
    (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow (i32.add (i32.shr_u (local.get 3) (i32.const 16)) (i32.const 1))))))
    (local.get $at)"#;

impl Default for Guest<'_> {
    fn default() -> Self {
        Self {
            imports: "",
            items: "",
            realloc: REALLOC,
            post: "(global.set $next (i32.const 8192))",
            handle: "(call $ok)",
        }
    }
}

impl Guest<'_> {
    /// The module's bytes.
    pub(crate) fn build(&self) -> Vec<u8> {
        module(&self.text())
    }

    /// The same for a guest that imports a clock, sockets and HTTP of WASI.
    pub(crate) fn build_with_wasi(&self) -> Vec<u8> {
        marked(&self.text(), "guest", &[IO, CLOCKS, SOCKETS, HTTP, WITH_WASI])
    }

    pub(super) fn text(&self) -> String {
        let Self { imports, items, realloc, post, handle } = self;
        format!(
            r#"(module
              {imports}
              (memory (export "memory") 2)
              (global $next (mut i32) (i32.const 8192))
              (func $ok (result i32)
                (i32.store8 (i32.const 1024) (i32.const 0))
                (i32.const 1024))
              (func $reject (param $at i32) (param $len i32) (result i32)
                (i32.store8 (i32.const 1024) (i32.const 1))
                (i32.store8 (i32.const 1032) (i32.const 1))
                (i32.store (i32.const 1040) (local.get $at))
                (i32.store (i32.const 1044) (local.get $len))
                (i32.const 1024))
              (func $retry (param $at i32) (param $len i32) (param $after i64) (result i32)
                (drop (call $reject (local.get $at) (local.get $len)))
                (i32.store8 (i32.const 1032) (i32.const 0))
                (i32.store8 (i32.const 1048) (i32.const 1))
                (i64.store (i32.const 1056) (local.get $after))
                (i32.const 1024))
              {items}
              (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {realloc})
              (func (export "cabi_post_event-host:handler/handler@0.1.0#handle") (param i32) {post})
              (func (export "event-host:handler/handler@0.1.0#handle") (param $event i32) (result i32)
                {handle}))"#
        )
    }
}

/// A handler of batches.
pub(crate) struct BatchGuest<'a> {
    /// Imports, and everything else that must come first.
    pub(crate) imports: &'a str,
    /// Globals, data.
    pub(crate) items: &'a str,
    /// Called for each event, which is at `$event`: gives 0 for a success and 1 for
    /// a rejection, whose text is the event's data.
    pub(crate) each: &'a str,
    /// How many results it answers: `$count` is the number of events.
    pub(crate) results: &'a str,
}

impl Default for BatchGuest<'_> {
    fn default() -> Self {
        Self { imports: "", items: "", each: "(i32.const 0)", results: "(local.get $count)" }
    }
}

impl BatchGuest<'_> {
    /// The module's bytes.
    pub(crate) fn build(&self) -> Vec<u8> {
        marked(&self.text(), "batch-event-handler", &[])
    }

    /// An event takes 112 bytes and a result 40.
    pub(super) fn text(&self) -> String {
        let Self { imports, items, each, results } = self;
        format!(
            r#"(module
              {imports}
              (memory (export "memory") 2)
              (global $next (mut i32) (i32.const 8192))
              {items}
              (func $realloc (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {REALLOC})
              (func $each (param $event i32) (result i32) {each})
              (func (export "cabi_post_event-host:handler/batch-handler@0.1.0#handle-batch") (param i32)
                (global.set $next (i32.const 8192)))
              (func (export "event-host:handler/batch-handler@0.1.0#handle-batch")
                (param $events i32) (param $count i32) (result i32)
                (local $n i32) (local $event i32) (local $results i32) (local $result i32)
                (local.set $results
                  (call $realloc (i32.const 0) (i32.const 0) (i32.const 8)
                    (i32.mul (local.get $count) (i32.const 40))))
                (block $done
                  (loop $more
                    (br_if $done (i32.ge_u (local.get $n) (local.get $count)))
                    (local.set $event
                      (i32.add (local.get $events) (i32.mul (local.get $n) (i32.const 112))))
                    (local.set $result
                      (i32.add (local.get $results) (i32.mul (local.get $n) (i32.const 40))))
                    (i32.store8 (local.get $result) (call $each (local.get $event)))
                    (i32.store8 offset=8 (local.get $result) (i32.const 1))
                    (i32.store offset=16 (local.get $result) (i32.load offset=76 (local.get $event)))
                    (i32.store offset=20 (local.get $result) (i32.load offset=80 (local.get $event)))
                    (local.set $n (i32.add (local.get $n) (i32.const 1)))
                    (br $more)))
                (i32.store (i32.const 1024) (local.get $results))
                (i32.store (i32.const 1028) {results})
                (i32.const 1024)))"#
        )
    }
}

/// A handler that does nothing, well.
pub(crate) fn noop() -> Vec<u8> {
    Guest::default().build()
}

/// A handler whose `handle` has this body.
pub(crate) fn handling(handle: &str) -> Vec<u8> {
    Guest { handle, ..Guest::default() }.build()
}

/// Imports a function of the contract.
pub(crate) fn import(interface: &str, name: &str, signature: &str) -> String {
    format!(
        r#"(import "event-host:handler/{interface}@0.1.0" "{name}" (func ${interface}_{} {signature}))"#,
        name.replace('-', "_")
    )
}

/// A core module of text, marked as the inside of an `event-handler`.
pub(crate) fn module(text: &str) -> Vec<u8> {
    marked(text, "event-handler", &[])
}

// The little of WASI that guests here call; a component may import a part of
// what the host has.
const IO: &str = "package wasi:io@0.2.0; interface poll { resource pollable; }";

const CLOCKS: &str = "package wasi:clocks@0.2.0;
    interface monotonic-clock {
        use wasi:io/poll@0.2.0.{pollable};
        subscribe-duration: func(when: u64) -> pollable;
    }";

const SOCKETS: &str = "package wasi:sockets@0.2.0;
    interface network {
        enum error-code {
            unknown, access-denied, not-supported, invalid-argument, out-of-memory, timeout,
            concurrency-conflict, not-in-progress, would-block, invalid-state, new-socket-limit,
            address-not-bindable, address-in-use, remote-unreachable, connection-refused,
            connection-reset, connection-aborted, datagram-too-large, name-unresolvable,
            temporary-resolver-failure, permanent-resolver-failure,
        }
        enum ip-address-family { ipv4, ipv6 }
    }
    interface tcp { resource tcp-socket; }
    interface udp { resource udp-socket; }
    interface tcp-create-socket {
        use network.{error-code, ip-address-family};
        use tcp.{tcp-socket};
        create-tcp-socket: func(address-family: ip-address-family) -> result<tcp-socket, error-code>;
    }
    interface udp-create-socket {
        use network.{error-code, ip-address-family};
        use udp.{udp-socket};
        create-udp-socket: func(address-family: ip-address-family) -> result<udp-socket, error-code>;
    }";

const HTTP: &str = "package wasi:http@0.2.0;
    interface types { resource fields { constructor(); } }";

const WITH_WASI: &str = "package test:guest;
    world guest {
        include event-host:handler/event-handler@0.1.0;
        import wasi:clocks/monotonic-clock@0.2.0;
        import wasi:http/types@0.2.0;
        import wasi:sockets/tcp-create-socket@0.2.0;
        import wasi:sockets/udp-create-socket@0.2.0;
    }";

/// A core module of text, marked as the inside of a component of this world,
/// which is the contract's or of the last of these packages. A package comes
/// before those that use it.
pub(crate) fn marked(text: &str, world: &str, packages: &[&str]) -> Vec<u8> {
    let mut module = wat::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut resolve = Resolve::default();
    // The tests of other packages take this file in, too.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("wit"));
    let wit = above.into_iter().find(|wit| wit.join("handler.wit").is_file()).unwrap();
    let (mut package, _) = resolve.push_path(wit).unwrap();
    if let Some((last, others)) = packages.split_last() {
        for other in others {
            resolve.push_str("guest.wit", other).unwrap();
        }
        package = resolve.push_str("guest.wit", last).unwrap();
    }
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    module
}
