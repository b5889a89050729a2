// What a value becomes as an event's payload, and the bytes that callers may give.

import { encode } from './utf8.js';

/** Whether `data` of this media type is JSON. It is by default. */
export function isJson(datacontenttype) {
  if (datacontenttype === undefined) {
    return true;
  }
  const essence = datacontenttype.split(';', 1)[0].trim().toLowerCase();
  return essence.endsWith('/json') || essence.endsWith('+json');
}

/** A view of the bytes, or undefined when the value is no bytes. */
export function asBytes(value) {
  if (value instanceof Uint8Array) {
    return value;
  }
  if (ArrayBuffer.isView(value)) {
    return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  }
  return value instanceof ArrayBuffer ? new Uint8Array(value) : undefined;
}

/**
 * The bytes and the media type of a payload. Nothing is an empty payload, bytes stay as
 * they are, and all else is JSON, unless the media type says that it is text. Throws a
 * TypeError when the value has no such form.
 */
export function payloadOf(data, datacontenttype) {
  if (data === undefined) {
    return { data: new Uint8Array(0), datacontenttype };
  }
  const bytes = asBytes(data);
  if (bytes !== undefined) {
    return { data: bytes, datacontenttype: datacontenttype ?? 'application/octet-stream' };
  }
  if (isJson(datacontenttype)) {
    return { data: encode(jsonOf(data)), datacontenttype: datacontenttype ?? 'application/json' };
  }
  if (typeof data === 'string') {
    return { data: encode(data), datacontenttype };
  }
  throw new TypeError(`of the media type ${datacontenttype} it must be a string or bytes`);
}

/** The value's JSON text. Throws a TypeError when it has none. */
export function jsonOf(value) {
  const json = JSON.stringify(value);
  if (json === undefined) {
    throw new TypeError(`a ${typeof value} has no JSON form`);
  }
  return json;
}
