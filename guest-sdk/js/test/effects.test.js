import assert from 'node:assert/strict';
import { test } from 'node:test';

import { defineHandler, EmitError, emit, StateError, state } from '@event-host/sdk';
import { call, callBatch, Host } from '@event-host/sdk/testing';
import { defineBatchHandler } from '@event-host/sdk';

const during = (work, options) => new Host().run(work, options);

function sent(type, data, options) {
  return during(() => emit(type, data, options)).emits[0];
}

const utf8 = (bytes) => Buffer.from(bytes).toString('utf8');

test('a message carries what it was given', () => {
  const event = sent('t', [1, 'ü'], {
    id: 'i', source: '/s', subject: 'about', time: new Date(0), dataschema: 'https://example.com/s', partitionkey: 'k',
    deliverAfter: '2026-03-04T05:06:07Z', extensions: { z: 1, a: true, m: 'text' },
  });
  assert.deepEqual({ ...event, data: utf8(event.data) }, {
    id: 'i', source: '/s', type: 't', subject: 'about', time: '1970-01-01T00:00:00.000Z',
    datacontenttype: 'application/json', dataschema: 'https://example.com/s', partitionkey: 'k',
    extensions: { a: true, deliverafter: '2026-03-04T05:06:07Z', m: 'text', z: 1 },
    data: '[1,"ü"]', position: 1n, attempt: 1,
  });
});

test('a payload is JSON, bytes, text by its media type, or nothing', () => {
  const form = (...given) => {
    const { data, datacontenttype } = sent('t', ...given);
    return [utf8(data), datacontenttype];
  };
  assert.deepEqual(form(), ['', undefined]);
  assert.deepEqual(form(null), ['null', 'application/json']);
  assert.deepEqual(form('text'), ['"text"', 'application/json']);
  assert.deepEqual(form('text', { datacontenttype: 'text/plain' }), ['text', 'text/plain']);
  assert.deepEqual(form({}, { datacontenttype: 'application/geo+json; v=1' }), ['{}', 'application/geo+json; v=1']);
  assert.deepEqual(form(Buffer.from('raw')), ['raw', 'application/octet-stream']);
  assert.deepEqual(form(new Uint16Array([0x4241]).buffer, { datacontenttype: 'x/y' }), ['AB', 'x/y']);
});

test('what is no event is refused, and the error says what', () => {
  const refused = (pattern, ...given) => {
    during(() => {
      assert.throws(() => emit(...given), (error) => {
        assert.ok(error instanceof EmitError);
        assert.equal(error.kind, 'invalid');
        assert.match(error.message, pattern);
        return true;
      });
    });
  };
  refused(/`type` is empty/, '');
  refused(/`type` is a number, and must be a string/, 7);
  refused(/`subject` is a number/, 't', {}, { subject: 7 });
  refused(/there is no option `subjcet`; there are id, source, subject/, 't', {}, { subjcet: 'x' });
  refused(/`time` is a Date that is no time/, 't', {}, { time: new Date('x') });
  refused(/the data of `t`: .*BigInt/, 't', 7n);
  refused(/the data of `t`: a function has no JSON form/, 't', () => {});
  refused(/the data of `t`: of the media type text\/plain it must be a string/, 't', {}, { datacontenttype: 'text/plain' });
  refused(/`My` is not the name of an extension/, 't', {}, { extensions: { My: 1 } });
  refused(/`subject` is no extension/, 't', {}, { extensions: { subject: 'x' } });
  refused(/the extension `n` is 1.5, and must be/, 't', {}, { extensions: { n: 1.5 } });
  refused(/the extension `n` is 2147483648/, 't', {}, { extensions: { n: 2 ** 31 } });
  refused(/the extension `o` is a object/, 't', {}, { extensions: { o: {} } });
});

test('a type that the settings do not allow is denied', () => {
  const handler = defineHandler((event) => emit(event.type));
  const allowEmit = ['order.*', 'seen'];
  assert.equal(call(handler, { type: 'order.done' }, { allowEmit }).outcome.tag, 'done');
  const { outcome } = call(handler, { type: 'seen.not' }, { allowEmit });
  assert.equal(outcome.tag, 'retry');
  assert.match(outcome.reason, /^EmitError: not allowed to emit: `seen.not`/);
});

test('an emitted event has the key of what was handled, of a batch the one of all', () => {
  const one = defineHandler(() => emit('t'));
  assert.equal(call(one, { partitionkey: 'k' }).emits[0].partitionkey, 'k');
  const many = defineBatchHandler(() => emit('t'));
  assert.equal(callBatch(many, [{ partitionkey: 'k' }, { partitionkey: 'k' }]).emits[0].partitionkey, 'k');
  assert.equal(callBatch(many, [{ partitionkey: 'k' }, {}]).emits[0].partitionkey, undefined);
});

test('values come back as they were set until they are deleted', () => {
  during(() => {
    state.set('a/1', [1, 2]);
    state.set('a/2', 'text');
    state.setBytes('b', new Uint8Array([255]));
    assert.deepEqual(state.get('a/1'), [1, 2]);
    assert.equal(state.get('a/2'), 'text');
    assert.deepEqual(state.getBytes('b'), new Uint8Array([255]));
    assert.equal(utf8(state.getBytes('a/1')), '[1,2]');
    assert.deepEqual(state.keys('a/', 10), ['a/1', 'a/2']);
    assert.deepEqual(state.keys('', 2), ['a/1', 'a/2']);
    state.delete('a/1');
    state.delete('a/1');
    assert.equal(state.get('a/1'), undefined);
    assert.equal(state.getBytes('a/1'), undefined);
  });
});

test('keys come in the order of their bytes', () => {
  const keys = ['\u{1f980}', '\uffee', 'b', 'a'];
  during(() => {
    keys.forEach((key) => state.set(key, 1));
    assert.deepEqual(state.keys('', 9), ['a', 'b', '\uffee', '\u{1f980}']);
  });
});

test('what the state refuses is an error of its kind', () => {
  const refused = (kind, pattern, work) => {
    during(() => {
      state.setBytes('bytes', new Uint8Array([255]));
      assert.throws(work, (error) => {
        assert.ok(error instanceof StateError, String(error));
        assert.equal(error.kind, kind);
        assert.match(error.message, pattern);
        return true;
      });
    });
  };
  refused('invalid-key', /not a key of the state: the key is empty/, () => state.get(''));
  refused('invalid-key', /1025 bytes/, () => state.set('k'.repeat(1025), 1));
  refused('decode', /the state's `bytes` is not JSON/, () => state.get('bytes'));
  refused('encode', /the new value of the state's `k` has no JSON form/, () => state.set('k', undefined));
  refused('encode', /has no JSON form/, () => state.set('k', 7n));
  during(() => {
    assert.throws(() => state.get(7), /a key of the state is a string/);
    assert.throws(() => state.setBytes('k', 'text'), /takes a Uint8Array/);
    assert.throws(() => state.keys('k'), /how many keys at most/);
  });
});

test('a host begins with a state and shows it decoded', () => {
  const host = new Host({ state: { n: 4, bytes: new Uint8Array([255]), text: 'x' } });
  host.run(() => state.set('n', state.get('n') + 1));
  assert.deepEqual(host.state, { n: 5, bytes: new Uint8Array([255]), text: 'x' });
  assert.throws(() => host.run(() => { state.set('n', 9); throw new Error('end'); }), /end/);
  assert.equal(host.state.n, 5);
});
