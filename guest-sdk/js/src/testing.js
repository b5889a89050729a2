// Calls of a handler in an ordinary test, with a host in memory. It keeps the promises of
// one call: emits and writes count when, and only when, the call succeeds. Limits are not
// among them.

import { Call, during } from '#host';
import { Event } from './event.js';
import { asBytes, payloadOf } from './payload.js';
import { decode, encode } from './utf8.js';

const ATTRIBUTES = ['id', 'source', 'type', 'subject', 'time', 'datacontenttype', 'dataschema', 'partitionkey'];
const NOT_EXTENSIONS = [...ATTRIBUTES, 'specversion', 'data', 'data_base64'];
const TIME = '2026-01-01T00:00:00Z';

const FACTS = {
  group: 'test',
  tenant: '',
  remainingMs: 10_000,
  isReplay: false,
  isLate: false,
  allowEmit: undefined,
  attempt: 1,
  position: 1n,
};

/** A host whose state lasts from call to call. */
export class Host {
  #state;
  #facts;

  constructor(options = {}) {
    const { state = {}, ...facts } = options;
    this.#facts = factsOf(FACTS, facts);
    this.#state = new Map(Object.entries(state).map(([key, value]) => [key, bytesOf(value)]));
  }

  /** The state: decoded from JSON, or bytes where it is no JSON. */
  get state() {
    return Object.fromEntries([...this.#state].map(([key, bytes]) => [key, valueOf(bytes)]));
  }

  /** One call with one event. */
  call(handler, event, options = {}) {
    if (typeof handler?.handle !== 'function') {
      throw new TypeError('`call` takes what `defineHandler` gives; `callBatch` takes what `defineBatchHandler` gives');
    }
    const facts = factsOf(this.#facts, options);
    const raw = rawEvent(event ?? {}, facts);
    const call = new Call(this.#state, facts);
    let outcome = { tag: 'done' };
    try {
      during(call, () => handler.handle(raw));
    } catch (failure) {
      outcome = outcomeOf(failure);
    }
    this.#settle(call, outcome.tag === 'done');
    return this.#result(call, { outcome }, [raw]);
  }

  /** One call with several events. */
  callBatch(handler, events, options = {}) {
    if (typeof handler?.handleBatch !== 'function') {
      throw new TypeError('`callBatch` takes what `defineBatchHandler` gives; `call` takes what `defineHandler` gives');
    }
    if (events.length === 0) {
      throw new RangeError('the host never calls with no event');
    }
    const facts = factsOf(this.#facts, options);
    const raws = events.map((event, index) => rawEvent(event, facts, index));
    const call = new Call(this.#state, facts);
    const results = during(call, () => handler.handleBatch(raws));
    const outcomes = results.map((result) => (result.tag === 'ok' ? { tag: 'done' } : outcomeOf(result.val)));
    this.#settle(call, outcomes.every((outcome) => outcome.tag === 'done'));
    return this.#result(call, { outcomes }, raws);
  }

  /** Runs any function as a call that succeeds when it returns; what it throws goes on. */
  run(work, options = {}) {
    const call = new Call(this.#state, factsOf(this.#facts, options));
    const value = during(call, work);
    this.#settle(call, true);
    return this.#result(call, { value }, []);
  }

  #settle(call, succeeded) {
    if (succeeded) {
      this.#state = call.state;
    } else {
      call.emitted = [];
    }
  }

  #result(call, first, raws) {
    const emits = call.emitted.map((message, index) => emitted(message, index, call.facts, raws));
    return { ...first, emits, logs: call.logs, state: this.state };
  }
}

/** One call with one event, on a host of its own. */
export function call(handler, event, options = {}) {
  return new Host(options).call(handler, event);
}

/** One call with several events, on a host of its own. */
export function callBatch(handler, events, options = {}) {
  return new Host(options).callBatch(handler, events);
}

function factsOf(before, given) {
  for (const name of Object.keys(given)) {
    if (!(name in FACTS)) {
      throw new TypeError(`there is no option \`${name}\`; there are ${['state', ...Object.keys(FACTS)].join(', ')}`);
    }
  }
  return { ...before, ...given };
}

// A failure of the contract. Anything else is a defect in whatever threw it.
function outcomeOf(failure) {
  if (failure?.tag === 'reject') {
    return { tag: 'reject', reason: failure.val };
  }
  if (failure?.tag === 'retry') {
    const { reason, afterMs } = failure.val;
    return { tag: 'retry', reason, afterMs: afterMs === undefined ? undefined : Number(afterMs) };
  }
  throw failure;
}

// The contract's record of a CloudEvent in its JSON form.
function rawEvent(event, facts, index = 0) {
  const given = (name) => event[name] ?? undefined;
  if (given('data') !== undefined && given('data_base64') !== undefined) {
    throw new TypeError('an event has `data` or `data_base64`, not both');
  }
  const bytes = given('data_base64') === undefined ? event.data : Uint8Array.from(Buffer.from(event.data_base64, 'base64'));
  const binary = event.data !== undefined && asBytes(event.data) !== undefined;
  const { position } = facts;
  return {
    id: given('id') ?? (index === 0 ? 'test' : `test-${index + 1}`),
    source: given('source') ?? '/test',
    type: given('type') ?? 'test',
    subject: given('subject'),
    time: given('time') ?? TIME,
    datacontenttype: given('datacontenttype') ?? (binary ? 'application/octet-stream' : undefined),
    dataschema: given('dataschema'),
    partitionkey: given('partitionkey'),
    extensions: extensionsOf(event),
    data: payloadOf(bytes, given('datacontenttype')).data,
    position: typeof position === 'bigint' ? position + BigInt(index) : position + index,
    attempt: facts.attempt,
  };
}

function extensionsOf(event) {
  return Object.entries(event)
    .filter(([name, value]) => !NOT_EXTENSIONS.includes(name) && value !== null && value !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => {
      const tag = { boolean: 'boolean', number: 'integer', string: 'text' }[typeof value];
      if (tag === undefined || (tag === 'integer' && value !== (value | 0))) {
        throw new TypeError(`the extension \`${name}\` of the event must be a boolean, an integer of 32 bits or a string`);
      }
      return [name, { tag, val: value }];
    });
}

// The event that other handlers would get.
function emitted(message, index, facts, raws) {
  const keys = new Set(raws.map((raw) => raw.partitionkey));
  return new Event({
    ...message,
    id: message.id ?? `emit-${index + 1}`,
    source: message.source ?? `/groups/${facts.group}`,
    time: message.time ?? TIME,
    partitionkey: message.partitionkey ?? (keys.size === 1 ? [...keys][0] : undefined),
    position: 1n,
    attempt: 1,
  });
}

function bytesOf(value) {
  return asBytes(value) ?? encode(JSON.stringify(value));
}

function valueOf(bytes) {
  try {
    return JSON.parse(decode(bytes));
  } catch {
    return bytes;
  }
}
