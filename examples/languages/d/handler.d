/// Counts the orders of each customer, and says hello at the first.
module handler;

import host;

extern (C) host_result handle(const(host_event)* event)
{
    const(host_json)* order;
    auto read = host_event_json(event, &order);
    if (read.outcome != host_outcome.ok)
        return read;
    const customer = text(order, "customer");
    if (customer is null)
        return host_reject("the order names no customer");

    const key = host_printf("orders/%s", customer);
    long orders = 0;
    auto got = host_state_get_int(key, &orders);
    if (got.outcome != host_outcome.ok)
        return got;
    orders++;
    auto set = host_state_set_int(key, orders);
    if (set.outcome != host_outcome.ok)
        return set;
    host_log(host_level.info, "order %lld of %s", orders, customer);
    if (orders > 1)
        return done;

    host_message hello;
    hello.type = "customer.greeted";
    hello.subject = customer;
    hello.datacontenttype = "application/json";
    hello.data = host_printf("{\"text\":%s}", host_quote(host_printf("Hello, %s!", customer)));
    return host_emit_message(&hello);
}
