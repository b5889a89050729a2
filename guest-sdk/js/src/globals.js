// The globals of browsers and Node that handlers and packages use most, where the
// engine lacks them: QuickJS has no `console`, no `TextEncoder` and no `TextDecoder`.
// `console` writes to the host's log.

import { log } from './log.js';
import { decodeByHand, encodeByHand } from './utf8.js';

class Utf8Encoder {
  encoding = 'utf-8';

  encode(text = '') {
    return encodeByHand(text);
  }
}

class Utf8Decoder {
  encoding = 'utf-8';

  constructor(label = 'utf-8', options = {}) {
    if (!['utf-8', 'utf8', 'unicode-1-1-utf-8'].includes(String(label).trim().toLowerCase())) {
      throw new RangeError(`this TextDecoder knows only utf-8, not ${label}`);
    }
    this.fatal = options.fatal === true;
    this.ignoreBOM = options.ignoreBOM === true;
  }

  decode(input = new Uint8Array(0), options = {}) {
    if (options.stream === true) {
      throw new TypeError('this TextDecoder decodes whole texts only, no streams');
    }
    const bytes = ArrayBuffer.isView(input)
      ? new Uint8Array(input.buffer, input.byteOffset, input.byteLength)
      : new Uint8Array(input);
    const text = this.#text(bytes);
    return !this.ignoreBOM && text.startsWith('\ufeff') ? text.slice(1) : text;
  }

  #text(bytes) {
    try {
      return decodeByHand(bytes);
    } catch (error) {
      if (this.fatal) {
        throw new TypeError('the bytes are not UTF-8', { cause: error });
      }
      return lossy(bytes);
    }
  }
}

// Each byte that begins no character becomes one U+FFFD.
function lossy(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; ) {
    const lead = bytes[at];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += decodeByHand(bytes.subarray(at, at + length));
      at += length;
    } catch {
      text += '\ufffd';
      at += 1;
    }
  }
  return text;
}

globalThis.TextEncoder ??= Utf8Encoder;
globalThis.TextDecoder ??= Utf8Decoder;
globalThis.console ??= {
  log: log.info,
  info: log.info,
  debug: log.debug,
  trace: log.trace,
  warn: log.warn,
  error: log.error,
};
