/* Counts the orders of each customer, and says hello at the first. */
#include "host.h"

HOST_HANDLER(event) {
    const host_json *order;
    int64_t orders = 0;
    HOST_TRY(host_event_json(event, &order));
    const char *customer = host_json_text(order, "customer", NULL);
    if (customer == NULL) return host_reject("the order names no customer");

    const char *key = host_printf("orders/%s", customer);
    HOST_TRY(host_state_get_int(key, &orders));
    orders++;
    HOST_TRY(host_state_set_int(key, orders));
    host_info("order %" PRId64 " of %s", orders, customer);
    if (orders > 1) return host_ok();

    host_message hello = {0};
    hello.type = "customer.greeted";
    hello.subject = customer;
    hello.datacontenttype = "application/json";
    hello.data = host_printf("{\"text\":%s}", host_quote(host_printf("Hello, %s!", customer)));
    return host_emit_message(&hello);
}
