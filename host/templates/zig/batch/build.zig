const std = @import("std");
const event_host = @import("event_host");

pub fn build(b: *std.Build) void {
    const sdk = b.dependency("event_host", .{});
    event_host.addHandler(b, sdk, .{ .name = "handler", .root_source_file = b.path("src/handler.zig"), .kind = .batch });
}
