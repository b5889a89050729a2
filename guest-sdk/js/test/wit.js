// Copies the contract into the package.

import { copyFileSync } from 'node:fs';

copyFileSync(new URL('../../../wit/handler.wit', import.meta.url), new URL('../wit/handler.wit', import.meta.url));
