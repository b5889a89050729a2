// The contract in its canonical ABI, as docs/languages/others.md has it.
//
// Texts are UTF-8 there and UTF-16 here. What a call allocates is free again when it has ended.

@external('event-host:handler/outbox@0.1.0', 'emit')
declare function hostEmit(message: usize, answer: usize): void;
@external('event-host:handler/state@0.1.0', 'get')
declare function hostGet(key: usize, length: usize, answer: usize): void;
@external('event-host:handler/state@0.1.0', 'set')
declare function hostSet(key: usize, length: usize, value: usize, valueLength: usize, answer: usize): void;
@external('event-host:handler/log@0.1.0', 'log')
declare function hostLog(level: i32, message: usize, length: usize): void;

const INFO = 2;
const ERROR = 4;

// The newest block of this call; each has the one before it in its first 16 bytes.
let newest: usize = 0;

// Called by the host too, for what it hands over.
export function cabi_realloc(old: usize, oldSize: usize, align: usize, size: usize): usize {
  const block = heap.alloc(size + 16);
  store<usize>(block, newest);
  newest = block;
  memory.copy(block + 16, old, min(oldSize, size));
  return block + 16;
}

// Called by the host when it has read the answer.
export function afterHandle(_: usize): void {
  while (newest != 0) {
    const older = load<usize>(newest);
    heap.free(newest);
    newest = older;
  }
  __collect();
}

function zeros(size: usize): usize {
  const place = cabi_realloc(0, 0, 8, size);
  memory.fill(place, 0, size);
  return place;
}

// Writes a text and its length to a place.
function put(place: usize, text: string): void {
  const length = <usize>String.UTF8.byteLength(text);
  const bytes = cabi_realloc(0, 0, 1, length);
  String.UTF8.encodeUnsafe(changetype<usize>(text), text.length, bytes);
  store<usize>(place, bytes);
  store<usize>(place, length, 4);
}

function putOption(place: usize, text: string): void {
  store<u8>(place, 1);
  put(place + 4, text);
}

// Reads the text whose place and length stand at a place.
function read(place: usize): string {
  return String.UTF8.decodeUnsafe(load<usize>(place), load<usize>(place, 4));
}

export namespace event {
  export function data(place: usize): string {
    return read(place + 76);
  }
}

export class Value {
  // The value, or null for none.
  text: string | null = null;
  // Why it cannot be told.
  error: string | null = null;
}

export function getState(key: string): Value {
  const name = zeros(8);
  put(name, key);
  const answer = zeros(16);
  hostGet(load<usize>(name), load<usize>(name, 4), answer);
  const value = new Value();
  if (load<u8>(answer) != 0) value.error = read(answer + 8);
  else if (load<u8>(answer, 4) != 0) value.text = read(answer + 8);
  return value;
}

// Gives null, or why not.
export function setState(key: string, value: string): string | null {
  const texts = zeros(16);
  put(texts, key);
  put(texts + 8, value);
  const answer = zeros(16);
  hostSet(load<usize>(texts), load<usize>(texts, 4), load<usize>(texts, 8), load<usize>(texts, 12), answer);
  return load<u8>(answer) == 0 ? null : read(answer + 8);
}

// Emits JSON; gives null, or why not.
export function emit(type: string, data: string, subject: string): string | null {
  const message = zeros(108);
  put(message, type);
  put(message + 8, data);
  putOption(message + 40, subject);
  putOption(message + 64, 'application/json');
  const answer = zeros(16);
  hostEmit(message, answer);
  return load<u8>(answer) == 0 ? null : read(answer + 8);
}

function log(level: i32, message: string): void {
  const text = zeros(8);
  put(text, message);
  hostLog(level, load<usize>(text), load<usize>(text, 4));
}

export function info(message: string): void {
  log(INFO, message);
}

export function done(): usize {
  return zeros(40);
}

function failure(kind: u8, reason: string): usize {
  const answer = zeros(40);
  store<u8>(answer, 1);
  store<u8>(answer, kind, 8);
  put(answer + 16, reason);
  return answer;
}

export function retry(reason: string): usize {
  return failure(0, reason);
}

export function reject(reason: string): usize {
  return failure(1, reason);
}

// What the compiler calls where a program cannot go on. The dead letter has what was logged.
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  const what = message === null ? 'abort' : message;
  const where = file === null ? '' : ' at ' + file + ':' + line.toString() + ':' + column.toString();
  log(ERROR, what + where);
  unreachable();
}
