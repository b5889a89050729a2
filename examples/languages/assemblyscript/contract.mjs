// A transform of the compiler: gives the exports their names in the contract, which are no names
// of AssemblyScript, and adds the contract's metadata.

import { readFileSync } from 'node:fs';

const METADATA = process.env.EVENT_HOST_METADATA ?? new URL('../../../guest-sdk/go/cmd/build/metadata/event.bin', import.meta.url);

const NAMES = {
  handle: 'event-host:handler/handler@0.1.0#handle',
  afterHandle: 'cabi_post_event-host:handler/handler@0.1.0#handle',
};

export default class Contract {
  afterCompile(module) {
    for (const [name, wanted] of Object.entries(NAMES)) {
      const found = module.getExport(name);
      if (!found) throw new Error(`assembly/index.ts exports no function ${name}`);
      const { value } = this.binaryen.getExportInfo(found);
      module.removeExport(name);
      module.addFunctionExport(value, wanted);
    }
    module.addCustomSection('component-type:event', readFileSync(METADATA));
  }
}
