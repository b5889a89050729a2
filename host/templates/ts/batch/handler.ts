// Counts orders, with one write to the state and one event for all orders of a call.

import { defineBatchHandler, emit, type Event, log, Reject, state } from '@event-host/sdk';

interface Order {
  id: number;
  customer?: string;
}

// Gives a result for each event: undefined, or an error. If one is an error, nothing of the
// call counts, and the host calls again with each event by itself.
export const batchHandler = defineBatchHandler((events) => {
  const results = events.map(check);
  if (results.every((error) => error === undefined)) {
    const total = (state.get<number>('orders') ?? 0) + events.length;
    state.set('orders', total);
    log.info(`${events.length} orders, ${total} in all`);
    emit('orders.counted', { orders: events.length, total });
  }
  return results;
});

function check(event: Event): Error | undefined {
  try {
    const { customer } = event.json<Order>();
    return typeof customer === 'string' ? undefined : new Reject('the order names no customer');
  } catch (error) {
    return error as Error; // what json() throws where the data is no JSON
  }
}
