//! Write event-host handlers in Zig.
//!
//!     const host = @import("event_host");
//!
//!     pub fn handle(event: host.Event) !void {
//!         const order = try event.json(struct { id: u64, total: f64 });
//!         const count = try host.state.get(u64, "count") orelse 0;
//!         try host.state.set("count", count + 1);
//!         host.log.info("order {d}", .{order.id});
//!         if (order.total < 0) return host.reject("the total of {d} is negative", .{order.id});
//!         try host.emit("order.seen", .{ .id = order.id }, .{});
//!     }
//!
//! The host calls the handler with one event at a time. What it emits and writes to its
//! state is kept when, and only when, it returns without an error, in the same
//! transaction that marks the event as done.
//!
//! A file with `pub fn handleBatch(events: []const host.Event, outcomes: []host.Outcome)
//! void` is a handler of batches instead.
//!
//! Memory: everything that comes from the host (the event, JSON, state) and what
//! `allocator` gives lives until the call ends. Nothing is freed by the handler.
//!
//! Built for anything but WebAssembly, the host is one in memory: see `testing`.

const std = @import("std");
const builtin = @import("builtin");

/// How the SDK reaches the host: by the functions that a component imports, or, in
/// tests, those of a host in memory.
const raw = if (builtin.cpu.arch.isWasm()) @import("component.zig") else @import("memory.zig");
const types = @import("types.zig");

/// A host in memory, for unit tests.
pub const testing = if (builtin.cpu.arch.isWasm())
    @compileError("tests are built for the machine, not for WebAssembly")
else
    @import("testing.zig");

/// What `main.zig` needs of a component. No part of the public interface.
pub const component = raw;

/// The allocator of the call: all of it is freed when the call ends.
pub const allocator = types.allocator;

pub const Extension = types.Extension;
pub const ExtensionValue = types.ExtensionValue;
pub const Message = types.Message;
pub const Outcome = types.Outcome;

/// A CloudEvents 1.0 event, with its place in the log.
pub const Event = struct {
    /// Identifies the event together with `source`.
    id: []const u8 = "test",
    /// The context in which the event happened: a URI-reference.
    source: []const u8 = "/test",
    /// The kind of event.
    type: []const u8,
    /// What the event is about, within `source`.
    subject: ?[]const u8 = null,
    /// When the event happened: RFC 3339 text in UTC.
    time: []const u8 = "2026-01-01T00:00:00Z",
    /// The media type of `data`; null means `application/json`.
    datacontenttype: ?[]const u8 = null,
    /// A URI that identifies the schema of `data`.
    dataschema: ?[]const u8 = null,
    /// CloudEvents' partitioning extension: events of one key are ordered.
    partitionkey: ?[]const u8 = null,
    /// The other extension attributes, sorted by name.
    extensions: []const Extension = &.{},
    /// The payload, as the bytes that were published. Empty when the event has none.
    data: []const u8 = "",
    /// The event's place in the log. Grows along the log, with gaps.
    position: u64 = 1,
    /// Which call this is for this event and consumer group, from 1.
    attempt: u32 = 1,

    /// The data, decoded from JSON, whatever its media type says. Fields that `T` does not
    /// have are passed over. An error rejects the event, with what is wrong as the reason.
    pub fn json(event: Event, comptime T: type) error{InvalidEvent}!T {
        if (event.data.len == 0) return invalid("the event has no data", .{});
        return parse(T, event.data) catch |problem|
            invalid("the data is not the JSON that this handler takes: {s}", .{@errorName(problem)});
    }

    /// The data as text. An error, if it is no UTF-8, rejects the event.
    pub fn text(event: Event) error{InvalidEvent}![]const u8 {
        if (!std.unicode.utf8ValidateSlice(event.data)) return invalid("the data is not UTF-8 text", .{});
        return event.data;
    }

    /// An extension attribute, or null if the event does not have it.
    pub fn extension(event: Event, name: []const u8) ?ExtensionValue {
        for (event.extensions) |own| if (std.mem.eql(u8, own.name, name)) return own.value;
        return null;
    }
};

fn parse(comptime T: type, bytes: []const u8) !T {
    return std.json.parseFromSliceLeaky(T, allocator, bytes, .{ .ignore_unknown_fields = true, .allocate = .alloc_always });
}

// ---- Failing ---------------------------------------------------------------------

/// It may work later: return what this gives, and the host calls again, after at least so
/// many milliseconds (null: as the handler's retry settings say), until the configured
/// attempts are used up; then the event becomes a dead letter.
pub fn retry(after_ms: ?u64, comptime reason: []const u8, args: anytype) error{Retry} {
    types.failed = .{ .problem = error.Retry, .outcome = .{ .retry = .{ .reason = types.print(reason, args), .after_ms = after_ms } } };
    return error.Retry;
}

/// It will never work: return what this gives, and the event becomes a dead letter at
/// once.
pub fn reject(comptime reason: []const u8, args: anytype) error{Reject} {
    types.failed = .{ .problem = error.Reject, .outcome = .{ .reject = types.print(reason, args) } };
    return error.Reject;
}

/// For a check of the handler's own: the event is not what it takes, which rejects it.
pub fn invalid(comptime what: []const u8, args: anytype) error{InvalidEvent} {
    types.failed = .{ .problem = error.InvalidEvent, .outcome = .{ .reject = types.print(what, args) } };
    return error.InvalidEvent;
}

/// What the host does when a handler gives this: an error that is none of the SDK's is a
/// retry with its name as the reason. For handlers of batches:
/// `outcomes[i] = host.outcome(one(event));`
pub const outcome = types.outcome;

// ---- Emitting --------------------------------------------------------------------

/// Why a message was not taken. Returned from a handler it is a retry that says more.
pub const EmitError = error{
    /// An attribute breaks the CloudEvents specification.
    EmitInvalid,
    /// The handler's settings do not let it emit this type.
    EmitDenied,
    /// Anything else.
    EmitFailed,
};

/// Emits an event with data of JSON when, and only when, this call succeeds; `{}` is no
/// data. Null attributes get the host's defaults.
pub fn emit(event_type: []const u8, data: anytype, attributes: Message) EmitError!void {
    var message = attributes;
    message.type = event_type;
    if (@TypeOf(data) != void) {
        message.data = encode(data);
        message.datacontenttype = message.datacontenttype orelse "application/json";
    }
    return emitMessage(message);
}

/// Emits an event with whatever attributes and data.
pub fn emitMessage(message: Message) EmitError!void {
    if (types.messageProblem(message)) |what| return emitFailed(error.EmitInvalid, "cannot emit an invalid event: {s}", what);
    const refused = raw.emit(message) orelse return;
    return switch (refused.kind) {
        0 => emitFailed(error.EmitInvalid, "cannot emit an invalid event: {s}", refused.text),
        1 => emitFailed(error.EmitDenied, "not allowed to emit: {s}", refused.text),
        else => emitFailed(error.EmitFailed, "cannot emit: {s}", refused.text),
    };
}

fn emitFailed(problem: EmitError, comptime format: []const u8, text: []const u8) EmitError {
    types.failed = .{ .problem = problem, .outcome = .{ .retry = .{ .reason = types.print(format, .{text}) } } };
    return problem;
}

fn encode(value: anytype) []const u8 {
    return std.json.Stringify.valueAlloc(allocator, value, .{}) catch @panic("out of memory");
}

// ---- State -----------------------------------------------------------------------

/// Small durable values of the consumer group. Reads see the writes of the same call;
/// writes are kept when, and only when, the call succeeds. Values are kept as JSON text,
/// which handlers in every language read alike.
pub const state = struct {
    /// Why a state operation failed. Returned from a handler it is a retry that says more.
    pub const Error = error{
        /// The key is empty, too long or no UTF-8.
        StateInvalidKey,
        /// The stored value is not what the handler wants.
        StateDecode,
        /// Anything else that the host says.
        StateFailed,
    };

    /// The value of a key, decoded from JSON, or null if the key has none.
    pub fn get(comptime T: type, key: []const u8) Error!?T {
        const bytes = try getBytes(key) orelse return null;
        return parse(T, bytes) catch |problem| {
            const reason = types.print("the state's `{s}` is not the JSON that this handler takes: {s}", .{ key, @errorName(problem) });
            return failure(error.StateDecode, reason);
        };
    }

    /// Gives a key a value, as JSON.
    pub fn set(key: []const u8, value: anytype) Error!void {
        return setBytes(key, encode(value));
    }

    /// The value of a key as the bytes that were set, or null if the key has none.
    pub fn getBytes(key: []const u8) Error!?[]const u8 {
        try utf8(key);
        return switch (raw.stateGet(key)) {
            .value => |value| value,
            .refused => |refused| hostFailure(refused),
        };
    }

    /// Gives a key a value of bytes.
    pub fn setBytes(key: []const u8, value: []const u8) Error!void {
        try utf8(key);
        if (raw.stateSet(key, value)) |refused| return hostFailure(refused);
    }

    /// Removes a key; one that is absent is no error.
    pub fn delete(key: []const u8) Error!void {
        try utf8(key);
        if (raw.stateDelete(key)) |refused| return hostFailure(refused);
    }

    /// The first `limit` keys that start with `prefix`, sorted by their bytes.
    pub fn keys(prefix: []const u8, limit: u32) Error![]const []const u8 {
        try utf8(prefix);
        return switch (raw.stateKeys(prefix, limit)) {
            .keys => |found| found,
            .refused => |refused| hostFailure(refused),
        };
    }

    /// Refuses what the host could not take as text.
    fn utf8(key: []const u8) Error!void {
        if (!std.unicode.utf8ValidateSlice(key)) return failure(error.StateInvalidKey, "not a key of the state: it is not UTF-8");
    }

    fn hostFailure(refused: types.Refused) Error {
        if (refused.kind == 0) return failure(error.StateInvalidKey, types.print("not a key of the state: {s}", .{refused.text}));
        return failure(error.StateFailed, types.print("the state is not available: {s}", .{refused.text}));
    }

    fn failure(problem: Error, reason: []const u8) Error {
        types.failed = .{ .problem = problem, .outcome = .{ .retry = .{ .reason = reason } } };
        return problem;
    }
};

// ---- Log and context -------------------------------------------------------------

/// Writes lines to the host's log. The host adds the group, the handler, the event's id
/// and the attempt.
pub const log = struct {
    /// How much a line matters.
    pub const Level = types.Level;

    /// Writes a step, for whoever debugs the handler.
    pub fn trace(comptime format: []const u8, args: anytype) void {
        write(.trace, format, args);
    }
    /// Writes a detail.
    pub fn debug(comptime format: []const u8, args: anytype) void {
        write(.debug, format, args);
    }
    /// Writes what is worth knowing.
    pub fn info(comptime format: []const u8, args: anytype) void {
        write(.info, format, args);
    }
    /// Writes what may need a look.
    pub fn warn(comptime format: []const u8, args: anytype) void {
        write(.warn, format, args);
    }
    /// Writes what does need a look.
    pub fn err(comptime format: []const u8, args: anytype) void {
        write(.err, format, args);
    }
    /// Writes one line.
    pub fn write(level: Level, comptime format: []const u8, args: anytype) void {
        raw.log(level, types.print(format, args));
    }
};

/// What the handler may know of the call it is in.
pub const context = struct {
    /// The consumer group's name.
    pub fn group() []const u8 {
        return raw.group();
    }
    /// The tenant that owns the handler and the event, if there is one.
    pub fn tenant() ?[]const u8 {
        const name = raw.tenant();
        return if (name.len == 0) null else name;
    }
    /// Milliseconds until the host ends this attempt.
    pub fn remainingMs() u64 {
        return raw.remainingMs();
    }
    /// Whether this event is a dead letter that an operator replayed.
    pub fn isReplay() bool {
        return raw.isReplay();
    }
    /// Whether this event comes after later events of the log were already handed to this
    /// group.
    pub fn isLate() bool {
        return raw.isLate();
    }
};

test {
    _ = @import("tests.zig");
}
