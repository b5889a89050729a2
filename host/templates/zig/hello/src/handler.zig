//! Counts the orders of each customer, and says hello at the first.

const std = @import("std");
const host = @import("event_host");

const Order = struct { customer: ?[]const u8 = null };

pub fn handle(event: host.Event) !void {
    const order = try event.json(Order);
    const customer = order.customer orelse return host.reject("the order names no customer", .{});

    const key = try std.fmt.allocPrint(host.allocator, "orders/{s}", .{customer});
    const orders = (try host.state.get(u64, key) orelse 0) + 1;
    try host.state.set(key, orders);
    host.log.info("order {d} of {s}", .{ orders, customer });

    if (orders == 1) {
        const text = try std.fmt.allocPrint(host.allocator, "Hello, {s}!", .{customer});
        try host.emit("customer.greeted", .{ .text = text }, .{ .subject = customer });
    }
}

const placed: host.Event = .{ .type = "order.placed", .data = "{\"id\":7,\"customer\":\"Ada\"}" };

test "the first order is greeted" {
    host.testing.reset();
    const result = host.testing.call(handle, placed);
    try std.testing.expectEqual(.done, result.outcome);
    try std.testing.expectEqualStrings("customer.greeted", result.emits[0].type);
    try std.testing.expectEqualStrings("Ada", result.emits[0].subject.?);
    try std.testing.expectEqualStrings("{\"text\":\"Hello, Ada!\"}", result.emits[0].data);
    try std.testing.expectEqualStrings("1", host.testing.state("orders/Ada").?);
}

test "later orders are only counted" {
    host.testing.reset();
    host.testing.setState("orders/Ada", 4);
    const result = host.testing.call(handle, placed);
    try std.testing.expectEqual(0, result.emits.len);
    try std.testing.expectEqualStrings("5", host.testing.state("orders/Ada").?);
}

test "an order of nobody is rejected" {
    host.testing.reset();
    const result = host.testing.call(handle, .{ .type = "order.placed", .data = "{\"id\":8}" });
    try std.testing.expectEqualStrings("the order names no customer", result.outcome.reject);
}
