// Why a handler did not handle an event, and how whatever it throws becomes that.

import { wellFormed } from './utf8.js';

// Two copies of this package may be in one bundle, so a failure is known by this mark
// and not by its class.
const KIND = Symbol.for('event-host.failure');

// A `cause` may lead back to where it began.
const MOST_CAUSES = 32;

// The largest number that both engines can hand over as a u64.
const MOST_MS = Number.MAX_SAFE_INTEGER;

/** It may work later. */
export class Retry extends Error {
  constructor(reason, options = {}) {
    const { afterMs, ...rest } = options ?? {};
    super(reason, rest);
    if (afterMs !== undefined && afterMs !== null && !(typeof afterMs === 'number' && afterMs >= 0)) {
      throw new RangeError(`\`afterMs\` is ${String(afterMs)}: give the milliseconds to wait, from 0 on, as a number`);
    }
    this.afterMs = afterMs ?? undefined;
  }
}

/** It will never work. */
export class Reject extends Error {}

/** The event is not what the handler takes. */
export class InvalidEvent extends Reject {}

for (const [type, name, kind] of [
  [Retry, 'Retry', 'retry'],
  [Reject, 'Reject', 'reject'],
  [InvalidEvent, 'InvalidEvent', 'reject'],
]) {
  Object.defineProperty(type.prototype, 'name', { value: name, configurable: true, writable: true });
  Object.defineProperty(type.prototype, KIND, { value: kind });
}

/**
 * The failure, as the contract has it, that a thrown value stands for: what a `Retry`
 * or `Reject` says, also when another error has it as its cause; else a retry with the
 * error and its stack.
 */
export function failureOf(thrown, u64 = Number) {
  try {
    return describe(thrown, u64);
  } catch {
    // A getter or a `toString` of the thrown value threw in turn.
    return retry('the handler threw a value that cannot be shown', undefined, u64);
  }
}

function describe(thrown, u64) {
  const chain = causes(thrown);
  const given = chain.find((error) => error?.[KIND] !== undefined);
  if (given === undefined) {
    return retry(chain.map(withStack).join('\ncaused by: '), undefined, u64);
  }
  const reason = withCauses(chain);
  return given[KIND] === 'reject' ? { tag: 'reject', val: wellFormed(reason) } : retry(reason, given.afterMs, u64);
}

function retry(reason, afterMs, u64) {
  const whole = afterMs === undefined ? undefined : Math.min(Math.ceil(afterMs), MOST_MS);
  return { tag: 'retry', val: { reason: wellFormed(reason), afterMs: whole === undefined ? undefined : u64(whole) } };
}

function causes(thrown) {
  const chain = [thrown];
  for (let next = thrown?.cause; next !== undefined && next !== null && chain.length < MOST_CAUSES; next = next?.cause) {
    chain.push(next);
  }
  return chain;
}

// In one line. An error that already shows its cause does not show it twice.
function withCauses(chain) {
  let text = message(chain[0]);
  for (const cause of chain.slice(1).map(message)) {
    if (!text.endsWith(cause)) {
      text += `: ${cause}`;
    }
  }
  return text;
}

function message(error) {
  return error instanceof Error ? error.message : show(error);
}

/** An error with its stack, which begins with name and message in some engines only. */
export function withStack(error) {
  if (!(error instanceof Error)) {
    return show(error);
  }
  const title = error.message === '' ? error.name : `${error.name}: ${error.message}`;
  const stack = String(error.stack ?? '');
  const frames = stack.startsWith(title) ? stack.slice(title.length) : stack;
  return `${title}\n${frames.replace(/^\n+/, '')}`.trimEnd();
}

/** Any value as text for a person. */
export function show(value) {
  if (typeof value !== 'object' || value === null) {
    return String(value);
  }
  try {
    return JSON.stringify(value, (_, inner) => (typeof inner === 'bigint' ? String(inner) : inner)) ?? String(value);
  } catch {
    return Object.prototype.toString.call(value);
  }
}
