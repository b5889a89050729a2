import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { callBatch } from '@event-host/sdk/testing';
import { batchHandler } from './handler.js';

const event = JSON.parse(readFileSync(new URL('event.json', import.meta.url), 'utf8'));

test('orders are counted together', () => {
  const { outcomes, emits, state } = callBatch(batchHandler, [event, event], { state: { orders: 4 } });
  assert.deepEqual(outcomes, [{ tag: 'done' }, { tag: 'done' }]);
  assert.deepEqual(state, { orders: 6 });
  assert.equal(emits.length, 1);
  assert.equal(emits[0].type, 'orders.counted');
  assert.deepEqual(emits[0].json(), { orders: 2, total: 6 });
});

test('an order of nobody is rejected, and nothing is counted', () => {
  const { outcomes, emits, state } = callBatch(batchHandler, [event, { ...event, data: { id: 8 } }]);
  assert.deepEqual(outcomes, [{ tag: 'done' }, { tag: 'reject', reason: 'the order names no customer' }]);
  assert.deepEqual(state, {});
  assert.deepEqual(emits, []);
});
