const std = @import("std");
const host = @import("root.zig");
const testing = host.testing;

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;

fn event(data: []const u8) host.Event {
    return .{ .type = "t", .data = data };
}

const Asked = struct { n: u64, name: []const u8 = "" };

fn work(e: host.Event) !void {
    const asked = try e.json(Asked);
    const count = try host.state.get(u64, "count") orelse 0;
    try host.state.set("count", count + 1);
    try expectEqual(count + 1, try host.state.get(u64, "count"));
    try host.emit("done", .{ .n = asked.n, .name = asked.name }, .{ .subject = "about" });
    switch (asked.n) {
        1 => return host.retry(50, "not yet: {d}", .{e.attempt}),
        2 => return host.reject("no: {s}", .{asked.name}),
        3 => return error.LineBusy,
        4 => return host.retry(null, "a\xff", .{}),
        else => {},
    }
}

test "what a call does counts only if it succeeds" {
    testing.reset();
    testing.setState("count", 4);
    const failed = testing.call(work, event("{\"n\":3}"));
    try expectEqualStrings("error.LineBusy", failed.outcome.retry.reason);
    try expectEqual(0, failed.emits.len);
    try expectEqualStrings("4", testing.state("count").?);

    const done = testing.call(work, event("{\"n\":9,\"name\":\"J\\u00fcrgen \u{1f600}\",\"more\":[]}"));
    try expectEqual(.done, done.outcome);
    try expectEqualStrings("{\"n\":9,\"name\":\"J\u{fc}rgen \u{1f600}\"}", done.emits[0].data);
    try expectEqualStrings("application/json", done.emits[0].datacontenttype.?);
    try expectEqualStrings("about", done.emits[0].subject.?);
    try expectEqualStrings("5", testing.state("count").?);
}

test "an error means what it says" {
    testing.reset();
    const again = testing.call(work, event("{\"n\":1}")).outcome.retry;
    try expectEqualStrings("not yet: 1", again.reason);
    try expectEqual(50, again.after_ms);
    try expectEqualStrings("no: x", testing.call(work, event("{\"n\":2,\"name\":\"x\"}")).outcome.reject);
    try expectEqualStrings("a\u{fffd}", testing.call(work, event("{\"n\":4}")).outcome.retry.reason);
    try expectEqualStrings("the event has no data", testing.call(work, event("")).outcome.reject);
    const broken = testing.call(work, event("{\"n\": ")).outcome.reject;
    try expectEqualStrings("the data is not the JSON that this handler takes: UnexpectedEndOfInput", broken);
}

fn refusedEmit(e: host.Event) !void {
    if (e.attempt == 1) try host.emit("", {}, .{});
    if (e.attempt == 2) try host.emit("secret", {}, .{});
    try host.emit("t", {}, .{ .subject = "\xff" });
}

test "a message that is not taken is a retry that says why" {
    testing.reset();
    testing.settings().denied = "secret";
    var e = event("");
    try expectEqualStrings("cannot emit an invalid event: `type` is empty", testing.call(refusedEmit, e).outcome.retry.reason);
    e.attempt = 2;
    try expectEqualStrings("not allowed to emit: the handler may not emit `secret`", testing.call(refusedEmit, e).outcome.retry.reason);
    e.attempt = 3;
    try expectEqualStrings("cannot emit an invalid event: `subject` is not UTF-8", testing.call(refusedEmit, e).outcome.retry.reason);
}

fn values(_: host.Event) !void {
    try host.state.set("a/1", [_]u8{ 1, 2 });
    try host.state.set("a/2", "text");
    try host.state.setBytes("b", "\x00\xff");
    try expectEqualStrings("text", (try host.state.get([]const u8, "a/2")).?);
    try expectEqualStrings("\x00\xff", (try host.state.getBytes("b")).?);
    try expectEqual(2, (try host.state.keys("a/", 10)).len);
    try expectEqualStrings("a/1", (try host.state.keys("", 2))[0]);
    try host.state.delete("a/2");
    try host.state.delete("a/2");
    try expectEqual(null, try host.state.get([]const u8, "a/2"));
    try std.testing.expectError(error.StateInvalidKey, host.state.get(u8, ""));
    try host.state.set("n", "text");
    _ = try host.state.get(u64, "n");
}

test "values come back as they were set until they are deleted" {
    testing.reset();
    const reason = testing.call(values, event("")).outcome.retry.reason;
    try expect(std.mem.startsWith(u8, reason, "the state's `n` is not the JSON that this handler takes: "));
}

fn knows(e: host.Event) !void {
    try expectEqualStrings("test", host.context.group());
    try expectEqualStrings("acme", host.context.tenant().?);
    try expectEqual(1500, host.context.remainingMs());
    try expect(host.context.isReplay() and host.context.isLate());
    try expectEqual(-3, e.extension("n").?.integer);
    try expectEqual(null, e.extension("absent"));
    host.log.trace("{d}", .{1});
    host.log.debug("{d}", .{2});
    host.log.info("{d}", .{3});
    host.log.warn("{d}", .{4});
    host.log.err("{d}\xff", .{5});
    try host.emit("t", {}, .{ .extensions = e.extensions, .id = "i", .partitionkey = "k" });
}

test "a handler knows its event and its call, and writes to the log" {
    testing.reset();
    testing.settings().* = .{ .tenant = "acme", .remaining_ms = 1500, .is_replay = true, .is_late = true };
    var e = event("");
    e.extensions = &.{ .{ .name = "n", .value = .{ .integer = -3 } }, .{ .name = "s", .value = .{ .text = "x" } } };
    const result = testing.call(knows, e);
    try expectEqual(.done, result.outcome);
    try expectEqualStrings("x", result.emits[0].extensions[1].value.text);
    try expectEqualStrings("", result.emits[0].data);
    try expectEqual(null, result.emits[0].datacontenttype);
    try expectEqual(5, testing.log().len);
    try expectEqualStrings("error: 5\u{fffd}", testing.log()[4]);
}

fn workBatch(events: []const host.Event, outcomes: []host.Outcome) void {
    for (events, outcomes) |e, *outcome| {
        if (std.mem.eql(u8, e.data, "skip")) continue;
        outcome.* = host.outcome(work(e));
    }
}

test "a batch is kept whole or comes again one by one" {
    testing.reset();
    var outcomes: [3]host.Outcome = undefined;
    const good = event("{\"n\":9}");
    try expectEqual(2, testing.callBatch(workBatch, &.{ good, good }, outcomes[0..2]).len);
    try expectEqualStrings("2", testing.state("count").?);
    try expectEqual(2, testing.callBatch(workBatch, &.{ good, event("{\"n\":2}"), good }, &outcomes).len);
    try expectEqualStrings("4", testing.state("count").?);
    try expectEqualStrings("no: ", outcomes[1].reject);
    _ = testing.callBatch(workBatch, &.{event("skip")}, outcomes[0..1]);
    try expectEqualStrings("the handler gave this event no outcome", outcomes[0].retry.reason);
}
