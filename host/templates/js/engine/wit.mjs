// Writes the WIT that componentize-js builds with to build/wit. Its engine, inside of
// componentize-js 0.23.0, has WASI 0.2.10 and cannot be built with another version; jco
// has 0.2.12, whose interfaces are the same.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';

const [from, to] = ['0.2.12', '0.2.10'];
const jco = new URL(`./node_modules/@bytecodealliance/jco/lib/wit/builtin/${from}/`, import.meta.url);
const wit = new URL('./build/wit/', import.meta.url);

for (const name of readdirSync(jco)) {
  const text = readFileSync(new URL(`${name}/package.wit`, jco), 'utf8');
  mkdirSync(new URL(`deps/${name}/`, wit), { recursive: true });
  writeFileSync(new URL(`deps/${name}/package.wit`, wit), text.replaceAll(`@${from}`, `@${to}`));
}
writeFileSync(
  new URL('world.wit', wit),
  `package local:handler;\nworld http-handler { export wasi:http/incoming-handler@${to}; }\n`,
);
