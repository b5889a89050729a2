//! What the conformance tests ask of a handler.

const std = @import("std");
const host = @import("event_host");

const Order = struct { id: i64, name: []const u8, cmd: []const u8 = "" };

const Command = enum { retry, reject, @"error", boom, print, invalid, denied, empty, bytes, list, late, never };

pub fn handle(event: host.Event) !void {
    const order = try event.json(Order);
    host.log.info("order {d} of {s}", .{ order.id, host.context.group() });
    if (std.meta.stringToEnum(Command, order.cmd)) |command| switch (command) {
        .retry => if (event.attempt < 3) return host.retry(50, "not yet: {d}", .{event.attempt}),
        .never => return host.retry(50, "never", .{}),
        .reject => return host.reject("no: {s}", .{order.name}),
        .@"error" => return host.retry(null, "an ordinary error", .{}),
        .boom => @panic("about to fall"),
        .print => _ = std.os.wasi.fd_write(1, &.{.{ .base = "printed\n", .len = 8 }}, 1, &written),
        .invalid => try host.emit("order.invalid", {}, .{ .subject = "" }),
        .denied => try host.emit("secret.spilled", {}, .{}),
        .empty => try host.emit("order.empty", {}, .{}),
        .bytes => try roundtrip(),
        .list => try list(),
        .late => if (event.attempt < 2) {
            try host.state.set("count", -1);
            try host.emit("order.never", {}, .{});
            return error.TooEarly;
        },
    };

    const count = (try host.state.get(i64, "count") orelse 0) + 1;
    try host.state.set("count", count);
    const left = host.context.remainingMs();
    try host.emit("order.done", .{
        .id = order.id,
        .name = order.name,
        .count = count,
        .attempt = event.attempt,
        .bytes = event.data.len,
        .group = host.context.group(),
        .tenant = host.context.tenant(),
        .left = left > 0 and left <= 10_000,
        .replay = host.context.isReplay(),
        .late = host.context.isLate(),
    }, .{
        .subject = try std.fmt.allocPrint(host.allocator, "{d}", .{order.id}),
        .extensions = event.extensions,
    });
}

var written: usize = 0;

/// What the state's list is: its members are of four types.
const List = struct { i64, []const u8, ?bool, struct { a: bool } };

fn list() !void {
    if (try host.state.get(List, "list")) |value| if (!isWanted(value)) return host.reject("another list", .{});
    try host.state.set("list", List{ 1, "ü", null, .{ .a = true } });
    const value = try host.state.get(List, "list") orelse return host.reject("no list", .{});
    if (!isWanted(value)) return host.reject("not the list", .{});
}

fn isWanted(value: List) bool {
    return value[0] == 1 and std.mem.eql(u8, value[1], "ü") and value[2] == null and value[3].a;
}

fn roundtrip() !void {
    try host.state.setBytes("raw", "\x00\xff");
    const read = try host.state.getBytes("raw") orelse "";
    if (!std.mem.eql(u8, read, "\x00\xff")) return host.reject("other bytes", .{});
    const keys = try host.state.keys("ra", 10);
    if (keys.len != 1 or !std.mem.eql(u8, keys[0], "raw")) return host.reject("other keys", .{});
    try host.state.delete("raw");
    if (try host.state.getBytes("raw") != null) return host.reject("not deleted", .{});
}
