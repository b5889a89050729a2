/* The tests of handlers of batches. */
#define HOST_BATCH
#include "host.h"

static int failures = 0;

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                                             \
        }                                                                           \
    } while (0)

static int calls = 0;

static host_result one(const host_event *event) {
    int64_t count = 0;
    HOST_TRY(host_state_get_int("count", &count));
    HOST_TRY(host_state_set_int("count", count + 1));
    HOST_TRY(host_emit("seen", NULL));
    return strcmp(event->data, "bad") == 0 ? host_reject("bad") : host_ok();
}

HOST_BATCH_HANDLER(events, count, results) {
    calls++;
    for (size_t i = 0; i < count; i++)
        if (strcmp(events[i].data, "skip") != 0) results[i] = one(&events[i]);
}

int main(void) {
    host_event events[] = {{.data = "a"}, {.data = "b"}, {.data = "bad"}, {.data = "skip"}};
    host_result results[4];
    host_test_result result = host_test_call_batch(events, 2, results);
    CHECK(result.outcome == HOST_OK && result.emit_count == 2 && calls == 1);
    CHECK(strcmp(host_test_state("count"), "2") == 0);

    result = host_test_call_batch(events, 4, results);
    CHECK(calls == 6 && result.emit_count == 2 && strcmp(host_test_state("count"), "4") == 0);
    CHECK(results[0].outcome == HOST_OK && results[1].outcome == HOST_OK);
    CHECK(results[2].outcome == HOST_REJECT && strcmp(results[2].reason, "bad") == 0);
    CHECK(results[3].outcome == HOST_RETRY && strcmp(results[3].reason, "the handler gave this event no result") == 0);
    host_test_reset();
    printf("1 test, %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
