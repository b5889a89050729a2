// Emitting events.

import * as host from '#host';
import { payloadOf } from './payload.js';
import { wellFormed } from './utf8.js';

const TEXTS = ['id', 'source', 'subject', 'dataschema', 'partitionkey', 'datacontenttype'];
const TIMES = ['time', 'deliverAfter'];
const OPTIONS = [...TEXTS, ...TIMES, 'extensions'];

const SENTENCES = {
  invalid: (text) => `cannot emit an invalid event: ${text}`,
  denied: (text) => `not allowed to emit: ${text}`,
};

/** Why a message was not taken: `kind` is `invalid`, `denied` or `other`. */
export class EmitError extends Error {
  constructor(kind, text, options) {
    super((SENTENCES[kind] ?? ((said) => `cannot emit: ${said}`))(text), options);
    this.kind = kind in SENTENCES ? kind : 'other';
  }
}
Object.defineProperty(EmitError.prototype, 'name', { value: 'EmitError', configurable: true, writable: true });

/** Publishes an event when, and only when, this call of the handler succeeds. */
export function emit(type, data, options) {
  const message = messageOf(type, data, options);
  try {
    host.emit(message);
  } catch (error) {
    if (error?.payload?.tag === undefined) {
      throw error;
    }
    throw new EmitError(error.payload.tag, error.payload.val);
  }
}

function messageOf(type, data, options) {
  const given = options ?? {};
  for (const name of Object.keys(given)) {
    if (!OPTIONS.includes(name)) {
      throw new EmitError('invalid', `there is no option \`${name}\`; there are ${OPTIONS.join(', ')}`);
    }
  }
  const message = { type: text('type', type) };
  for (const name of TEXTS) {
    message[name] = text(name, given[name] ?? undefined);
  }
  message.time = time('time', given.time ?? undefined);
  Object.assign(message, payload(message.type, data, message.datacontenttype));
  const extensions = Object.entries(given.extensions ?? {});
  const deliverAfter = time('deliverAfter', given.deliverAfter ?? undefined);
  if (deliverAfter !== undefined) {
    extensions.push(['deliverafter', deliverAfter]);
  }
  message.extensions = extensions
    .sort(([a], [b]) => (a < b ? -1 : Number(a > b)))
    .map(([name, value]) => [wellFormed(name), extension(name, value)]);
  return message;
}

function payload(type, data, datacontenttype) {
  try {
    return payloadOf(data, datacontenttype);
  } catch (error) {
    throw new EmitError('invalid', `the data of \`${type}\`: ${error.message}`);
  }
}

// An engine traps at a value of another type than the contract's, so it is refused here.
function text(name, value) {
  if (value !== undefined && typeof value !== 'string') {
    throw new EmitError('invalid', `\`${name}\` is a ${typeof value}, and must be a string`);
  }
  return value === undefined ? undefined : wellFormed(value);
}

function time(name, value) {
  if (!(value instanceof Date)) {
    return text(name, value);
  }
  if (Number.isNaN(value.getTime())) {
    throw new EmitError('invalid', `\`${name}\` is a Date that is no time`);
  }
  return value.toISOString();
}

function extension(name, value) {
  if (typeof value === 'boolean') {
    return { tag: 'boolean', val: value };
  }
  if (typeof value === 'string') {
    return { tag: 'text', val: wellFormed(value) };
  }
  if (Number.isInteger(value) && value === (value | 0)) {
    return { tag: 'integer', val: value | 0 };
  }
  const what = typeof value === 'number' ? String(value) : `a ${typeof value}`;
  throw new EmitError('invalid', `the extension \`${name}\` is ${what}, and must be a boolean, an integer of 32 bits or a string`);
}
