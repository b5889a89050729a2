#define HOST_BATCH
#include "orders.hpp"

static std::vector<host::Result> orders(std::span<const host::Event> events) {
    host::log::info("batch of " + std::to_string(events.size()));
    std::vector<host::Result> results;
    for (const host::Event &event : events) results.push_back(order(event));
    return results;
}

HOST_HANDLE_BATCH(orders)
