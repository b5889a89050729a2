// Counts the orders of each customer, and says hello at the first.

import { done, emit, event, getState, info, reject, retry, setState } from './contract';

export function handle(place: usize): usize {
  const data = event.data(place);
  // There is no JSON in the library of the language: the name is what stands between the two
  // quotes behind `"customer"`, so one with an escape in it is cut short.
  const key = data.indexOf('"customer"');
  const from = key < 0 ? -1 : data.indexOf('"', key + 10);
  const to = from < 0 ? -1 : data.indexOf('"', from + 1);
  if (to < 0) return reject('the order names no customer');
  const customer = data.substring(from + 1, to);

  const name = 'orders/' + customer;
  const value = getState(name);
  if (value.error !== null) return retry(value.error!);
  const orders = (value.text === null ? 0 : I64.parseInt(value.text!)) + 1;
  const failed = setState(name, orders.toString());
  if (failed !== null) return retry(failed);
  info('order ' + orders.toString() + ' of ' + customer);

  if (orders == 1) {
    const refused = emit('customer.greeted', '{"text":"Hello, ' + customer + '!"}', customer);
    if (refused !== null) return retry(refused);
  }
  return done();
}
