import { defineHandler } from '@event-host/sdk';
import { handleOrder } from './orders.js';

export const handler = defineHandler(handleOrder);
