// Counts orders, with one write to the state and one event for all orders of a call.
#define HOST_BATCH
#include "host.hpp"

static host::Result check(const host::Event &event) {
    auto order = event.json();
    if (!order) return std::unexpected(order.error());
    if (!(*order)["customer"].text()) return host::reject("the order names no customer");
    return {};
}

static host::Result count(std::size_t orders) {
    auto before = host::state::get_int("orders");
    if (!before) return std::unexpected(before.error());
    std::int64_t total = before->value_or(0) + static_cast<std::int64_t>(orders);
    HOST_CHECK(host::state::set_int("orders", total));
    host::log::info(std::to_string(orders) + " orders, " + std::to_string(total) + " in all");
    return host::emit("orders.counted", "{\"orders\":" + std::to_string(orders) + ",\"total\":" + std::to_string(total) + "}");
}

// Gives a result for each event. If one is a failure, nothing of the call counts, and the
// host calls again with each event by itself.
static std::vector<host::Result> handle(std::span<const host::Event> events) {
    std::vector<host::Result> results;
    bool all_good = true;
    for (const host::Event &event : events) {
        results.push_back(check(event));
        all_good = all_good && results.back();
    }
    if (all_good) results.assign(events.size(), count(events.size()));
    return results;
}

HOST_HANDLE_BATCH(handle)
