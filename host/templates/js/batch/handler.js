// Counts orders, with one write to the state and one event for all orders of a call.

import { defineBatchHandler, emit, log, Reject, state } from '@event-host/sdk';

// Gives a result for each event: undefined, or an error. If one is an error, nothing of the
// call counts, and the host calls again with each event by itself.
export const batchHandler = defineBatchHandler((events) => {
  const results = events.map(check);
  if (results.every((error) => error === undefined)) {
    const total = (state.get('orders') ?? 0) + events.length;
    state.set('orders', total);
    log.info(`${events.length} orders, ${total} in all`);
    emit('orders.counted', { orders: events.length, total });
  }
  return results;
});

function check(event) {
  try {
    return typeof event.json()?.customer === 'string' ? undefined : new Reject('the order names no customer');
  } catch (error) {
    return error; // what json() throws where the data is no JSON
  }
}
