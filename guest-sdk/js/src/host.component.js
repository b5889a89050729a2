// The one door to the host, in a component: its imports. What comes back is the same
// in both engines; host.memory.js has the same functions for tests.
//
// A refusal comes as an error whose `payload` is the variant `{ tag, val }`. A u64 is
// a number in QuickJS and a bigint in StarlingMonkey.

import { group as contextGroup, isLate as contextIsLate, isReplay as contextIsReplay, remainingMs as contextRemainingMs, tenant as contextTenant } from 'event-host:handler/context@0.1.0';
import { log as logLog } from 'event-host:handler/log@0.1.0';
import { emit as outboxEmit } from 'event-host:handler/outbox@0.1.0';
import { delete as stateDelete_, get as stateGet_, keys as stateKeys_, set as stateSet_ } from 'event-host:handler/state@0.1.0';

export const emit = (message) => outboxEmit(message);

export const stateGet = (key) => stateGet_(key) ?? undefined;
export const stateSet = (key, value) => stateSet_(key, value);
export const stateDelete = (key) => stateDelete_(key);
export const stateKeys = (prefix, limit) => stateKeys_(prefix, limit);

export const log = (level, message) => logLog(level, message);

export const group = () => contextGroup();
export const tenant = () => contextTenant();
export const remainingMs = () => Number(contextRemainingMs());
export const isReplay = () => contextIsReplay();
export const isLate = () => contextIsLate();
