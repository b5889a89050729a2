/* What the conformance tests ask of a handler, of one event. */
#include "host.h"

static host_result order(const host_event *event) {
    const host_json *data;
    const char *name;
    int64_t id, count = 0;
    HOST_TRY(host_event_json(event, &data));
    HOST_TRY(host_json_need_int(data, "id", &id));
    HOST_TRY(host_json_need_text(data, "name", &name));
    const char *cmd = host_json_text(data, "cmd", "");

    if (strcmp(cmd, "retry") == 0 && event->attempt < 3) return host_retry(50, "not yet: %" PRIu32, event->attempt);
    if (strcmp(cmd, "reject") == 0) return host_reject("no: %s", name);
    if (strcmp(cmd, "error") == 0) return host_retry(HOST_BACKOFF, "an ordinary error");
    if (strcmp(cmd, "boom") == 0) {
        fputs("about to fall\n", stderr);
        abort();
    }
    if (strcmp(cmd, "print") == 0) puts("printed");
    if (strcmp(cmd, "invalid") == 0) {
        host_message invalid = {0};
        invalid.type = "order.invalid";
        invalid.subject = "";
        HOST_TRY(host_emit_message(&invalid));
    }
    if (strcmp(cmd, "denied") == 0) HOST_TRY(host_emit("secret.spilled", NULL));
    if (strcmp(cmd, "empty") == 0) HOST_TRY(host_emit("order.empty", NULL));
    if (strcmp(cmd, "bytes") == 0) {
        const char *raw;
        size_t length;
        const char *const *keys;
        HOST_TRY(host_state_set_bytes("raw", "\0\xff", 2));
        HOST_TRY(host_state_get_bytes("raw", &raw, &length));
        if (length != 2 || memcmp(raw, "\0\xff", 2) != 0) return host_reject("other bytes");
        HOST_TRY(host_state_keys("ra", 10, &keys, &length));
        if (length != 1 || strcmp(keys[0], "raw") != 0) return host_reject("other keys");
        HOST_TRY(host_state_delete("raw"));
        HOST_TRY(host_state_get_bytes("raw", &raw, &length));
        if (raw != NULL) return host_reject("not deleted");
    }
    if (strcmp(cmd, "late") == 0 && event->attempt < 2) {
        HOST_TRY(host_state_set_int("count", -1));
        HOST_TRY(host_emit("order.never", NULL));
        return host_retry(HOST_BACKOFF, "too early");
    }

    HOST_TRY(host_state_get_int("count", &count));
    HOST_TRY(host_state_set_int("count", count + 1));
    host_info("order %" PRId64 " of %s", id, host_group());
    if (host_remaining_ms() == 0) return host_retry(HOST_BACKOFF, "no time is left");
    host_message message = {0};
    message.type = "order.done";
    message.subject = host_printf("%" PRId64, id);
    message.extensions = event->extensions;
    message.extension_count = event->extension_count;
    message.data = host_printf("{\"id\":%" PRId64 ",\"name\":%s,\"count\":%" PRId64 ",\"attempt\":%" PRIu32
                               ",\"tenant\":%s,\"replay\":%s,\"late\":%s}",
                               id, host_quote(name), count + 1, event->attempt, host_quote(host_tenant() ? host_tenant() : ""),
                               host_is_replay() ? "true" : "false", host_is_late() ? "true" : "false");
    return host_emit_message(&message);
}
