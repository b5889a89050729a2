//! A host in memory, for unit tests of handlers: `zig build test`.
//!
//!     test "an order is counted" {
//!         host.testing.reset();
//!         host.testing.setState("count", 4);
//!         const result = host.testing.call(handle, .{ .type = "order.placed", .data = "{\"id\":7}" });
//!         try std.testing.expectEqual(.done, result.outcome);
//!         try std.testing.expectEqualStrings("order.seen", result.emits[0].type);
//!         try std.testing.expectEqualStrings("5", host.testing.state("count").?);
//!     }
//!
//! It has the semantics of one call: what a call emits and writes counts only if it
//! succeeds. It knows no limits, and does not check that an emitted event is a CloudEvent,
//! but for an empty type. There is one such host, so tests are not to run beside each other
//! in threads. What it gives lives until `reset`.

const std = @import("std");
const memory = @import("memory.zig");
const root = @import("root.zig");
const types = @import("types.zig");

/// How a call ended.
pub const Result = struct {
    outcome: types.Outcome,
    /// What was emitted: nothing unless the call succeeded.
    emits: []const types.Message,
};

/// What `host.context` answers from here on, and which type may not be emitted.
pub fn settings() *memory.Settings {
    return &memory.settings;
}

/// Forgets everything.
pub const reset = memory.reset;

/// The value of a key as text, or null if it has none.
pub fn state(key: []const u8) ?[]const u8 {
    return memory.state.get(key);
}

/// Gives a key a value, as JSON, as if an earlier call had.
pub fn setState(key: []const u8, value: anytype) void {
    const text = std.json.Stringify.valueAlloc(types.allocator, value, .{}) catch @panic("out of memory");
    _ = memory.stateSet(key, text);
}

/// The lines that were logged, each with its level: `info: text`.
pub fn log() []const []const u8 {
    return memory.lines.items;
}

const Before = struct {
    state: memory.State,

    fn take() Before {
        memory.emitted = .empty;
        return .{ .state = memory.state.clone(memory.allocator) catch @panic("out of memory") };
    }

    fn restore(before: Before) void {
        memory.state = before.state;
        memory.emitted = .empty;
    }
};

/// Calls a handler with an event. A type and data are enough.
pub fn call(handler: anytype, event: root.Event) Result {
    const before: Before = .take();
    const outcome = types.outcome(handler(event));
    if (outcome != .done) before.restore();
    return .{ .outcome = outcome, .emits = memory.emitted.items };
}

/// Calls a handler of batches as the host does. If one outcome is no success, nothing of the
/// call counts, and each event comes again in a call of its own. Gives what was emitted.
pub fn callBatch(handler: anytype, events: []const root.Event, outcomes: []types.Outcome) []const types.Message {
    const before: Before = .take();
    @memset(outcomes, .{ .retry = .{ .reason = "the handler gave this event no outcome" } });
    handler(events, outcomes);
    for (outcomes) |outcome| {
        if (outcome != .done) break;
    } else return memory.emitted.items;
    before.restore();
    if (events.len == 1) return &.{};
    var emits: std.ArrayList(types.Message) = .empty;
    for (events, outcomes) |event, *outcome| {
        const own = callBatch(handler, &.{event}, outcome[0..1]);
        emits.appendSlice(memory.allocator, own) catch @panic("out of memory");
    }
    return emits.items;
}
