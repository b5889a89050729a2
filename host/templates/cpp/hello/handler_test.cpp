// Tests of the handler, with a host in memory.
#include "host.hpp"

#include <cassert>

using namespace std::literals;

static host_test_result placed(const char *data) {
    host_event event = {};
    event.type = "order.placed";
    event.data = data;
    return host_test_call(event);
}

int main() {
    host_test_result result = placed(R"({"id":7,"customer":"Ada"})");
    assert(result.outcome == HOST_OK && result.emit_count == 1);
    assert(result.emits[0].type == "customer.greeted"sv && result.emits[0].subject == "Ada"sv);
    assert(result.emits[0].data == R"({"text":"Hello, Ada!"})"sv);

    host_test_set_state("orders/Ada", "4");
    result = placed(R"({"id":7,"customer":"Ada"})");
    assert(result.outcome == HOST_OK && result.emit_count == 0);
    assert(host_test_state("orders/Ada") == "5"sv);

    result = placed(R"({"id":8})");
    assert(result.outcome == HOST_REJECT && result.reason == "the order names no customer"sv);
    std::puts("all as wanted");
}
