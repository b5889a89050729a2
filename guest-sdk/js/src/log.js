// Writing lines to the host's log.

import * as host from '#host';
import { show, withStack } from './failure.js';
import { wellFormed } from './utf8.js';

const write = (level) => (...values) => host.log(level, wellFormed(values.map(form).join(' ')));

function form(value) {
  return value instanceof Error ? withStack(value) : show(value);
}

export const log = Object.freeze({
  trace: write('trace'),
  debug: write('debug'),
  info: write('info'),
  warn: write('warn'),
  error: write('error'),
});
