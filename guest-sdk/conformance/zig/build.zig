const std = @import("std");
const event_host = @import("event_host");

pub fn build(b: *std.Build) void {
    const sdk = b.dependency("event_host", .{});
    const tests = b.step("test", "Run the tests of the handlers");
    event_host.addHandlerTested(b, sdk, .{ .name = "zig", .root_source_file = b.path("src/handler.zig") }, tests);
    event_host.addHandlerTested(b, sdk, .{ .name = "zig-batch", .root_source_file = b.path("src/batch.zig"), .kind = .batch }, tests);
}
