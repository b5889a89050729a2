import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answer } from './answer.js';

const order = (data) => new Request('http://event-host.internal/order.placed', { method: 'POST', body: JSON.stringify(data) });

test('a customer is greeted', async () => {
  const response = await answer(order({ id: 7, customer: 'Ada' }));
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('ce-type'), 'customer.greeted');
  assert.deepEqual(await response.json(), { text: 'Hello, Ada!' });
});

test('an order of nobody is refused', async () => {
  const response = await answer(order({ id: 8 }));
  assert.equal(response.status, 422);
  assert.equal(await response.text(), 'the order names no customer');
});
