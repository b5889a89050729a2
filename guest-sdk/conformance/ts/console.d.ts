// What the SDK brings to both engines of JavaScript; no types of a browser or of Node.
declare const console: { log(...values: unknown[]): void; error(...values: unknown[]): void };
