// The package brings the contract with it. In the repository it is a copy, which must
// not fall behind; a registry takes no symbolic links.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const source = new URL('../../../wit/handler.wit', import.meta.url);

test('the copy of the contract is current; `npm run wit` renews it', { skip: !existsSync(source) }, () => {
  assert.equal(readFileSync(new URL('../wit/handler.wit', import.meta.url), 'utf8'), readFileSync(source, 'utf8'));
});
