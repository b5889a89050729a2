// The one door to the host, in tests: a call that lives in memory. testing.js begins
// and ends calls; host.component.js has the same functions for components.

import { encode } from './utf8.js';

/** What of an extension's name the host takes, and names that are attributes of their own. */
const EXTENSION_NAME = /^[a-z0-9]+$/;
const RESERVED = [
  'specversion', 'id', 'source', 'type', 'subject', 'time', 'datacontenttype', 'dataschema', 'partitionkey', 'data',
];
const LONGEST_KEY = 1024;

/** What one call of a handler reads and does. */
export class Call {
  /** `committed` is the state before the call, a Map of keys to bytes. */
  constructor(committed, facts) {
    this.state = new Map(committed);
    this.facts = facts;
    this.emitted = [];
    this.logs = [];
  }
}

let current;

/** Runs a function as a call, which is over when it returns or throws. */
export function during(call, run) {
  const before = current;
  current = call;
  try {
    return run();
  } finally {
    current = before;
  }
}

function now() {
  if (current === undefined) {
    throw new Error('there is no host outside of a call: in a test, use `call` or `Host` of `@event-host/sdk/testing`; for a component, bundle with the condition `event-host`');
  }
  return current;
}

// As the engines throw it.
function refuse(tag, val) {
  throw Object.assign(new Error(val), { payload: { tag, val } });
}

export function emit(message) {
  const call = now();
  checkMessage(message);
  const allowed = call.facts.allowEmit;
  if (allowed !== undefined && !allowed.some((pattern) => fits(pattern, message.type))) {
    refuse('denied', `\`${message.type}\` is not among the types of \`allow.emit\``);
  }
  call.emitted.push({ ...message, data: message.data.slice() });
}

function checkMessage(message) {
  for (const name of ['type', 'id', 'source', 'subject', 'partitionkey']) {
    if (message[name] === '') {
      refuse('invalid', `\`${name}\` is empty`);
    }
  }
  for (const [name] of message.extensions) {
    if (!EXTENSION_NAME.test(name)) {
      refuse('invalid', `\`${name}\` is not the name of an extension attribute: use only lower-case letters a to z and digits`);
    }
    if (RESERVED.includes(name)) {
      refuse('invalid', `\`${name}\` is no extension: it is an attribute of its own`);
    }
  }
}

function fits(pattern, type) {
  return pattern.endsWith('*') ? type.startsWith(pattern.slice(0, -1)) : type === pattern;
}

export function stateGet(key) {
  checkKey(key);
  return now().state.get(key)?.slice();
}

export function stateSet(key, value) {
  checkKey(key);
  now().state.set(key, value.slice());
}

export function stateDelete(key) {
  checkKey(key);
  now().state.delete(key);
}

export function stateKeys(prefix, limit) {
  const keys = [...now().state.keys()].filter((key) => key.startsWith(prefix));
  return keys.sort(byBytes).slice(0, limit);
}

function checkKey(key) {
  const length = encode(key).length;
  if (length === 0) {
    refuse('invalid-key', 'the key is empty');
  }
  if (length > LONGEST_KEY) {
    refuse('invalid-key', `the key has ${length} bytes, over 1,024`);
  }
}

function byBytes(a, b) {
  const [left, right] = [encode(a), encode(b)];
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    if (left[i] !== right[i]) {
      return left[i] - right[i];
    }
  }
  return left.length - right.length;
}

export function log(level, message) {
  now().logs.push({ level, message });
}

export const group = () => now().facts.group;
export const tenant = () => now().facts.tenant;
export const remainingMs = () => now().facts.remainingMs;
export const isReplay = () => now().facts.isReplay;
export const isLate = () => now().facts.isLate;
