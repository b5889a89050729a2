// The handler that guest-sdk/conformance/README.md describes.

import { context, defineHandler, emit, log, Reject, Retry, state } from '@event-host/sdk';

const commands = {
  retry(event, order) {
    if (event.attempt < order.until) {
      throw new Retry(`not before attempt ${order.until}`, { afterMs: 50 });
    }
  },
  reject(_, order) {
    throw new Reject(`no to ${order.name}`);
  },
  boom() {
    null.nothing();
  },
  print(_, order) {
    console.log(`printed ${order.name}`);
  },
  promise() {
    return Promise.resolve();
  },
  denied() {
    emit('forbidden.type', {});
  },
  state() {
    state.setBytes('bytes', new Uint8Array([0, 255, 10]));
    state.set('list', [1, 'ü', null, { a: true }]);
    state.set('gone', 1);
    state.delete('gone');
    const bytes = [...state.getBytes('bytes')];
    emit('state.seen', { bytes, list: state.get('list'), gone: state.get('gone') === undefined, keys: state.keys('', 10) });
  },
  context() {
    const left = context.remainingMs();
    emit('context.seen', {
      group: context.group(), tenant: context.tenant() ?? null, left: left > 0 && left <= 10_000,
      replay: context.isReplay(), late: context.isLate(),
    });
  },
};

export const handler = defineHandler((event) => {
  const order = event.json();
  const count = (state.get('count') ?? 0) + 1;
  state.set('count', count);
  log.info(`order ${order.id} of ${order.name}`);
  const returned = commands[order.cmd]?.(event, order);
  emit(
    'order.done',
    { id: order.id, name: order.name, attempt: event.attempt, bytes: event.data.length },
    { subject: String(order.id), extensions: { ...event.extensions } },
  );
  return returned;
});
