import { defineBatchHandler, log } from '@event-host/sdk';
import { handleOrder } from './orders.js';

export const batchHandler = defineBatchHandler((events) => {
  log.info(`batch of ${events.length}`);
  return events.map((event) => {
    try {
      return handleOrder(event);
    } catch (error) {
      return error;
    }
  });
});
