//! The root of a component: it exports the handler that the module `handler` defines.

const handler = @import("handler");
const host = @import("event_host");
const component = host.component;

/// Nothing runs when an instance starts.
pub fn main() void {}

comptime {
    if (@hasDecl(handler, "handleBatch")) {
        @export(&handleBatch, .{ .name = "event-host:handler/batch-handler@0.1.0#handle-batch" });
        @export(&afterBatch, .{ .name = "cabi_post_event-host:handler/batch-handler@0.1.0#handle-batch" });
    } else if (@hasDecl(handler, "handle")) {
        @export(&handle, .{ .name = "event-host:handler/handler@0.1.0#handle" });
        @export(&after, .{ .name = "cabi_post_event-host:handler/handler@0.1.0#handle" });
    } else {
        @compileError("a handler has `pub fn handle(event: host.Event) !void` or `pub fn handleBatch`");
    }
}

var answer: component.Result = undefined;
var answers: component.Results = undefined;

fn handle(event: *const component.Event) callconv(.c) *const component.Result {
    answer = component.resultOf(host.outcome(handler.handle(component.eventOf(host.Event, event))));
    return &answer;
}

fn handleBatch(given: [*]const component.Event, count: usize) callconv(.c) *const component.Results {
    const events = host.allocator.alloc(host.Event, count) catch @panic("out of memory");
    const outcomes = host.allocator.alloc(host.Outcome, count) catch @panic("out of memory");
    const results = host.allocator.alloc(component.Result, count) catch @panic("out of memory");
    for (events, given[0..count]) |*to, *from| to.* = component.eventOf(host.Event, from);
    @memset(outcomes, .{ .retry = .{ .reason = "the handler gave this event no outcome" } });
    handler.handleBatch(events, outcomes);
    for (results, outcomes) |*to, from| to.* = component.resultOf(from);
    answers = .of(results);
    return &answers;
}

fn after(_: *const component.Result) callconv(.c) void {
    component.end();
}

fn afterBatch(_: *const component.Results) callconv(.c) void {
    component.end();
}
