const std = @import("std");

/// Which export a component has.
pub const Kind = enum {
    /// `pub fn handle`: one event a call.
    event,
    /// `pub fn handleBatch`: several events a call.
    batch,
};

pub const Options = struct {
    /// The component becomes `zig-out/bin/NAME.wasm`.
    name: []const u8,
    /// The file of the handler.
    root_source_file: std.Build.LazyPath,
    kind: Kind = .event,
    optimize: std.builtin.Optimize = .small,
    /// As much stack as the handler's calls may take together, in bytes.
    stack_size: u64 = 64 * 1024,
};

/// Adds a component to what `zig build` makes, and the tests in the handler's file to what
/// `zig build test` runs.
pub fn addHandler(b: *std.Build, sdk: *std.Build.Dependency, options: Options) void {
    const step = b.step("test", "Run the tests of the handler");
    addHandlerTested(b, sdk, options, step);
}

/// The same where a project has several handlers: their tests join this step.
pub fn addHandlerTested(b: *std.Build, sdk: *std.Build.Dependency, options: Options, test_step: *std.Build.Step) void {
    const wasm = b.resolveTargetQuery(.{ .cpu_arch = .wasm32, .os_tag = .wasi });
    const host = b.createModule(.{ .root_source_file = sdk.path("src/root.zig"), .target = wasm, .optimize = options.optimize });
    const root = b.createModule(.{ .root_source_file = sdk.path("src/main.zig"), .target = wasm, .optimize = options.optimize });
    const handler = b.createModule(.{ .root_source_file = options.root_source_file, .target = wasm, .optimize = options.optimize });
    handler.addImport("event_host", host);
    root.addImport("event_host", host);
    root.addImport("handler", handler);
    // What says that the module is a component of the contract.
    root.addObjectFile(sdk.path(b.fmt("bindings/{s}.o", .{@tagName(options.kind)})));
    const component = b.addExecutable(.{ .name = options.name, .root_module = root });
    component.entry = .disabled;
    component.rdynamic = true;
    component.wasi_exec_model = .reactor;
    component.stack_size = options.stack_size;
    b.installArtifact(component);

    const machine = b.createModule(.{ .root_source_file = sdk.path("src/root.zig"), .target = b.graph.host });
    const tested = b.createModule(.{ .root_source_file = options.root_source_file, .target = b.graph.host });
    tested.addImport("event_host", machine);
    const tests = b.addTest(.{ .name = b.fmt("{s}-test", .{options.name}), .root_module = tested });
    test_step.dependOn(&b.addRunArtifact(tests).step);
}

pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{});
    const module = b.addModule("event_host", .{ .root_source_file = b.path("src/root.zig"), .target = target });
    const tests = b.addTest(.{ .root_module = module });
    const test_step = b.step("test", "Run the tests of the SDK");
    test_step.dependOn(&b.addRunArtifact(tests).step);
}
