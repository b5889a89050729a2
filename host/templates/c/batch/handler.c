/* Counts orders, with one write to the state and one event for all orders of a call. */
#define HOST_BATCH
#include "host.h"

static host_result check(const host_event *event) {
    const host_json *order;
    HOST_TRY(host_event_json(event, &order));
    if (host_json_text(order, "customer", NULL) == NULL) return host_reject("the order names no customer");
    return host_ok();
}

static host_result count_orders(size_t orders) {
    int64_t total = 0;
    HOST_TRY(host_state_get_int("orders", &total));
    total += (int64_t) orders;
    HOST_TRY(host_state_set_int("orders", total));
    host_info("%zu orders, %" PRId64 " in all", orders, total);
    return host_emit("orders.counted", "{\"orders\":%zu,\"total\":%" PRId64 "}", orders, total);
}

/* Gives a result for each event. If one is a failure, nothing of the call counts, and the
 * host calls again with each event by itself. */
HOST_BATCH_HANDLER(events, count, results) {
    bool all_good = true;
    for (size_t i = 0; i < count; i++) {
        results[i] = check(&events[i]);
        if (results[i].outcome != HOST_OK) all_good = false;
    }
    if (!all_good) return;
    host_result counted = count_orders(count);
    for (size_t i = 0; i < count; i++) results[i] = counted;
}
