//! Counts orders, with one write to the state and one event for all orders of a call.

const std = @import("std");
const host = @import("event_host");

const Order = struct { customer: ?[]const u8 = null };

/// Gives an outcome for each event. If one is a failure, nothing of the call counts, and the
/// host calls again with each event by itself.
pub fn handleBatch(events: []const host.Event, outcomes: []host.Outcome) void {
    var all_good = true;
    for (events, outcomes) |event, *outcome| {
        outcome.* = host.outcome(check(event));
        if (outcome.* != .done) all_good = false;
    }
    if (all_good) @memset(outcomes, host.outcome(count(events.len)));
}

fn check(event: host.Event) !void {
    const order = try event.json(Order);
    if (order.customer == null) return host.reject("the order names no customer", .{});
}

fn count(orders: usize) !void {
    const total = (try host.state.get(u64, "orders") orelse 0) + orders;
    try host.state.set("orders", total);
    host.log.info("{d} orders, {d} in all", .{ orders, total });
    try host.emit("orders.counted", .{ .orders = orders, .total = total }, .{});
}

const placed: host.Event = .{ .type = "order.placed", .data = "{\"id\":7,\"customer\":\"Ada\"}" };

test "orders are counted together" {
    host.testing.reset();
    host.testing.setState("orders", 4);
    var outcomes: [2]host.Outcome = undefined;
    const emits = host.testing.callBatch(handleBatch, &.{ placed, placed }, &outcomes);
    try std.testing.expectEqual(1, emits.len);
    try std.testing.expectEqualStrings("orders.counted", emits[0].type);
    try std.testing.expectEqualStrings("{\"orders\":2,\"total\":6}", emits[0].data);
    try std.testing.expectEqualStrings("6", host.testing.state("orders").?);
}

test "an order of nobody is rejected" {
    host.testing.reset();
    var outcomes: [2]host.Outcome = undefined;
    const nobody: host.Event = .{ .type = "order.placed", .data = "{\"id\":8}" };
    _ = host.testing.callBatch(handleBatch, &.{ placed, nobody }, &outcomes);
    try std.testing.expectEqual(.done, outcomes[0]);
    try std.testing.expectEqualStrings("the order names no customer", outcomes[1].reject);
    // The two events come together, and then each by itself.
    try std.testing.expectEqualStrings("1", host.testing.state("orders").?);
}
