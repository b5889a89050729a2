// Small durable values of the consumer group.

import * as host from '#host';
import { asBytes, jsonOf } from './payload.js';
import { decode, encode, wellFormed } from './utf8.js';

const SENTENCES = {
  'invalid-key': (text) => `not a key of the state: ${text}`,
  decode: (key) => `the state's \`${key}\` is not JSON`,
  encode: (key) => `the new value of the state's \`${key}\` has no JSON form`,
};

/** Why a state operation failed: `kind` is `invalid-key`, `decode`, `encode` or `other`. */
export class StateError extends Error {
  constructor(kind, text, options) {
    super((SENTENCES[kind] ?? ((said) => `the state is not available: ${said}`))(text), options);
    this.kind = kind in SENTENCES ? kind : 'other';
  }
}
Object.defineProperty(StateError.prototype, 'name', { value: 'StateError', configurable: true, writable: true });

export const state = Object.freeze({
  get(key) {
    const bytes = state.getBytes(key);
    if (bytes === undefined) {
      return undefined;
    }
    try {
      return JSON.parse(decode(bytes));
    } catch (error) {
      throw new StateError('decode', key, { cause: error });
    }
  },

  set(key, value) {
    checkKey(key);
    let json;
    try {
      json = jsonOf(value);
    } catch (error) {
      throw new StateError('encode', key, { cause: error });
    }
    state.setBytes(key, encode(json));
  },

  getBytes(key) {
    checkKey(key);
    return asked(() => host.stateGet(wellFormed(key)));
  },

  setBytes(key, value) {
    checkKey(key);
    const bytes = asBytes(value);
    if (bytes === undefined) {
      throw new TypeError('`setBytes` takes a Uint8Array; `set` takes any value that has a JSON form');
    }
    asked(() => host.stateSet(wellFormed(key), bytes));
  },

  delete(key) {
    checkKey(key);
    asked(() => host.stateDelete(wellFormed(key)));
  },

  keys(prefix, limit) {
    checkKey(prefix);
    if (!Number.isInteger(limit) || limit < 0 || limit > 0xffff_ffff) {
      throw new RangeError(`\`keys\` takes a prefix and how many keys at most, a whole number from 0 on, not ${String(limit)}`);
    }
    return asked(() => host.stateKeys(wellFormed(prefix), limit));
  },
});

// An engine traps at a key that is no string.
function checkKey(key) {
  if (typeof key !== 'string') {
    throw new TypeError(`a key of the state is a string, not a ${typeof key}`);
  }
}

function asked(question) {
  try {
    return question();
  } catch (error) {
    if (error?.payload?.tag === undefined) {
      throw error;
    }
    throw new StateError(error.payload.tag, error.payload.val);
  }
}
