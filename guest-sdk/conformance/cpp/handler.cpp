#include "orders.hpp"

HOST_HANDLE(order)
