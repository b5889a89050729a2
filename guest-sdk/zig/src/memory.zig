//! A host in memory: what the SDK asks where it is not built for WebAssembly.

const std = @import("std");
const types = @import("types.zig");

const Allocator = std.mem.Allocator;

/// What outlives a call.
pub const allocator: Allocator = kept.allocator();
var kept: std.heap.ArenaAllocator = .init(std.heap.page_allocator);

/// What `host.context` answers, and which types may not be emitted.
pub const Settings = struct {
    group: []const u8 = "test",
    tenant: []const u8 = "",
    remaining_ms: u64 = 10_000,
    is_replay: bool = false,
    is_late: bool = false,
    /// A type that the handler may not emit.
    denied: ?[]const u8 = null,
};

pub const State = std.StringArrayHashMapUnmanaged([]const u8);

pub var settings: Settings = .{};
pub var state: State = .empty;
pub var emitted: std.ArrayList(types.Message) = .empty;
pub var lines: std.ArrayList([]const u8) = .empty;

pub fn reset() void {
    settings = .{};
    state = .empty;
    emitted = .empty;
    lines = .empty;
    _ = kept.reset(.free_all);
    types.end();
}

fn copy(text: []const u8) []const u8 {
    return allocator.dupe(u8, text) catch @panic("out of memory");
}

fn copied(text: ?[]const u8) ?[]const u8 {
    return copy(text orelse return null);
}

pub fn emit(message: types.Message) ?types.Refused {
    if (message.type.len == 0) return .{ .kind = 0, .text = "`type` is empty" };
    if (settings.denied) |denied| if (std.mem.eql(u8, denied, message.type))
        return .{ .kind = 1, .text = types.print("the handler may not emit `{s}`", .{denied}) };
    const extensions = allocator.alloc(types.Extension, message.extensions.len) catch @panic("out of memory");
    for (extensions, message.extensions) |*to, from| to.* = .{ .name = copy(from.name), .value = switch (from.value) {
        .text => |text| .{ .text = copy(text) },
        else => from.value,
    } };
    emitted.append(allocator, .{
        .type = copy(message.type),
        .data = copy(message.data),
        .id = copied(message.id),
        .source = copied(message.source),
        .subject = copied(message.subject),
        .time = copied(message.time),
        .datacontenttype = copied(message.datacontenttype),
        .dataschema = copied(message.dataschema),
        .partitionkey = copied(message.partitionkey),
        .extensions = extensions,
    }) catch @panic("out of memory");
    return null;
}

fn checked(key: []const u8) ?types.Refused {
    if (key.len == 0) return .{ .kind = 0, .text = "it is empty" };
    if (key.len > 1024) return .{ .kind = 0, .text = types.print("it has {d} bytes, over 1,024", .{key.len}) };
    return null;
}

pub fn stateGet(key: []const u8) types.Found {
    if (checked(key)) |refused| return .{ .refused = refused };
    return .{ .value = state.get(key) };
}

pub fn stateSet(key: []const u8, value: []const u8) ?types.Refused {
    if (checked(key)) |refused| return refused;
    state.put(allocator, copy(key), copy(value)) catch @panic("out of memory");
    return null;
}

pub fn stateDelete(key: []const u8) ?types.Refused {
    if (checked(key)) |refused| return refused;
    _ = state.swapRemove(key);
    return null;
}

pub fn stateKeys(prefix: []const u8, limit: u32) types.Keys {
    var found: std.ArrayList([]const u8) = .empty;
    for (state.keys()) |key| {
        if (std.mem.startsWith(u8, key, prefix)) found.append(types.allocator, key) catch @panic("out of memory");
    }
    std.mem.sort([]const u8, found.items, {}, struct {
        fn less(_: void, a: []const u8, b: []const u8) bool {
            return std.mem.lessThan(u8, a, b);
        }
    }.less);
    return .{ .keys = found.items[0..@min(found.items.len, limit)] };
}

pub fn log(level: types.Level, line: []const u8) void {
    const names = [_][]const u8{ "trace", "debug", "info", "warn", "error" };
    const text = std.fmt.allocPrint(allocator, "{s}: {s}", .{ names[@backingInt(level)], line }) catch @panic("out of memory");
    lines.append(allocator, text) catch @panic("out of memory");
}

pub fn group() []const u8 {
    return settings.group;
}

pub fn tenant() []const u8 {
    return settings.tenant;
}

pub fn remainingMs() u64 {
    return settings.remaining_ms;
}

pub fn isReplay() bool {
    return settings.is_replay;
}

pub fn isLate() bool {
    return settings.is_late;
}
