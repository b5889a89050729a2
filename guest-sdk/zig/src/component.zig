//! The host as a component has it: its imports, and the exports that hand memory over.

const std = @import("std");
const abi = @import("abi.zig");
const types = @import("types.zig");

const imports = struct {
    extern "event-host:handler/outbox@0.1.0" fn emit(message: *const abi.Message, result: *abi.Done) void;
    extern "event-host:handler/state@0.1.0" fn get(key: [*]const u8, key_length: usize, result: *abi.Read) void;
    extern "event-host:handler/state@0.1.0" fn set(key: [*]const u8, key_length: usize, value: [*]const u8, length: usize, result: *abi.Done) void;
    extern "event-host:handler/state@0.1.0" fn delete(key: [*]const u8, key_length: usize, result: *abi.Done) void;
    extern "event-host:handler/state@0.1.0" fn keys(prefix: [*]const u8, prefix_length: usize, limit: u32, result: *abi.Keys) void;
    extern "event-host:handler/log@0.1.0" fn log(level: u32, line: [*]const u8, length: usize) void;
    extern "event-host:handler/context@0.1.0" fn group(result: *abi.Bytes) void;
    extern "event-host:handler/context@0.1.0" fn tenant(result: *abi.Bytes) void;
    extern "event-host:handler/context@0.1.0" fn @"remaining-ms"() u64;
    extern "event-host:handler/context@0.1.0" fn @"is-replay"() u32;
    extern "event-host:handler/context@0.1.0" fn @"is-late"() u32;
};

/// Where the host puts what it gives.
fn receive(old: ?[*]u8, old_length: usize, alignment: usize, length: usize) callconv(.c) [*]u8 {
    return reallocate(types.allocator, old, old_length, alignment, length);
}

/// Where WASI's adapter keeps what lives as long as the instance.
fn receiveForAdapter(old: ?[*]u8, old_length: usize, alignment: usize, length: usize) callconv(.c) [*]u8 {
    return reallocate(std.heap.wasm_allocator, old, old_length, alignment, length);
}

fn reallocate(allocator: std.mem.Allocator, old: ?[*]u8, old_length: usize, alignment: usize, length: usize) [*]u8 {
    if (length == 0) return @ptrFromInt(alignment);
    const place = allocator.rawAlloc(length, .fromByteUnits(alignment), @returnAddress()) orelse @panic("out of memory");
    if (old_length > 0) @memcpy(place[0..@min(old_length, length)], old.?[0..@min(old_length, length)]);
    return place;
}

comptime {
    @export(&receive, .{ .name = "cabi_realloc" });
    @export(&receiveForAdapter, .{ .name = "cabi_realloc_adapter" });
}

fn option(text: ?[]const u8) abi.Option(abi.Bytes) {
    return .{ .some = @intFromBool(text != null), .value = .of(text orelse "") };
}

fn refused(result: abi.Done) ?types.Refused {
    return if (result.failed == 0) null else .{ .kind = result.kind, .text = result.text.slice() };
}

pub fn emit(message: types.Message) ?types.Refused {
    const extensions = types.allocator.alloc(abi.Extension, message.extensions.len) catch @panic("out of memory");
    for (extensions, message.extensions) |*to, from| to.* = .{ .name = .of(from.name), .value = switch (from.value) {
        .boolean => |value| .{ .tag = 0, .value = .{ .boolean = @intFromBool(value) } },
        .integer => |value| .{ .tag = 1, .value = .{ .integer = value } },
        .text => |value| .{ .tag = 2, .value = .{ .text = .of(value) } },
    } };
    const out: abi.Message = .{
        .type = .of(message.type),
        .data = .of(message.data),
        .id = option(message.id),
        .source = option(message.source),
        .subject = option(message.subject),
        .time = option(message.time),
        .datacontenttype = option(message.datacontenttype),
        .dataschema = option(message.dataschema),
        .partitionkey = option(message.partitionkey),
        .extensions = .of(extensions),
    };
    var result: abi.Done = undefined;
    imports.emit(&out, &result);
    return refused(result);
}

pub fn stateGet(key: []const u8) types.Found {
    var result: abi.Read = undefined;
    const name: abi.Bytes = .of(key);
    imports.get(name.ptr, name.len, &result);
    if (result.failed != 0) return .{ .refused = .{ .kind = result.kind, .text = result.bytes.slice() } };
    return .{ .value = if (result.kind == 0) null else result.bytes.slice() };
}

pub fn stateSet(key: []const u8, value: []const u8) ?types.Refused {
    var result: abi.Done = undefined;
    const name: abi.Bytes = .of(key);
    const bytes: abi.Bytes = .of(value);
    imports.set(name.ptr, name.len, bytes.ptr, bytes.len, &result);
    return refused(result);
}

pub fn stateDelete(key: []const u8) ?types.Refused {
    var result: abi.Done = undefined;
    const name: abi.Bytes = .of(key);
    imports.delete(name.ptr, name.len, &result);
    return refused(result);
}

pub fn stateKeys(prefix: []const u8, limit: u32) types.Keys {
    var result: abi.Keys = undefined;
    const start: abi.Bytes = .of(prefix);
    imports.keys(start.ptr, start.len, limit, &result);
    if (result.failed != 0) return .{ .refused = .{ .kind = result.value.problem.kind, .text = result.value.problem.text.slice() } };
    const found = result.value.keys;
    const texts = types.allocator.alloc([]const u8, found.len) catch @panic("out of memory");
    for (texts, 0..) |*text, i| text.* = found.ptr[i].slice();
    return .{ .keys = texts };
}

pub fn log(level: types.Level, line: []const u8) void {
    const text: abi.Bytes = .of(line);
    imports.log(@backingInt(level), text.ptr, text.len);
}

pub fn group() []const u8 {
    var name: abi.Bytes = undefined;
    imports.group(&name);
    return name.slice();
}

pub fn tenant() []const u8 {
    var name: abi.Bytes = undefined;
    imports.tenant(&name);
    return name.slice();
}

pub fn remainingMs() u64 {
    return imports.@"remaining-ms"();
}

pub fn isReplay() bool {
    return imports.@"is-replay"() != 0;
}

pub fn isLate() bool {
    return imports.@"is-late"() != 0;
}

fn textOf(text: abi.Option(abi.Bytes)) ?[]const u8 {
    return if (text.some == 0) null else text.value.slice();
}

/// The event as the SDK has it.
pub fn eventOf(comptime Own: type, from: *const Event) Own {
    const extensions = types.allocator.alloc(types.Extension, from.extensions.len) catch @panic("out of memory");
    for (extensions, 0..) |*to, i| {
        const given = from.extensions.ptr[i];
        to.* = .{ .name = given.name.slice(), .value = switch (given.value.tag) {
            0 => .{ .boolean = given.value.value.boolean != 0 },
            1 => .{ .integer = given.value.value.integer },
            else => .{ .text = given.value.value.text.slice() },
        } };
    }
    return .{
        .id = from.id.slice(),
        .source = from.source.slice(),
        .type = from.type.slice(),
        .subject = textOf(from.subject),
        .time = from.time.slice(),
        .datacontenttype = textOf(from.datacontenttype),
        .dataschema = textOf(from.dataschema),
        .partitionkey = textOf(from.partitionkey),
        .extensions = extensions,
        .data = from.data.slice(),
        .position = from.position,
        .attempt = from.attempt,
    };
}

/// What the host is told.
pub fn resultOf(outcome: types.Outcome) abi.Result {
    var result: abi.Result = undefined;
    result.failed = @intFromBool(outcome != .done);
    switch (outcome) {
        .done => {},
        .retry => |retry| result.failure = .{ .tag = 0, .value = .{ .retry = .{
            .reason = .of(retry.reason),
            .after_ms = .{ .some = @intFromBool(retry.after_ms != null), .value = retry.after_ms orelse 0 },
        } } },
        .reject => |reason| result.failure = .{ .tag = 1, .value = .{ .reject = .of(reason) } },
    }
    return result;
}

/// The memory of a call ends.
pub const end = types.end;

pub const Event = abi.Event;
pub const Result = abi.Result;
pub const Results = abi.List(abi.Result);
