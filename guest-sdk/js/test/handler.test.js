import assert from 'node:assert/strict';
import { test } from 'node:test';

import { defineBatchHandler, defineHandler, emit, InvalidEvent, Reject, Retry, state } from '@event-host/sdk';
import { call, callBatch, Host } from '@event-host/sdk/testing';

const throwing = (thrown) =>
  defineHandler(() => {
    throw thrown;
  });

const outcome = (thrown, options) => call(throwing(thrown), {}, options).outcome;

test('a handler that returns is done, whatever it returns', () => {
  for (const value of [undefined, 0, 'text', { then: 3 }]) {
    assert.deepEqual(call(defineHandler(() => value)).outcome, { tag: 'done' });
  }
});

test('retry and reject are taken by name', () => {
  assert.deepEqual(outcome(new Reject('never')), { tag: 'reject', reason: 'never' });
  assert.deepEqual(outcome(new Retry('later')), { tag: 'retry', reason: 'later', afterMs: undefined });
  assert.deepEqual(outcome(new InvalidEvent('no title')), { tag: 'reject', reason: 'no title' });
});

test('a failure that caused another error survives it, with each text once', () => {
  const wrapped = new Error('calling', { cause: new Retry('wait', { afterMs: 3000 }) });
  assert.deepEqual(outcome(wrapped), { tag: 'retry', reason: 'calling: wait', afterMs: 3000 });
  const shown = new Error('reading: no title', { cause: new InvalidEvent('no title') });
  assert.deepEqual(outcome(shown), { tag: 'reject', reason: 'reading: no title' });
  const caused = new Reject('no such shop', { cause: new TypeError('x is null') });
  assert.deepEqual(outcome(caused), { tag: 'reject', reason: 'no such shop: x is null' });
});

test('any other error is a retry with its stack and its causes', () => {
  const error = new TypeError('x is null', { cause: new RangeError('out of range') });
  const { tag, reason } = outcome(error);
  assert.equal(tag, 'retry');
  assert.match(reason, /^TypeError: x is null\n +at .*handler\.test\.js/);
  assert.match(reason, /\ncaused by: RangeError: out of range\n +at /);
});

test('a stack without a title gets one, as in engines whose stacks have none', () => {
  const error = new TypeError('x is null');
  error.stack = '    at work (/handler.js:3:7)\n';
  assert.equal(outcome(error).reason, 'TypeError: x is null\n    at work (/handler.js:3:7)');
});

test('whatever is thrown has a reason', () => {
  assert.equal(outcome('no luck').reason, 'no luck');
  assert.equal(outcome(undefined).reason, 'undefined');
  assert.equal(outcome(null).reason, 'null');
  assert.equal(outcome({ code: 7n }).reason, '{"code":"7"}');
  assert.equal(outcome(Symbol('s')).reason, 'Symbol(s)');
  const circular = {};
  circular.itself = circular;
  assert.equal(outcome(circular).reason, '[object Object]');
  const loop = new Error('loop');
  loop.cause = loop;
  assert.match(outcome(loop).reason, /^Error: loop/);
  const hostile = new Proxy({}, { get: () => { throw new Error('no'); } });
  assert.equal(outcome(hostile).reason, 'the handler threw a value that cannot be shown');
  assert.equal(outcome(new Reject('half \ud800')).reason, 'half \ufffd');
});

test('a delay is whole milliseconds, rounded up, in the number type of the engine', () => {
  const raw = (position) => ({ ...blank, position });
  const thrown = (position, afterMs) => {
    try {
      throwing(new Retry('', { afterMs })).handle(raw(position));
      return undefined;
    } catch (failure) {
      return failure.val.afterMs;
    }
  };
  assert.equal(thrown(1, 0.1), 1);
  assert.equal(thrown(1n, 0.1), 1n);
  assert.equal(thrown(1, Infinity), Number.MAX_SAFE_INTEGER);
  assert.equal(thrown(1n, Infinity), BigInt(Number.MAX_SAFE_INTEGER));
  assert.equal(thrown(1n, undefined), undefined);
  for (const wrong of [-1, NaN, '50', 50n]) {
    assert.throws(() => new Retry('', { afterMs: wrong }), RangeError);
  }
});

const blank = { id: 'i', source: '/s', type: 't', time: '', extensions: [], data: new Uint8Array(0), attempt: 1 };

test('a promise is refused in words, and so is an async function', () => {
  const { tag, reason } = call(defineHandler(() => Promise.resolve())).outcome;
  assert.equal(tag, 'retry');
  assert.match(reason, /^TypeError: the handler returned a promise; handlers are synchronous/);
  assert.throws(() => defineHandler(async () => {}), /was given an async function; handlers are synchronous/);
  assert.throws(() => defineBatchHandler(async () => []), /async function/);
  assert.throws(() => defineHandler(function* () {}), /was given a generator/);
  assert.throws(() => defineHandler(async function* () {}), /was given an async generator/);
  assert.throws(() => defineHandler(undefined), /takes the function/);
});

test('nothing of a call that fails counts', () => {
  const host = new Host({ state: { n: 1 } });
  const handler = defineHandler((event) => {
    state.set('n', state.get('n') + 1);
    emit('seen', state.get('n'));
    if (event.attempt < 2) {
      throw new Retry('not yet');
    }
  });
  const first = host.call(handler, {});
  assert.equal(first.outcome.tag, 'retry');
  assert.deepEqual([first.emits, first.state], [[], { n: 1 }]);
  const second = host.call(handler, {}, { attempt: 2 });
  assert.equal(second.outcome.tag, 'done');
  assert.deepEqual(second.emits.map((event) => event.json()), [2]);
  assert.deepEqual(host.state, { n: 2 });
});

test('a batch without results is done, and one with results has one for each event', () => {
  const count = defineBatchHandler((events) => {
    state.set('n', (state.get('n') ?? 0) + events.length);
  });
  const done = callBatch(count, [{}, {}]);
  assert.deepEqual([done.outcomes, done.state], [[{ tag: 'done' }, { tag: 'done' }], { n: 2 }]);

  const mixed = defineBatchHandler((events) => {
    emit('seen');
    return events.map((event) => (event.json() > 1 ? new Reject('too many') : null));
  });
  const { outcomes, emits } = callBatch(mixed, [{ data: 1 }, { data: 2 }]);
  assert.deepEqual(outcomes, [{ tag: 'done' }, { tag: 'reject', reason: 'too many' }]);
  assert.deepEqual(emits, []);
});

test('a batch that throws, answers a wrong number or promises fails for each event', () => {
  const reasons = (handle) => callBatch(defineBatchHandler(handle), [{}, {}]).outcomes.map(({ reason }) => reason);
  assert.deepEqual(reasons(() => { throw new Reject('all'); }), ['all', 'all']);
  assert.match(reasons(() => [undefined])[1], /returned 1 results for 2 events/);
  assert.match(reasons(() => 'ok')[0], /returned a string for 2 events/);
  assert.match(reasons(() => Promise.resolve([]))[0], /returned a promise/);
  const [first, second] = reasons((events) => events.map(async () => undefined));
  assert.match(first, /returned a promise/);
  assert.match(second, /returned a promise/);
});
