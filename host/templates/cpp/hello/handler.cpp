// Counts the orders of each customer, and says hello at the first.
#include "host.hpp"

static host::Result handle(const host::Event &event) {
    auto order = event.json();
    if (!order) return std::unexpected(order.error());
    auto customer = (*order)["customer"].text();
    if (!customer) return host::reject("the order names no customer");

    std::string key = "orders/" + std::string(*customer);
    auto before = host::state::get_int(key);
    if (!before) return std::unexpected(before.error());
    std::int64_t orders = before->value_or(0) + 1;
    HOST_CHECK(host::state::set_int(key, orders));
    host::log::info("order " + std::to_string(orders) + " of " + std::string(*customer));
    if (orders > 1) return {};

    std::string text = host::quote("Hello, " + std::string(*customer) + "!");
    return host::emit("customer.greeted", "{\"text\":" + text + "}", {.subject = *customer});
}

HOST_HANDLE(handle)
