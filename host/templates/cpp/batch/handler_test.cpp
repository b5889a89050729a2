// Tests of the handler, with a host in memory.
#define HOST_BATCH
#include "host.hpp"

#include <cassert>

using namespace std::literals;

static host_event placed(const char *data) {
    host_event event = {};
    event.type = "order.placed";
    event.data = data;
    return event;
}

int main() {
    host_result results[2];
    host_test_set_state("orders", "4");
    host_event orders[] = {placed(R"({"id":7,"customer":"Ada"})"), placed(R"({"id":8,"customer":"Bob"})")};
    host_test_result all = host_test_call_batch(orders, 2, results);
    assert(all.outcome == HOST_OK && all.emit_count == 1);
    assert(all.emits[0].type == "orders.counted"sv && all.emits[0].data == R"({"orders":2,"total":6})"sv);
    assert(host_test_state("orders") == "6"sv);

    // The two events come together, and then each by itself.
    orders[1] = placed(R"({"id":8})");
    all = host_test_call_batch(orders, 2, results);
    assert(results[0].outcome == HOST_OK && all.emit_count == 1);
    assert(results[1].outcome == HOST_REJECT && results[1].reason == "the order names no customer"sv);
    assert(host_test_state("orders") == "7"sv);
    std::puts("all as wanted");
}
