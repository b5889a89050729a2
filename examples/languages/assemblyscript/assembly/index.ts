// What the module exports; contract.mjs gives the functions their names in the contract.

export { afterHandle, cabi_realloc } from './contract';
export { handle } from './handler';
