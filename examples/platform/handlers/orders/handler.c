/* Adds up what each customer has ordered: the handler of the tenant `noisy`. */
#include "host.h"

HOST_HANDLER(event) {
    const host_json *order;
    int64_t cents, total = 0;
    HOST_TRY(host_event_json(event, &order));
    HOST_TRY(host_json_need_int(order, "cents", &cents));
    HOST_TRY(host_state_get_int("total", &total));
    total += cents;
    HOST_TRY(host_state_set_int("total", total));
    return host_emit("counted", "{\"total\":%" PRId64 "}", total);
}
