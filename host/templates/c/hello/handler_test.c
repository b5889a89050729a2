/* Tests of the handler, with a host in memory. */
#include "host.h"

#include <assert.h>

static host_event placed(const char *data) {
    host_event event = {.type = "order.placed", .data = data};
    return event;
}

static void the_first_order_is_greeted(void) {
    host_test_result result = host_test_call(placed("{\"id\":7,\"customer\":\"Ada\"}"));
    assert(result.outcome == HOST_OK && result.emit_count == 1);
    assert(strcmp(result.emits[0].type, "customer.greeted") == 0);
    assert(strcmp(result.emits[0].subject, "Ada") == 0);
    assert(strcmp(result.emits[0].data, "{\"text\":\"Hello, Ada!\"}") == 0);
    assert(strcmp(host_test_state("orders/Ada"), "1") == 0);
}

static void later_orders_are_only_counted(void) {
    host_test_set_state("orders/Ada", "4");
    host_test_result result = host_test_call(placed("{\"id\":7,\"customer\":\"Ada\"}"));
    assert(result.outcome == HOST_OK && result.emit_count == 0);
    assert(strcmp(host_test_state("orders/Ada"), "5") == 0);
}

static void an_order_of_nobody_is_rejected(void) {
    host_test_result result = host_test_call(placed("{\"id\":8}"));
    assert(result.outcome == HOST_REJECT);
    assert(strcmp(result.reason, "the order names no customer") == 0);
}

int main(void) {
    void (*const tests[])(void) = {the_first_order_is_greeted, later_orders_are_only_counted, an_order_of_nobody_is_rejected};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        host_test_reset();
        tests[i]();
    }
    puts("3 tests passed");
    return 0;
}
