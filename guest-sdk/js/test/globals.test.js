import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Host } from '@event-host/sdk/testing';

// As in an engine that has none of them.
const own = {};
const names = ['console', 'TextEncoder', 'TextDecoder'];

before(async () => {
  for (const name of names) {
    own[name] = globalThis[name];
    delete globalThis[name];
  }
  await import('../src/globals.js');
  for (const name of names) {
    own[`new ${name}`] = globalThis[name];
    globalThis[name] = own[name];
  }
});

after(() => {
  for (const name of names) {
    assert.equal(globalThis[name], own[name]);
  }
});

test('console writes to the log of the host', () => {
  const mine = own['new console'];
  assert.notEqual(mine, console);
  const { logs } = new Host().run(() => {
    mine.log('a', { b: 1 });
    mine.warn('w');
  });
  assert.deepEqual(logs, [{ level: 'info', message: 'a {"b":1}' }, { level: 'warn', message: 'w' }]);
});

test('text is encoded and decoded as by those of the engine', () => {
  const [Encoder, Decoder] = [own['new TextEncoder'], own['new TextDecoder']];
  assert.notEqual(Encoder, TextEncoder);
  assert.deepEqual(Uint8Array.from(new Encoder().encode('Zoë 🦀')), new TextEncoder().encode('Zoë 🦀'));
  const bytes = Uint8Array.from([0xef, 0xbb, 0xbf, 0x61, 0xc3, 0xab, 0xff, 0x62]);
  assert.equal(new Decoder().decode(bytes), 'aë\ufffdb');
  assert.equal(new Decoder('UTF-8', { ignoreBOM: true }).decode(bytes.subarray(0, 6)), '\ufeffaë');
  assert.equal(new Decoder().decode(bytes.buffer.slice(3, 6)), 'aë');
  assert.equal(new Decoder().decode(), '');
  assert.throws(() => new Decoder('utf-8', { fatal: true }).decode(bytes), TypeError);
  assert.throws(() => new Decoder('latin1'), /knows only utf-8/);
  assert.throws(() => new Decoder().decode(bytes, { stream: true }), /whole texts only/);
});
