import assert from 'node:assert/strict';
import { test } from 'node:test';

import { answer } from './answer.ts';

const order = () => new Request('http://event-host.internal/order.placed', { method: 'POST', body: '{"id":7}' });

test('what the service says is emitted', async () => {
  let sent: unknown[] = [];
  const response = await answer(order(), async (url, options) => {
    sent = [url, options?.body];
    return new Response('{"place":3}');
  });
  assert.deepEqual(sent, ['http://localhost:8080/orders', '{"id":7}']);
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('ce-type'), 'order.forwarded');
  assert.deepEqual(await response.json(), { place: 3 });
});

test('an order comes again if the service is away, and not if it refuses', async () => {
  const away = async () => {
    throw new TypeError('connection refused');
  };
  assert.equal((await answer(order(), away)).status, 503);
  const refuses = async () => new Response('no', { status: 422 });
  assert.equal((await answer(order(), refuses)).status, 422);
});
