//! The same of a handler of batches.

const host = @import("event_host");
const single = @import("handler.zig");

pub fn handleBatch(events: []const host.Event, outcomes: []host.Outcome) void {
    host.log.info("batch of {d}", .{events.len});
    for (events, outcomes) |event, *outcome| outcome.* = host.outcome(single.handle(event));
}
