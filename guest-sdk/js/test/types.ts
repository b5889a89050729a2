// Checked by the compiler and never run: what the types allow, and what they refuse.

import {
  context,
  defineBatchHandler,
  defineHandler,
  EmitError,
  emit,
  InvalidEvent,
  log,
  Reject,
  Retry,
  state,
  StateError,
} from '@event-host/sdk';
import { call, callBatch, Host } from '@event-host/sdk/testing';

interface Order {
  id: number;
}

export const handler = defineHandler<Order>((event) => {
  const id: number = event.json().id;
  const other: string = event.json<{ name: string }>().name;
  const position: bigint = event.position;
  const subject: string | undefined = event.subject;
  const count: number = (state.get<number>('count') ?? 0) + 1;
  state.set('count', count);
  state.setBytes('bytes', new Uint8Array([1]));
  const bytes: Uint8Array | undefined = state.getBytes('bytes');
  const keys: string[] = state.keys('', 10);
  emit('t');
  emit('t', { id, other, keys }, { subject, time: new Date(), extensions: { n: 1, b: true, s: 'x' } });
  log.info('seen', id, position, bytes);
  const left: number = context.remainingMs();
  const tenant: string | undefined = context.tenant();
  if (left < 10 || tenant === undefined) {
    throw new Retry('later', { afterMs: 50, cause: new InvalidEvent('x') });
  }
  try {
    emit('t');
  } catch (error) {
    if (error instanceof EmitError && error.kind === 'denied') throw new Reject(error.message);
    if (error instanceof StateError && error.kind === 'decode') throw new Reject(error.message, { cause: error });
  }
  // @ts-expect-error An option that there is not.
  emit('t', {}, { subjcet: 'x' });
  // @ts-expect-error An event is not written to.
  event.id = 'x';
  // @ts-expect-error Milliseconds are a number.
  new Retry('later', { afterMs: '50' });
});

export const batchHandler = defineBatchHandler<Order>((events) => events.map((event) => (event.json().id > 0 ? undefined : new Reject('x'))));
export const wholeBatch = defineBatchHandler((events) => log.info(events.length));

// @ts-expect-error A promise is no result of a batch.
export const asyncBatch = defineBatchHandler((events) => events.map(async () => undefined));

const { outcome, emits } = call(handler, { type: 't', data: { id: 7 }, severity: 3 }, { state: { count: 4 }, attempt: 2 });
if (outcome.tag === 'retry') {
  const afterMs: number | undefined = outcome.afterMs;
  log.debug(outcome.reason, afterMs, emits[0]?.json<Order>().id);
}
const { outcomes } = callBatch(batchHandler, [{ data: { id: 7 } }]);
log.debug(outcomes.length, new Host().run(() => 7).value.toFixed());
