#define HOST_BATCH
#include "orders.h"

HOST_BATCH_HANDLER(events, count, results) {
    host_info("batch of %zu", count);
    for (size_t i = 0; i < count; i++) results[i] = order(&events[i]);
}
