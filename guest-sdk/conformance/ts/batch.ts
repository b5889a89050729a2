import { type BatchResult, defineBatchHandler, type Event, log } from '@event-host/sdk';
import { handleOrder, type Order } from './orders.ts';

export const batchHandler = defineBatchHandler<Order>((events) => {
  log.info(`batch of ${events.length}`);
  return events.map(resultOf);
});

function resultOf(event: Event<Order>): BatchResult {
  try {
    // A promise is no result, and is refused as one.
    return handleOrder(event) as undefined;
  } catch (error) {
    return error as Error;
  }
}
