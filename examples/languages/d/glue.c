/* The SDK for C around the handler in D. */
#include "host.h"

/* D declares these by itself, in host.d. */
_Static_assert(sizeof(host_result) == 16 && offsetof(host_result, after_ms) == 8, "host_result");
_Static_assert(sizeof(host_event) == 64 && offsetof(host_event, position) == 48, "host_event");
_Static_assert(sizeof(host_json) == 32 && offsetof(host_json, name) == 28, "host_json");
_Static_assert(sizeof(host_message) == 48, "host_message");

extern host_result handle(const host_event *event);

HOST_HANDLER(event) { return handle(event); }
