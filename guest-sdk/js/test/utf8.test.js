import assert from 'node:assert/strict';
import { test } from 'node:test';

import { decode, decodeByHand, encode, encodeByHand } from '../src/utf8.js';

const TEXTS = ['', 'plain', 'Zoë 你好 🦀', '\ufeffmark', '\u0000\u007f\u0080\u07ff\u0800\uffff\u{10000}\u{10ffff}', 'ü'.repeat(20_000)];

test('text by hand is the same as by the engine, in both directions', () => {
  for (const text of TEXTS) {
    const bytes = Uint8Array.from(Buffer.from(text, 'utf8'));
    for (const one of [encode, encodeByHand]) {
      assert.deepEqual(Uint8Array.from(one(text)), bytes);
    }
    for (const one of [decode, decodeByHand]) {
      assert.equal(one(bytes), text);
    }
  }
});

test('a lone half of a pair becomes U+FFFD', () => {
  assert.deepEqual([...encodeByHand('a\ud800b')], [0x61, 0xef, 0xbf, 0xbd, 0x62]);
});

test('bytes that are not UTF-8 are refused', () => {
  for (const bytes of [[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xe2, 0x82], [0xf4, 0x90, 0x80, 0x80]]) {
    for (const one of [decode, decodeByHand]) {
      assert.throws(() => one(Uint8Array.from(bytes)), RangeError);
    }
  }
});
