//! The contract's values as they lie in the memory of a 32-bit module. An `extern struct`
//! is laid out as the canonical ABI lays out a record, with a variant's case in its first
//! byte.

const std = @import("std");

/// A string, or a list of bytes.
pub const Bytes = extern struct {
    ptr: [*]const u8,
    len: usize,

    pub fn of(bytes: []const u8) Bytes {
        // Zig's empty slice may point beyond the memory, which the host refuses.
        return .{ .ptr = if (bytes.len == 0) "" else bytes.ptr, .len = bytes.len };
    }

    pub fn slice(bytes: Bytes) []const u8 {
        return if (bytes.len == 0) "" else bytes.ptr[0..bytes.len];
    }
};

pub fn Option(comptime T: type) type {
    return extern struct { some: u8, value: T };
}

pub fn List(comptime T: type) type {
    return extern struct {
        ptr: [*]const T,
        len: usize,

        pub fn of(items: []const T) @This() {
            return .{ .ptr = if (items.len == 0) @ptrFromInt(@alignOf(T)) else items.ptr, .len = items.len };
        }
    };
}

pub const ExtensionValue = extern struct {
    tag: u8,
    value: extern union { boolean: u8, integer: i32, text: Bytes },
};

pub const Extension = extern struct { name: Bytes, value: ExtensionValue };

pub const Event = extern struct {
    id: Bytes,
    source: Bytes,
    type: Bytes,
    subject: Option(Bytes),
    time: Bytes,
    datacontenttype: Option(Bytes),
    dataschema: Option(Bytes),
    extensions: List(Extension),
    data: Bytes,
    partitionkey: Option(Bytes),
    position: u64,
    attempt: u32,
};

pub const Message = extern struct {
    type: Bytes,
    data: Bytes,
    id: Option(Bytes),
    source: Option(Bytes),
    subject: Option(Bytes),
    time: Option(Bytes),
    datacontenttype: Option(Bytes),
    dataschema: Option(Bytes),
    partitionkey: Option(Bytes),
    extensions: List(Extension),
};

/// A result without a value, or with an error that is a variant of texts.
pub const Done = extern struct { failed: u8, kind: u8 align(4), text: Bytes };

/// The result of reading a value, or a problem in its place.
pub const Read = extern struct {
    failed: u8,
    /// Whether there is a value, or the case of the error.
    kind: u8 align(4),
    bytes: Bytes,
};

/// The result of listing keys.
pub const Keys = extern struct {
    failed: u8,
    value: extern union { keys: List(Bytes), problem: extern struct { kind: u8, text: Bytes } },
};

/// What a handler gives: a result whose error is a retry or a rejection.
pub const Result = extern struct {
    failed: u8,
    failure: extern struct {
        tag: u8,
        value: extern union {
            retry: extern struct { reason: Bytes, after_ms: Option(u64) },
            reject: Bytes,
        },
    },
};

comptime {
    // The sizes and places of the contract, in bytes.
    if (@import("builtin").cpu.arch == .wasm32) {
        std.debug.assert(@sizeOf(Event) == 112);
        std.debug.assert(@offsetOf(Event, "data") == 76);
        std.debug.assert(@offsetOf(Event, "attempt") == 104);
        std.debug.assert(@sizeOf(Message) == 108);
        std.debug.assert(@sizeOf(Extension) == 20);
        std.debug.assert(@sizeOf(Result) == 40);
        std.debug.assert(@offsetOf(Result, "failure") == 8);
        std.debug.assert(@sizeOf(Read) == 16);
        std.debug.assert(@offsetOf(Done, "kind") == 4);
    }
}
