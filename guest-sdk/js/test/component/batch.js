// The handler of batches that guest-sdk/conformance/README.md describes.

import { defineBatchHandler, emit, Reject, state } from '@event-host/sdk';

export const batchHandler = defineBatchHandler((events) => {
  state.set('count', (state.get('count') ?? 0) + events.length);
  emit('batch.done', { ids: events.map((event) => event.json().id) });
  return events.map((event) => (event.json().cmd === 'reject' ? new Reject(`no to ${event.json().name}`) : undefined));
});
