#define HOST_BATCH
#include "orders.h"

HOST_BATCH_HANDLER(events, count, results) {
    for (size_t i = 0; i < count; i++) results[i] = order(&events[i]);
}
