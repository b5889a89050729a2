// The event that a handler gets, and reading it.

import { InvalidEvent } from './failure.js';
import { decode } from './utf8.js';

/** A CloudEvents 1.0 event, with its place in the log. */
export class Event {
  /** `raw` is the contract's record, as either engine gives it. */
  constructor(raw) {
    this.id = raw.id;
    this.source = raw.source;
    this.type = raw.type;
    this.subject = raw.subject ?? undefined;
    this.time = raw.time;
    this.datacontenttype = raw.datacontenttype ?? undefined;
    this.dataschema = raw.dataschema ?? undefined;
    this.partitionkey = raw.partitionkey ?? undefined;
    this.extensions = Object.fromEntries(raw.extensions.map(([name, value]) => [name, value.val]));
    this.data = raw.data;
    this.position = BigInt(raw.position);
    this.attempt = raw.attempt;
  }

  /** The payload as text. */
  text() {
    try {
      return decode(this.data);
    } catch (error) {
      throw new InvalidEvent('the data is not UTF-8 text', { cause: error });
    }
  }

  /** The payload, decoded from JSON, whatever its media type says. */
  json() {
    if (this.data.length === 0) {
      throw new InvalidEvent('the event has no data');
    }
    const text = this.text();
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new InvalidEvent('the data is not JSON', { cause: error });
    }
  }
}
