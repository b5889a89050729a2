/**
 * Write event-host handlers in JavaScript and TypeScript.
 *
 * A handler is a plain function. The host calls it with one event at a time. What it emits
 * or writes to its state is kept when, and only when, it returns, in the same transaction
 * that marks the event as done.
 *
 * ```ts
 * import { defineHandler, emit, state } from '@event-host/sdk';
 *
 * export const handler = defineHandler((event) => {
 *   const order = event.json<{ id: number }>();
 *   state.set('orders', (state.get<number>('orders') ?? 0) + 1);
 *   emit('order.seen', { id: order.id });
 * });
 * ```
 *
 * | the function | what the host does |
 * | --- | --- |
 * | returns | the event is done |
 * | throws {@link Retry} | calls again later, with backoff; after the last attempt the event becomes a dead letter |
 * | throws {@link Reject} | makes the event a dead letter at once |
 * | throws anything else | as for `Retry`, with the error, its stack and its causes as the reason |
 *
 * An error whose `cause` is a `Retry` or a `Reject` is one.
 *
 * @packageDocumentation
 */

/** The value of a CloudEvents extension attribute: a Boolean, an Integer, or text. */
export type ExtensionValue = boolean | number | string;

/** A CloudEvents 1.0 event, with its place in the log. */
export interface Event<T = unknown> {
  /** Identifies the event together with `source`. */
  readonly id: string;
  /** The context in which the event happened; a URI-reference. */
  readonly source: string;
  /** The kind of event, such as `issues.opened`. */
  readonly type: string;
  /** What the event is about, within its source. */
  readonly subject: string | undefined;
  /** When the event happened: RFC 3339 text in UTC. */
  readonly time: string;
  /** The media type of the data; absent means `application/json`. */
  readonly datacontenttype: string | undefined;
  /** A URI that identifies the schema of the data. */
  readonly dataschema: string | undefined;
  /** CloudEvents' partitioning extension: events of one key are ordered. */
  readonly partitionkey: string | undefined;
  /** The extension attributes by name, without `partitionkey`. */
  readonly extensions: Readonly<Record<string, ExtensionValue>>;
  /** The payload, as the bytes that were published. Empty when the event has none. */
  readonly data: Uint8Array;
  /** The event's place in the log. Grows along the log, with gaps. */
  readonly position: bigint;
  /** Which call this is for this event, counted from 1. */
  readonly attempt: number;
  /**
   * The payload, decoded from JSON, whatever its media type says. The type is what the
   * caller says it is: nothing checks it.
   *
   * @throws InvalidEvent There is none, or it is not JSON.
   */
  json<J = T>(): J;
  /**
   * The payload as text.
   *
   * @throws InvalidEvent It is not UTF-8.
   */
  text(): string;
}

/** What a component exports as `handler`. */
export interface Handler {
  /** Called by the host, and by `call` of `@event-host/sdk/testing`. */
  handle(raw: unknown): void;
}

/** What a component exports as `batchHandler`. */
export interface BatchHandler {
  /** Called by the host, and by `callBatch` of `@event-host/sdk/testing`. */
  handleBatch(raws: unknown[]): unknown[];
}

/**
 * Makes a function the handler of a component. Export what it gives under the name
 * `handler`, and build for the world `event-handler`.
 *
 * The function is synchronous. One that is `async` is refused while the component is
 * built, and a promise that it returns is a retry that says so.
 */
export function defineHandler<T = unknown>(handle: (event: Event<T>) => void): Handler;

/** The result of one event of a batch: nothing when it is done, else what failed. */
export type BatchResult = undefined | null | Error;

/**
 * Makes a function the handler of batches of a component. Export what it gives under the
 * name `batchHandler`, and build for the world `batch-event-handler`.
 *
 * The function gets at least one event, in the order of the log, and returns a result for
 * each in the same order, or nothing when all are done. What is emitted and written
 * belongs to all events together: it is kept when all are done. Else nothing of the call
 * counts, and the same events come again one by one.
 */
export function defineBatchHandler<T = unknown>(
  handle: (events: Event<T>[]) => readonly BatchResult[] | undefined | void,
): BatchHandler;

/** Thrown to say: it may work later. The host calls again, up to the configured attempts. */
export class Retry extends Error {
  /** `afterMs` is the least number of milliseconds to wait; absent leaves it to the handler's settings. */
  constructor(reason: string, options?: { afterMs?: number | undefined; cause?: unknown });
  /** The least number of milliseconds to wait before the next attempt. */
  readonly afterMs: number | undefined;
}

/** Thrown to say: it will never work. The event becomes a dead letter at once. */
export class Reject extends Error {}

/** The event is not what the handler takes; a rejection, since it will not get better. */
export class InvalidEvent extends Reject {}

/** What an emitted event has beside type and data. Whatever is absent gets the default it says. */
export interface EmitOptions {
  /** Default: one that is the same on each attempt. */
  id?: string | undefined;
  /** A URI-reference. Default: `/groups/` and the group's name. */
  source?: string | undefined;
  /** What the event is about. Default: none. */
  subject?: string | undefined;
  /** When it happened; text is RFC 3339. Default: the time of the settlement. */
  time?: string | Date | undefined;
  /** Default: `application/json`, and `application/octet-stream` for bytes. */
  datacontenttype?: string | undefined;
  /** Default: none. */
  dataschema?: string | undefined;
  /** Default: that of the handled event; of a batch, the one that all its events have. */
  partitionkey?: string | undefined;
  /** When it is delivered at the earliest, at most 366 days from now. Default: at once. */
  deliverAfter?: string | Date | undefined;
  /** Extension attributes; names are lower-case letters and digits, numbers are 32-bit integers. */
  extensions?: Record<string, ExtensionValue> | undefined;
}

/**
 * Publishes an event when, and only when, this call of the handler succeeds.
 *
 * `data` becomes JSON. Bytes stay as they are, and with a `datacontenttype` that is not
 * JSON, such as `text/plain`, a string stays text. Without data the payload is empty.
 *
 * @throws EmitError The event is no CloudEvent, or the settings do not let the handler emit
 * this type. Going over the limit of emits does not throw: it ends the attempt.
 */
export function emit(type: string, data?: unknown, options?: EmitOptions): void;

/** Why an event was not taken. */
export class EmitError extends Error {
  /** Whether it is no CloudEvent, is not allowed, or anything else. */
  readonly kind: 'invalid' | 'denied' | 'other';
}

/**
 * Small durable values of the consumer group. Reads see the writes of the same call; writes
 * are kept when, and only when, the call succeeds, so a counter kept here is exact.
 */
export const state: {
  /**
   * The value of a key, decoded from JSON, or undefined if the key has none.
   *
   * @throws StateError The key is not allowed, or its value is not JSON.
   */
  get<T = unknown>(key: string): T | undefined;
  /**
   * Gives a key a value, as JSON.
   *
   * @throws StateError The key is not allowed, or the value has no JSON form. A value over
   * the limit does not throw: it ends the attempt.
   */
  set(key: string, value: unknown): void;
  /** The value of a key as the bytes that were set. */
  getBytes(key: string): Uint8Array | undefined;
  /** Gives a key a value of bytes. */
  setBytes(key: string, value: ArrayBuffer | ArrayBufferView): void;
  /** Removes a key; one that is absent is no error. */
  delete(key: string): void;
  /** The first `limit` keys that start with `prefix`, sorted by their bytes. */
  keys(prefix: string, limit: number): string[];
};

/** Why a state operation failed. */
export class StateError extends Error {
  /** Whether the key is not allowed, a value is no JSON, a value has no JSON form, or anything else. */
  readonly kind: 'invalid-key' | 'decode' | 'encode' | 'other';
}

/**
 * Writes a line to the host's log, which adds group, handler, event id and attempt. Several
 * values are joined with spaces: strings as they are, errors with their stack, the rest as JSON.
 */
export const log: {
  /** Steps, for whoever debugs the handler. */
  trace(...values: unknown[]): void;
  /** Details. */
  debug(...values: unknown[]): void;
  /** What is worth knowing. */
  info(...values: unknown[]): void;
  /** What may need a look. */
  warn(...values: unknown[]): void;
  /** What does. */
  error(...values: unknown[]): void;
};

/** What the handler may know of the call it is in. */
export const context: {
  /** The consumer group's name. */
  group(): string;
  /** The tenant that owns the handler and the event, if there is one. */
  tenant(): string | undefined;
  /** Milliseconds until the host ends this attempt. */
  remainingMs(): number;
  /** Whether this event is a dead letter that an operator replayed. */
  isReplay(): boolean;
  /** Whether this event comes after later events of the log were already handed to this group. */
  isLate(): boolean;
};
