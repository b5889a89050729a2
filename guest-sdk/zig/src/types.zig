//! What the parts of the SDK share: values, the memory of a call, and failures.

const std = @import("std");
const builtin = @import("builtin");

/// The value of an extension attribute.
pub const ExtensionValue = union(enum) {
    /// A CloudEvents Boolean.
    boolean: bool,
    /// A CloudEvents Integer.
    integer: i32,
    /// Every other type, in its canonical text form.
    text: []const u8,
};

/// An extension attribute.
pub const Extension = struct {
    name: []const u8,
    value: ExtensionValue,
};

/// An event to emit. What is null is filled in by the host: an id that is the same on each
/// attempt, the group as source, the time of the settlement, and the partition key of the
/// handled event, or of a whole batch.
pub const Message = struct {
    /// The kind of event.
    type: []const u8 = "",
    /// The payload. Empty for none.
    data: []const u8 = "",
    id: ?[]const u8 = null,
    /// A URI-reference.
    source: ?[]const u8 = null,
    /// What the event is about, within `source`.
    subject: ?[]const u8 = null,
    /// RFC 3339.
    time: ?[]const u8 = null,
    datacontenttype: ?[]const u8 = null,
    dataschema: ?[]const u8 = null,
    partitionkey: ?[]const u8 = null,
    /// Names are lower-case letters and digits. `deliverafter`, an RFC 3339 time as text, is
    /// when the event is delivered at the earliest: at most 366 days from now.
    extensions: []const Extension = &.{},
};

/// What the host does with an event after a call.
pub const Outcome = union(enum) {
    /// The event is done.
    done,
    /// The host calls again, after at least so many milliseconds; null: as the handler's
    /// retry settings say.
    retry: struct { reason: []const u8, after_ms: ?u64 = null },
    /// The event is a dead letter, for this reason.
    reject: []const u8,
};

/// How much a line of the log matters.
pub const Level = enum(u8) { trace, debug, info, warn, err };

/// An error of the host's: the case of its variant, and its text.
pub const Refused = struct { kind: u8, text: []const u8 };

/// What the host gives for a key.
pub const Found = union(enum) { value: ?[]const u8, refused: Refused };

/// What the host gives for a prefix.
pub const Keys = union(enum) { keys: []const []const u8, refused: Refused };

// ---- The memory of a call

/// As much stays when a call ends, so that most calls ask for nothing: a common event and
/// what is made of it.
const kept_bytes = 16 * 1024;

var arena: std.heap.ArenaAllocator = .init(if (builtin.cpu.arch.isWasm()) std.heap.wasm_allocator else std.heap.page_allocator);

/// The allocator of the call.
pub const allocator: std.mem.Allocator = .{ .ptr = undefined, .vtable = &.{
    .alloc = alloc,
    .resize = resize,
    .remap = remap,
    .free = free,
} };

fn alloc(_: *anyopaque, length: usize, alignment: std.mem.Alignment, address: usize) ?[*]u8 {
    return arena.allocator().rawAlloc(length, alignment, address);
}

fn resize(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, length: usize, address: usize) bool {
    return arena.allocator().rawResize(memory, alignment, length, address);
}

fn remap(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, length: usize, address: usize) ?[*]u8 {
    return arena.allocator().rawRemap(memory, alignment, length, address);
}

fn free(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, address: usize) void {
    arena.allocator().rawFree(memory, alignment, address);
}

/// Frees everything of a call.
pub fn end() void {
    failed = null;
    _ = arena.reset(.{ .retain_with_limit = kept_bytes });
}

/// A text of the call, with U+FFFD for what is no UTF-8.
pub fn print(comptime format: []const u8, args: anytype) []const u8 {
    const text = std.fmt.allocPrint(allocator, format, args) catch @panic("out of memory");
    if (std.unicode.utf8ValidateSlice(text)) return text;
    return std.fmt.allocPrint(allocator, "{f}", .{std.unicode.fmtUtf8(text)}) catch @panic("out of memory");
}

// ---- Failures

/// What the last error of the SDK in this call means; errors of Zig carry no words.
pub var failed: ?struct { problem: anyerror, outcome: Outcome } = null;

/// What the host does when a handler gives this.
pub fn outcome(result: anyerror!void) Outcome {
    result catch |problem| {
        if (failed) |known| if (known.problem == problem) return known.outcome;
        return .{ .retry = .{ .reason = print("error.{s}", .{@errorName(problem)}) } };
    };
    return .done;
}

/// Why a message cannot be handed to the host, which takes texts of UTF-8.
pub fn messageProblem(message: Message) ?[]const u8 {
    inline for (.{ "id", "source", "subject", "time", "datacontenttype", "dataschema", "partitionkey" }) |name| {
        if (@field(message, name)) |text| if (!std.unicode.utf8ValidateSlice(text)) return "`" ++ name ++ "` is not UTF-8";
    }
    if (!std.unicode.utf8ValidateSlice(message.type)) return "`type` is not UTF-8";
    for (message.extensions) |extension| {
        if (!std.unicode.utf8ValidateSlice(extension.name)) return "the name of an extension is not UTF-8";
        switch (extension.value) {
            .text => |text| if (!std.unicode.utf8ValidateSlice(text)) return "an extension is not UTF-8",
            else => {},
        }
    }
    return null;
}
