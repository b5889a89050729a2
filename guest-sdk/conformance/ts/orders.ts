// What the conformance tests ask of a handler, of one event.

import { context, emit, type Event, log, Reject, Retry, state } from '@event-host/sdk';

type Command =
  | 'retry' | 'never' | 'reject' | 'error' | 'boom' | 'print' | 'invalid' | 'denied' | 'empty' | 'bytes' | 'list' | 'late' | 'async';

export interface Order {
  readonly id: number;
  readonly name: string;
  readonly cmd?: Command;
}

const LIST: readonly unknown[] = [1, 'ü', null, { a: true }];

function same(value: unknown, wanted: unknown): void {
  const [found, needed] = [JSON.stringify(value), JSON.stringify(wanted)];
  if (found !== needed) {
    throw new Reject(`${found} is not ${needed}`);
  }
}

/** Does what the command says; gives what the handler is to return. */
function obey({ attempt }: Event<Order>, { name, cmd }: Order): unknown {
  switch (cmd) {
    case undefined:
      return undefined;
    case 'retry':
      if (attempt < 3) {
        throw new Retry(`not yet: ${attempt}`, { afterMs: 50 });
      }
      return undefined;
    case 'never':
      throw new Retry('never', { afterMs: 50 });
    case 'reject':
      throw new Reject(`no: ${name}`);
    case 'error':
      throw new Error('an ordinary error');
    case 'boom': {
      console.error('about to fall');
      const nothing = null as unknown as { fall(): void };
      nothing.fall();
      return undefined;
    }
    case 'print':
      console.log('printed');
      return undefined;
    case 'invalid':
      emit('order.invalid', undefined, { subject: '' });
      return undefined;
    case 'denied':
      emit('secret.spilled');
      return undefined;
    case 'empty':
      emit('order.empty');
      return undefined;
    case 'bytes':
      state.setBytes('raw', new Uint8Array([0, 255]));
      same([...(state.getBytes('raw') ?? [])], [0, 255]);
      same(state.keys('ra', 10), ['raw']);
      state.delete('raw');
      same(state.getBytes('raw') === undefined, true);
      return undefined;
    case 'list':
      same(state.get('list') ?? LIST, LIST);
      state.set('list', LIST);
      same(state.get('list'), LIST);
      return undefined;
    case 'late':
      if (attempt < 2) {
        state.set('count', -1);
        emit('order.never');
        throw new Retry('too early');
      }
      return undefined;
    case 'async':
      return Promise.resolve();
    default:
      return cmd satisfies never;
  }
}

export function handleOrder(event: Event<Order>): unknown {
  const order = event.json();
  const { id, name } = order;
  log.info(`order ${id} of ${context.group()}`);
  const returned = obey(event, order);

  const count = (state.get<number>('count') ?? 0) + 1;
  state.set('count', count);
  const left = context.remainingMs();
  const answer = {
    id,
    name,
    count,
    attempt: event.attempt,
    bytes: event.data.length,
    group: context.group(),
    tenant: context.tenant() ?? null,
    left: left > 0 && left <= 10_000,
    replay: context.isReplay(),
    late: context.isLate(),
  };
  emit('order.done', answer, { subject: String(id), extensions: { ...event.extensions } });
  return returned;
}
