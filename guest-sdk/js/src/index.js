// Write event-host handlers in JavaScript and TypeScript; index.d.ts describes it all.

import '#globals';

export { context } from './context.js';
export { InvalidEvent, Reject, Retry } from './failure.js';
export { defineBatchHandler, defineHandler } from './handler.js';
export { log } from './log.js';
export { EmitError, emit } from './outbox.js';
export { StateError, state } from './state.js';
