// What a handler may know of the call it is in.

import * as host from '#host';

export const context = Object.freeze({
  group: () => host.group(),
  tenant: () => host.tenant() || undefined,
  remainingMs: () => host.remainingMs(),
  isReplay: () => host.isReplay(),
  isLate: () => host.isLate(),
});
