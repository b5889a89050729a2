import assert from 'node:assert/strict';
import { test } from 'node:test';

import { context, defineHandler, log } from '@event-host/sdk';
import { call } from '@event-host/sdk/testing';

function seen(event, options) {
  let kept;
  const { outcome } = call(defineHandler((given) => { kept = given; }), event, options);
  assert.deepEqual(outcome, { tag: 'done' });
  return kept;
}

const reason = (event, read) => call(defineHandler(read), event).outcome;

test('an event has every attribute, and undefined for what is absent', () => {
  const event = seen({
    specversion: '1.0', id: 'i', source: '/s', type: 't', subject: 'about', time: '2026-02-03T04:05:06Z',
    datacontenttype: 'application/json', dataschema: 'https://example.com/s', partitionkey: 'k',
    flag: true, n: -3, s: 'text', data: { name: 'Zoë 🦀' },
  }, { attempt: 3 });
  assert.deepEqual({ ...event, data: undefined }, {
    id: 'i', source: '/s', type: 't', subject: 'about', time: '2026-02-03T04:05:06Z',
    datacontenttype: 'application/json', dataschema: 'https://example.com/s', partitionkey: 'k',
    extensions: { flag: true, n: -3, s: 'text' }, data: undefined, position: 1n, attempt: 3,
  });
  assert.deepEqual(event.json(), { name: 'Zoë 🦀' });
  const { subject, datacontenttype, dataschema, partitionkey, extensions } = seen({});
  assert.deepEqual([subject, datacontenttype, dataschema, partitionkey, extensions], [undefined, undefined, undefined, undefined, {}]);
});

test('a position is a bigint, whichever number the engine gives', () => {
  assert.equal(seen({}, { position: 7 }).position, 7n);
  assert.equal(seen({}, { position: 2n ** 60n }).position, 2n ** 60n);
});

test('data that does not decode is a rejection that says why', () => {
  const { tag, reason: broken } = reason({ data: '{"n": ', datacontenttype: 'text/plain' }, (event) => event.json());
  assert.equal(tag, 'reject');
  assert.match(broken, /^the data is not JSON: ./);
  assert.deepEqual(reason({}, (event) => event.json()), { tag: 'reject', reason: 'the event has no data' });
  assert.deepEqual(reason({ data_base64: '/w==' }, (event) => event.text()), {
    tag: 'reject', reason: 'the data is not UTF-8 text: not UTF-8',
  });
  assert.equal(seen({}).text(), '');
  assert.deepEqual(seen({ data: new Uint8Array([255]) }).data, new Uint8Array([255]));
});

test('the context tells what the host says', () => {
  const facts = () => [context.group(), context.tenant(), context.remainingMs(), context.isReplay(), context.isLate()];
  let told;
  const handler = defineHandler(() => { told = facts(); });
  call(handler);
  assert.deepEqual(told, ['test', undefined, 10_000, false, false]);
  call(handler, {}, { group: 'g', tenant: 'acme', remainingMs: 5, isReplay: true, isLate: true });
  assert.deepEqual(told, ['g', 'acme', 5, true, true]);
  assert.throws(facts, /there is no host outside of a call/);
  assert.throws(() => call(handler, {}, { grop: 'g' }), /no option `grop`/);
});

test('a line has its level and its values, of a failed call too', () => {
  const handler = defineHandler(() => {
    log.trace('a', 1, { b: [2n] });
    log.debug(undefined);
    log.info('half \ud800');
    log.warn(null, true);
    log.error(new TypeError('x'));
    throw new Error('end');
  });
  const { logs } = call(handler);
  assert.deepEqual(logs.slice(0, 4), [
    { level: 'trace', message: 'a 1 {"b":["2"]}' },
    { level: 'debug', message: 'undefined' },
    { level: 'info', message: 'half \ufffd' },
    { level: 'warn', message: 'null true' },
  ]);
  assert.equal(logs[4].level, 'error');
  assert.match(logs[4].message, /^TypeError: x\n +at /);
});
