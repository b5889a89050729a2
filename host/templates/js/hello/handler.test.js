import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { call } from '@event-host/sdk/testing';
import { handler } from './handler.js';

const event = JSON.parse(readFileSync(new URL('event.json', import.meta.url), 'utf8'));

test('the first order is greeted', () => {
  const { outcome, emits, state } = call(handler, event);
  assert.deepEqual(outcome, { tag: 'done' });
  assert.deepEqual(state, { 'orders/Ada': 1 });
  assert.equal(emits.length, 1);
  assert.equal(emits[0].type, 'customer.greeted');
  assert.equal(emits[0].subject, 'Ada');
  assert.deepEqual(emits[0].json(), { text: 'Hello, Ada!' });
});

test('later orders are only counted', () => {
  const { emits, state } = call(handler, event, { state: { 'orders/Ada': 4 } });
  assert.deepEqual(state, { 'orders/Ada': 5 });
  assert.deepEqual(emits, []);
});

test('an order of nobody is rejected', () => {
  const { outcome, state } = call(handler, { ...event, data: { id: 8 } });
  assert.deepEqual(outcome, { tag: 'reject', reason: 'the order names no customer' });
  assert.deepEqual(state, {});
});
