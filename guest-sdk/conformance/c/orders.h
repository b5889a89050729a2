/* What the conformance tests ask of a handler, of one event. */
#include "host.h"

/* Whether the value is [1,"\xc3\xbc",null,{"a":true}]. */
static bool is_the_list(const host_json *value) {
    int64_t one;
    const host_json *text = host_json_at(value, 1), *null = host_json_at(value, 2), *object = host_json_at(value, 3);
    return value->count == 4 && host_json_to_int(host_json_at(value, 0), &one) && one == 1
        && text->type == HOST_JSON_TEXT && strcmp(text->text, "\xc3\xbc") == 0 && null->type == HOST_JSON_NULL
        && object->type == HOST_JSON_OBJECT && object->count == 1 && host_json_bool(object, "a", false);
}

static host_result list(void) {
    const host_json *value;
    HOST_TRY(host_state_get_json("list", &value));
    if (value != NULL && !is_the_list(value)) return host_reject("another list");
    HOST_TRY(host_state_set_json("list", "[1,%s,null,{\"a\":true}]", host_quote("\xc3\xbc")));
    HOST_TRY(host_state_get_json("list", &value));
    if (value == NULL || !is_the_list(value)) return host_reject("not the list");
    return host_ok();
}

static host_result order(const host_event *event) {
    const host_json *data;
    const char *name;
    int64_t id, count = 0;
    HOST_TRY(host_event_json(event, &data));
    HOST_TRY(host_json_need_int(data, "id", &id));
    HOST_TRY(host_json_need_text(data, "name", &name));
    const char *cmd = host_json_text(data, "cmd", "");

    host_info("order %" PRId64 " of %s", id, host_group());
    if (strcmp(cmd, "retry") == 0 && event->attempt < 3) return host_retry(50, "not yet: %" PRIu32, event->attempt);
    if (strcmp(cmd, "never") == 0) return host_retry(50, "never");
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
    if (strcmp(cmd, "list") == 0) HOST_TRY(list());
    if (strcmp(cmd, "late") == 0 && event->attempt < 2) {
        HOST_TRY(host_state_set_int("count", -1));
        HOST_TRY(host_emit("order.never", NULL));
        return host_retry(HOST_BACKOFF, "too early");
    }

    HOST_TRY(host_state_get_int("count", &count));
    HOST_TRY(host_state_set_int("count", count + 1));
    uint64_t left = host_remaining_ms();
    host_message message = {0};
    message.type = "order.done";
    message.subject = host_printf("%" PRId64, id);
    message.extensions = event->extensions;
    message.extension_count = event->extension_count;
    message.data = host_printf("{\"id\":%" PRId64 ",\"name\":%s,\"count\":%" PRId64 ",\"attempt\":%" PRIu32
                               ",\"bytes\":%zu,\"group\":%s,\"tenant\":%s,\"left\":%s,\"replay\":%s,\"late\":%s}",
                               id, host_quote(name), count + 1, event->attempt, event->data_len, host_quote(host_group()),
                               host_tenant() ? host_quote(host_tenant()) : "null",
                               left > 0 && left <= 10000 ? "true" : "false", host_is_replay() ? "true" : "false", host_is_late() ? "true" : "false");
    return host_emit_message(&message);
}
