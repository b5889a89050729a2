import { defineHandler } from '@event-host/sdk';
import { handleOrder, type Order } from './orders.ts';

export const handler = defineHandler<Order>(handleOrder);
