#include "orders.h"

HOST_HANDLER(event) { return order(event); }
