/**
 * Calls a handler in an ordinary test, with a host in memory.
 *
 * ```ts
 * import { call } from '@event-host/sdk/testing';
 * import { handler } from './handler.js';
 *
 * const { outcome, emits, state } = call(handler, { type: 'order.placed', data: { id: 7 } }, { state: { orders: 4 } });
 * ```
 *
 * Emits and writes count when, and only when, the call succeeds. Limits are not checked.
 *
 * @packageDocumentation
 */

import type { BatchHandler, Event, Handler } from './index.js';

/**
 * A CloudEvent in its JSON form, as `host invoke --event` reads it too: each name that is
 * not one of these is an extension attribute. What is absent gets a value for tests.
 */
export interface TestEvent {
  specversion?: string;
  id?: string;
  source?: string;
  type?: string;
  subject?: string;
  time?: string;
  datacontenttype?: string;
  dataschema?: string;
  partitionkey?: string;
  /** The payload: a value that becomes JSON, bytes, or text of another media type. */
  data?: unknown;
  /** The payload in base64. */
  data_base64?: string;
  [extension: string]: unknown;
}

/** What a call tells the handler. */
export interface CallOptions {
  /** Default: `test`. */
  group?: string;
  /** Default: none. */
  tenant?: string;
  /** Default: 10,000. */
  remainingMs?: number;
  /** Default: false. */
  isReplay?: boolean;
  /** Default: false. */
  isLate?: boolean;
  /** Default: 1. */
  attempt?: number;
  /** The place of the first event; StarlingMonkey hands over a bigint, QuickJS a number. Default: 1. */
  position?: bigint | number;
  /** The types that the handler may emit, as `allow.emit` of its settings. Default: all. */
  allowEmit?: string[];
}

/** What a host begins with. */
export interface HostOptions extends CallOptions {
  /** The state by key: values that become JSON, or bytes. */
  state?: Record<string, unknown>;
}

/** What became of an event. */
export type Outcome =
  | { tag: 'done' }
  | { tag: 'retry'; reason: string; afterMs: number | undefined }
  | { tag: 'reject'; reason: string };

/** What a call did. */
export interface Effects {
  /** The events that were emitted; none unless the call succeeded. */
  emits: Event[];
  /** The lines that were logged, also by a call that failed. */
  logs: { level: 'trace' | 'debug' | 'info' | 'warn' | 'error'; message: string }[];
  /** The state after the call: decoded from JSON, or bytes where it is no JSON. */
  state: Record<string, any>;
}

/** A host whose state lasts from call to call. */
export class Host {
  constructor(options?: HostOptions);
  /** The state: decoded from JSON, or bytes where it is no JSON. */
  readonly state: Record<string, any>;
  /** One call with one event. */
  call(handler: Handler, event?: TestEvent, options?: CallOptions): Effects & { outcome: Outcome };
  /** One call with several events. */
  callBatch(handler: BatchHandler, events: TestEvent[], options?: CallOptions): Effects & { outcomes: Outcome[] };
  /** Runs any function as a call that succeeds when it returns; what it throws goes on. */
  run<T>(work: () => T, options?: CallOptions): Effects & { value: T };
}

/** One call with one event, on a host of its own. */
export function call(handler: Handler, event?: TestEvent, options?: HostOptions): Effects & { outcome: Outcome };

/** One call with several events, on a host of its own. */
export function callBatch(handler: BatchHandler, events: TestEvent[], options?: HostOptions): Effects & { outcomes: Outcome[] };
