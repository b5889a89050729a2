// What stands between the component's export and the author's function.

import { Event } from './event.js';
import { failureOf } from './failure.js';

const SYNCHRONOUS =
  'handlers are synchronous: the host takes a call as done when the function returns, and nothing after its first `await` would run';

/** The export `handler` of a component that takes one event a call. */
export function defineHandler(handle) {
  check('defineHandler', handle);
  return Object.freeze({
    handle(raw) {
      const failure = attempt(raw, () => {
        refusePromise(handle(new Event(raw)));
      });
      if (failure !== undefined) {
        throw failure;
      }
    },
  });
}

/** The export `batchHandler` of a component that takes several events a call. */
export function defineBatchHandler(handle) {
  check('defineBatchHandler', handle);
  return Object.freeze({
    handleBatch(raws) {
      let results = [];
      const failure = attempt(raws[0], () => {
        results = handle(raws.map((raw) => new Event(raw))) ?? raws.map(() => undefined);
        refusePromise(results);
        if (!Array.isArray(results) || results.length !== raws.length) {
          const what = Array.isArray(results) ? `${results.length} results` : `a ${typeof results}`;
          throw new TypeError(`the handler returned ${what} for ${raws.length} events: return an array of one result for each event, or nothing when all are done`);
        }
      });
      return raws.map((raw, index) => answer(failure ?? failureIn(results[index], raw)));
    },
  });
}

function answer(failure) {
  return failure === undefined ? { tag: 'ok', val: undefined } : { tag: 'err', val: failure };
}

// A result of a batch: nothing for an event that is done, else what would have been thrown.
function failureIn(result, raw) {
  return attempt(raw, () => {
    refusePromise(result);
    if (result !== undefined && result !== null) {
      throw result;
    }
  });
}

// Runs it; gives the failure of what it throws, with numbers as this engine wants a u64.
function attempt(raw, run) {
  try {
    run();
    return undefined;
  } catch (thrown) {
    return failureOf(thrown, typeof raw?.position === 'bigint' ? BigInt : Number);
  }
}

function refusePromise(returned) {
  if (typeof returned?.then === 'function') {
    throw new TypeError(`the handler returned a promise; ${SYNCHRONOUS}`);
  }
}

// An async function is refused while the component is built.
function check(name, handle) {
  if (typeof handle !== 'function') {
    throw new TypeError(`\`${name}\` takes the function that handles events, not a ${typeof handle}`);
  }
  const kind = Object.prototype.toString.call(handle).slice('[object '.length, -1);
  if (kind !== 'Function') {
    const what = { AsyncFunction: 'an async function', GeneratorFunction: 'a generator' }[kind] ?? 'an async generator';
    throw new TypeError(`\`${name}\` was given ${what}; ${SYNCHRONOUS}`);
  }
}
