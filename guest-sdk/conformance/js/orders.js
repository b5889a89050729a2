// What the conformance tests ask of a handler, of one event.

import { context, emit, log, Reject, Retry, state } from '@event-host/sdk';

const commands = {
  retry({ attempt }) {
    if (attempt < 3) {
      throw new Retry(`not yet: ${attempt}`, { afterMs: 50 });
    }
  },
  never() {
    throw new Retry('never', { afterMs: 50 });
  },
  reject(_, { name }) {
    throw new Reject(`no: ${name}`);
  },
  error() {
    throw new Error('an ordinary error');
  },
  boom() {
    console.error('about to fall');
    null.nothing();
  },
  print() {
    console.log('printed');
  },
  invalid() {
    emit('order.invalid', undefined, { subject: '' });
  },
  denied() {
    emit('secret.spilled');
  },
  empty() {
    emit('order.empty');
  },
  bytes() {
    state.setBytes('raw', new Uint8Array([0, 255]));
    same([...state.getBytes('raw')], [0, 255]);
    same(state.keys('ra', 10), ['raw']);
    state.delete('raw');
    same(state.getBytes('raw') === undefined, true);
  },
  list() {
    const wanted = [1, 'ü', null, { a: true }];
    same(state.get('list') ?? wanted, wanted);
    state.set('list', wanted);
    same(state.get('list'), wanted);
  },
  late({ attempt }) {
    if (attempt < 2) {
      state.set('count', -1);
      emit('order.never');
      throw new Retry('too early');
    }
  },
  async() {
    return Promise.resolve();
  },
};

function same(value, wanted) {
  if (JSON.stringify(value) !== JSON.stringify(wanted)) {
    throw new Reject(`${JSON.stringify(value)} is not ${JSON.stringify(wanted)}`);
  }
}

export function handleOrder(event) {
  const { id, name, cmd } = event.json();
  log.info(`order ${id} of ${context.group()}`);
  const returned = commands[cmd]?.(event, { name });

  const count = (state.get('count') ?? 0) + 1;
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
