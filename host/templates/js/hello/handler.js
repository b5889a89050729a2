// Counts the orders of each customer, and says hello at the first.

import { defineHandler, emit, log, Reject, state } from '@event-host/sdk';

export const handler = defineHandler((event) => {
  const order = event.json();
  if (typeof order?.customer !== 'string') {
    throw new Reject('the order names no customer');
  }

  const key = `orders/${order.customer}`;
  const orders = (state.get(key) ?? 0) + 1;
  state.set(key, orders);
  log.info(`order ${orders} of ${order.customer}`);

  if (orders === 1) {
    emit('customer.greeted', { text: `Hello, ${order.customer}!` }, { subject: order.customer });
  }
});
