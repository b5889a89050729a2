// UTF-8 with what the language itself has: QuickJS has neither TextEncoder nor
// TextDecoder. Where an engine has them they are faster, and are taken.

// String.fromCharCode takes its bytes as arguments, and an engine's stack holds some
// ten thousands of them.
const CHUNK = 8192;

const nativeEncoder = typeof TextEncoder === 'function' ? new TextEncoder() : undefined;
const nativeDecoder =
  typeof TextDecoder === 'function' ? new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }) : undefined;

/** The text with U+FFFD for each half of a pair that stands alone: UTF-8 has no such halves. */
export function wellFormed(text) {
  return String(text).toWellFormed();
}

/** The text's bytes. */
export function encode(text) {
  return nativeEncoder ? nativeEncoder.encode(text) : encodeByHand(text);
}

/** The bytes' text. Throws a RangeError when they are not UTF-8. */
export function decode(bytes) {
  if (!nativeDecoder) {
    return decodeByHand(bytes);
  }
  try {
    return nativeDecoder.decode(bytes);
  } catch {
    throw new RangeError('not UTF-8');
  }
}

/** `encode` without a TextEncoder. */
export function encodeByHand(text) {
  // Percent-encoding is UTF-8, and `unescape` turns each percent triplet into one character.
  const binary = unescape(encodeURIComponent(wellFormed(text)));
  // 1 MiB by base64 takes a tenth of the time of a loop, since both steps are native.
  if (typeof btoa === 'function' && typeof Uint8Array.fromBase64 === 'function') {
    return Uint8Array.fromBase64(btoa(binary));
  }
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes;
}

/** `decode` without a TextDecoder. */
export function decodeByHand(bytes) {
  let binary = '';
  for (let start = 0; start < bytes.length; start += CHUNK) {
    binary += String.fromCharCode.apply(null, bytes.subarray(start, start + CHUNK));
  }
  try {
    return decodeURIComponent(escape(binary));
  } catch {
    throw new RangeError('not UTF-8');
  }
}
