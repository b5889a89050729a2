// Counts the orders of each customer, and says hello at the first.

import { defineHandler, emit, log, Reject, state } from '@event-host/sdk';

interface Order {
  id: number;
  customer?: string;
}

export const handler = defineHandler((event) => {
  const { customer } = event.json<Order>();
  if (typeof customer !== 'string') {
    throw new Reject('the order names no customer');
  }

  const key = `orders/${customer}`;
  const orders = (state.get<number>(key) ?? 0) + 1;
  state.set(key, orders);
  log.info(`order ${orders} of ${customer}`);

  if (orders === 1) {
    emit('customer.greeted', { text: `Hello, ${customer}!` }, { subject: customer });
  }
});
