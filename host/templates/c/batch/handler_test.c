/* Tests of the handler, with a host in memory. */
#define HOST_BATCH
#include "host.h"

#include <assert.h>

static host_event placed(const char *data) {
    host_event event = {.type = "order.placed", .data = data};
    return event;
}

static void orders_are_counted_together(void) {
    host_test_set_state("orders", "4");
    host_event events[] = {placed("{\"id\":7,\"customer\":\"Ada\"}"), placed("{\"id\":8,\"customer\":\"Bob\"}")};
    host_result results[2];
    host_test_result all = host_test_call_batch(events, 2, results);
    assert(all.outcome == HOST_OK && all.emit_count == 1);
    assert(strcmp(all.emits[0].type, "orders.counted") == 0);
    assert(strcmp(all.emits[0].data, "{\"orders\":2,\"total\":6}") == 0);
    assert(strcmp(host_test_state("orders"), "6") == 0);
}

/* The two events come together, and then each by itself. */
static void an_order_of_nobody_is_rejected(void) {
    host_event events[] = {placed("{\"id\":7,\"customer\":\"Ada\"}"), placed("{\"id\":8}")};
    host_result results[2];
    host_test_result all = host_test_call_batch(events, 2, results);
    assert(results[0].outcome == HOST_OK && all.emit_count == 1);
    assert(results[1].outcome == HOST_REJECT);
    assert(strcmp(results[1].reason, "the order names no customer") == 0);
    assert(strcmp(host_test_state("orders"), "1") == 0);
}

int main(void) {
    void (*const tests[])(void) = {orders_are_counted_together, an_order_of_nobody_is_rejected};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        host_test_reset();
        tests[i]();
    }
    puts("2 tests passed");
    return 0;
}
