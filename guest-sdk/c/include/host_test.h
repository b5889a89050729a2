/* A host in memory, for unit tests of handlers: what host.h speaks to when a program
 * is built with -DHOST_TEST.
 *
 *     #include "host.h"
 *     #include <assert.h>
 *
 *     int main(void) {
 *         host_test_set_state("count", "4");
 *         host_event event = {.type = "order.placed", .data = "{\"id\":7}"};
 *         host_test_result result = host_test_call(event);
 *         assert(result.outcome == HOST_OK);
 *         assert(strcmp(result.emits[0].data, "{\"id\":7}") == 0);
 *         assert(strcmp(host_test_state("count"), "5") == 0);
 *     }
 *
 *     cc -DHOST_TEST -I include handler.c handler_test.c -o handler_test && ./handler_test
 *
 * It has the semantics of one call: what a call emits and writes counts only if it
 * succeeds. It knows no limits, does not check that an emitted event is a CloudEvent
 * (but for an empty type), and a handler that crashes ends the test.
 *
 * What it gives lives until host_test_reset().
 */
#ifndef HOST_TEST_H
#define HOST_TEST_H

#ifdef __cplusplus
extern "C" {
#endif

/* How a call ended. */
typedef struct host_test_result {
    host_outcome outcome;
    const char *reason;        /* why not, or NULL */
    uint64_t after_ms;         /* of HOST_RETRY; HOST_BACKOFF if it says nothing */
    const host_message *emits; /* what was emitted: nothing unless it is HOST_OK */
    size_t emit_count;
} host_test_result;

/* What host_group() and its like answer. Set the members before a call. */
typedef struct host_test_context {
    const char *group;
    const char *tenant; /* NULL: none */
    uint64_t remaining_ms;
    bool is_replay;
    bool is_late;
} host_test_context;

typedef struct host_test_entry_ {
    struct host_test_entry_ *next;
    const char *key;
    const char *value;
    size_t length;
} host_test_entry_;

#define HOST_TEST_CONTEXT_ {"test", NULL, 10000, false, false}
HOST_SHARED host_test_context host_test_in = HOST_TEST_CONTEXT_;

/* The state: a list sorted by key. The entries themselves never change, so a copy of
 * the list is a copy of the state. */
HOST_SHARED host_test_entry_ *host_test_state_ = NULL;
HOST_SHARED host_message *host_test_emits_ = NULL;
HOST_SHARED size_t host_test_emit_count_ = 0;
HOST_SHARED const char *host_test_log_ = NULL;
HOST_SHARED const char *host_test_refusal_ = NULL;

/* Forgets state, log and context, and frees what earlier calls gave. */
HOST_SHARED void host_test_reset(void) {
    host_test_context context = HOST_TEST_CONTEXT_;
    host_test_in = context;
    host_test_state_ = NULL;
    host_test_emits_ = NULL;
    host_test_emit_count_ = 0;
    host_test_log_ = NULL;
    host_test_refusal_ = NULL;
    host_arena_empty_();
}

/* Lets the host refuse to emit from here on, with this text, as it does for a type
 * that the handler's settings do not let it emit; NULL: no more. */
HOST_SHARED void host_test_deny_emits(const char *text) { host_test_refusal_ = text; }

HOST_SHARED char *host_test_copy_(const char *bytes, size_t length) {
    char *copy = (char *) host_arena_take_(length + 1, 1);
    if (length > 0) memcpy(copy, bytes, length);
    copy[length] = '\0';
    return copy;
}

HOST_SHARED void host_test_put_(const char *key, const char *value, size_t length) {
    host_test_entry_ *copied = NULL, **link = &copied;
    host_test_entry_ *entry = (host_test_entry_ *) host_alloc(sizeof *entry), *old = host_test_state_;
    entry->key = host_test_copy_(key, strlen(key));
    entry->value = value == NULL ? NULL : host_test_copy_(value, length);
    entry->length = length;
    for (; old != NULL && strcmp(old->key, key) < 0; old = old->next) {
        *link = (host_test_entry_ *) host_alloc(sizeof **link);
        **link = *old;
        link = &(*link)->next;
    }
    if (old != NULL && strcmp(old->key, key) == 0) old = old->next;
    if (value != NULL) {
        *link = entry;
        link = &entry->next;
    }
    *link = old;
    host_test_state_ = copied;
}

HOST_SHARED const host_test_entry_ *host_test_find_(const char *key) {
    for (host_test_entry_ *entry = host_test_state_; entry != NULL; entry = entry->next)
        if (strcmp(entry->key, key) == 0) return entry;
    return NULL;
}

/* The value of a key as text, or NULL if it has none. */
HOST_SHARED const char *host_test_state(const char *key) {
    const host_test_entry_ *entry = host_test_find_(key);
    return entry == NULL ? NULL : entry->value;
}

/* Gives a key a value, as if an earlier call had; NULL removes it. */
HOST_SHARED void host_test_set_state(const char *key, const char *value) {
    host_test_put_(key, value, value == NULL ? 0 : strlen(value));
}

/* The lines that were logged since the last reset, each as `info: text` with a line
 * feed behind it. */
HOST_SHARED const char *host_test_log(void) { return host_test_log_ == NULL ? "" : host_test_log_; }

/* Fills in what a test leaves out of an event: id and source `test` and `/test`, the
 * year 2026, position and attempt 1, the length of the data. */
HOST_SHARED host_event host_test_event_(host_event event) {
    if (event.id == NULL) event.id = "test";
    if (event.source == NULL) event.source = "/test";
    if (event.type == NULL) event.type = "test";
    if (event.time == NULL) event.time = "2026-01-01T00:00:00Z";
    if (event.data == NULL) event.data = "";
    if (event.data_len == 0) event.data_len = strlen(event.data);
    if (event.position == 0) event.position = 1;
    if (event.attempt == 0) event.attempt = 1;
    return event;
}

HOST_SHARED void host_test_begin_(void) {
    host_test_emits_ = NULL;
    host_test_emit_count_ = 0;
}

#ifdef HOST_BATCH
/* Calls the handler with the events, as the host does: results[i] is what became of
 * events[i]. If one is no success, nothing of the call counts, and each event comes
 * again in a call of its own. Gives everything that was emitted. */
HOST_SHARED host_test_result host_test_call_batch(const host_event *events, size_t count, host_result *results) {
    host_event *filled = (host_event *) host_alloc(count * sizeof *filled);
    host_test_entry_ *before = host_test_state_;
    host_test_result all = {HOST_OK, NULL, HOST_BACKOFF, NULL, 0};
    for (size_t i = 0; i < count; i++) {
        filled[i] = host_test_event_(events[i]);
        results[i] = host_retry(HOST_BACKOFF, "the handler gave this event no result");
    }
    host_test_begin_();
    host_handle_batch_(filled, count, results);
    for (size_t i = 0; i < count; i++)
        if (results[i].outcome != HOST_OK && all.outcome == HOST_OK) {
            all.outcome = results[i].outcome;
            all.reason = results[i].reason;
            all.after_ms = results[i].after_ms;
        }
    if (all.outcome == HOST_OK || count == 1) {
        if (all.outcome != HOST_OK) {
            host_test_state_ = before;
            host_test_begin_();
        }
        all.emits = host_test_emits_;
        all.emit_count = host_test_emit_count_;
        return all;
    }
    host_test_state_ = before;
    all.outcome = HOST_OK;
    all.reason = NULL;
    host_message *emits = NULL;
    size_t emit_count = 0;
    for (size_t i = 0; i < count; i++) {
        host_test_result one = host_test_call_batch(&filled[i], 1, &results[i]);
        host_message *more = (host_message *) host_alloc((emit_count + one.emit_count) * sizeof *more);
        if (emit_count > 0) memcpy(more, emits, emit_count * sizeof *more);
        if (one.emit_count > 0) memcpy(more + emit_count, one.emits, one.emit_count * sizeof *more);
        emits = more;
        emit_count += one.emit_count;
        if (one.outcome != HOST_OK && all.outcome == HOST_OK) {
            all.outcome = one.outcome;
            all.reason = one.reason;
            all.after_ms = one.after_ms;
        }
    }
    all.emits = emits;
    all.emit_count = emit_count;
    return all;
}
#else
/* Calls the handler with an event. What is left out of it is filled in: a type and
 * data are enough. */
HOST_SHARED host_test_result host_test_call(host_event event) {
    event = host_test_event_(event);
    host_test_entry_ *before = host_test_state_;
    host_test_begin_();
    host_result result = host_handle_(&event);
    host_test_result answer = {result.outcome, result.reason, result.after_ms, NULL, 0};
    if (result.outcome == HOST_OK) {
        answer.emits = host_test_emits_;
        answer.emit_count = host_test_emit_count_;
    } else {
        host_test_state_ = before;
    }
    return answer;
}
#endif

/* ---- The functions of the host ------------------------------------------------ */

HOST_SHARED const char *host_test_text_(host_bindings_string_t text) {
    return host_test_copy_((const char *) text.ptr, text.len);
}

HOST_SHARED const char *host_test_option_(host_bindings_option_string_t text) {
    return text.is_some ? host_test_text_(text.val) : NULL;
}

HOST_SHARED host_bindings_string_t host_test_words_(const char *text) {
    host_bindings_string_t words = {(uint8_t *) text, strlen(text)};
    return words;
}

bool event_host_handler_outbox_emit(event_host_handler_outbox_message_t *message,
                                    event_host_handler_outbox_emit_error_t *error) HOST_SHARED;
bool event_host_handler_outbox_emit(event_host_handler_outbox_message_t *message,
                                    event_host_handler_outbox_emit_error_t *error) {
    if (message->type.len == 0) {
        error->tag = EVENT_HOST_HANDLER_OUTBOX_EMIT_ERROR_INVALID;
        error->val.invalid = host_test_words_("`type` is empty");
        return false;
    }
    if (host_test_refusal_ != NULL) {
        error->tag = EVENT_HOST_HANDLER_OUTBOX_EMIT_ERROR_DENIED;
        error->val.denied = host_test_words_(host_test_refusal_);
        return false;
    }
    size_t count = host_test_emit_count_, extensions = message->extensions.len;
    host_message *emits = (host_message *) host_alloc((count + 1) * sizeof *emits), *emit = &emits[count];
    if (count > 0) memcpy(emits, host_test_emits_, count * sizeof *emits);
    emit->type = host_test_text_(message->type);
    emit->data = host_test_copy_((const char *) message->data.ptr, message->data.len);
    emit->data_len = message->data.len;
    emit->id = host_test_option_(message->id);
    emit->source = host_test_option_(message->source);
    emit->subject = host_test_option_(message->subject);
    emit->time = host_test_option_(message->time);
    emit->datacontenttype = host_test_option_(message->datacontenttype);
    emit->dataschema = host_test_option_(message->dataschema);
    emit->partitionkey = host_test_option_(message->partitionkey);
    host_extension *copies = (host_extension *) host_alloc(extensions * sizeof *copies);
    for (size_t i = 0; i < extensions; i++) {
        event_host_handler_outbox_tuple2_string_extension_value_t *from = &message->extensions.ptr[i];
        copies[i].name = host_test_text_(from->f0);
        if (from->f1.tag == EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_BOOLEAN) {
            copies[i].kind = HOST_BOOLEAN;
            copies[i].boolean = from->f1.val.boolean;
        } else if (from->f1.tag == EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_INTEGER) {
            copies[i].kind = HOST_INTEGER;
            copies[i].integer = from->f1.val.integer;
        } else {
            copies[i].kind = HOST_TEXT;
            copies[i].text = host_test_text_(from->f1.val.text);
        }
    }
    emit->extensions = copies;
    emit->extension_count = extensions;
    host_test_emits_ = emits;
    host_test_emit_count_ = count + 1;
    return true;
}

HOST_SHARED bool host_test_key_(host_bindings_string_t *key, event_host_handler_state_state_error_t *error) {
    if (key->len >= 1 && key->len <= 1024) return true;
    error->tag = EVENT_HOST_HANDLER_STATE_STATE_ERROR_INVALID_KEY;
    error->val.invalid_key = host_test_words_(key->len == 0 ? "it is empty" : host_printf("it has %zu bytes, over 1,024", key->len));
    return false;
}

bool event_host_handler_state_get(host_bindings_string_t *key, host_bindings_option_list_u8_t *value,
                                  event_host_handler_state_state_error_t *error) HOST_SHARED;
bool event_host_handler_state_get(host_bindings_string_t *key, host_bindings_option_list_u8_t *value,
                                  event_host_handler_state_state_error_t *error) {
    if (!host_test_key_(key, error)) return false;
    const host_test_entry_ *entry = host_test_find_(host_test_text_(*key));
    value->is_some = entry != NULL;
    if (entry != NULL) {
        value->val.ptr = (uint8_t *) entry->value;
        value->val.len = entry->length;
    }
    return true;
}

bool event_host_handler_state_set(host_bindings_string_t *key, host_bindings_list_u8_t *value,
                                  event_host_handler_state_state_error_t *error) HOST_SHARED;
bool event_host_handler_state_set(host_bindings_string_t *key, host_bindings_list_u8_t *value,
                                  event_host_handler_state_state_error_t *error) {
    if (!host_test_key_(key, error)) return false;
    host_test_put_(host_test_text_(*key), value->len == 0 ? "" : (const char *) value->ptr, value->len);
    return true;
}

bool event_host_handler_state_delete(host_bindings_string_t *key, event_host_handler_state_state_error_t *error) HOST_SHARED;
bool event_host_handler_state_delete(host_bindings_string_t *key, event_host_handler_state_state_error_t *error) {
    if (!host_test_key_(key, error)) return false;
    host_test_put_(host_test_text_(*key), NULL, 0);
    return true;
}

bool event_host_handler_state_keys(host_bindings_string_t *prefix, uint32_t limit, host_bindings_list_string_t *keys,
                                   event_host_handler_state_state_error_t *error) HOST_SHARED;
bool event_host_handler_state_keys(host_bindings_string_t *prefix, uint32_t limit, host_bindings_list_string_t *keys,
                                   event_host_handler_state_state_error_t *error) {
    (void) error;
    size_t count = 0;
    for (host_test_entry_ *entry = host_test_state_; entry != NULL; entry = entry->next) count++;
    keys->ptr = (host_bindings_string_t *) host_alloc(count * sizeof *keys->ptr);
    keys->len = 0;
    for (host_test_entry_ *entry = host_test_state_; entry != NULL && keys->len < limit; entry = entry->next)
        if (strncmp(entry->key, host_test_text_(*prefix), prefix->len) == 0)
            keys->ptr[keys->len++] = host_test_words_(entry->key);
    return true;
}

void event_host_handler_log_log(event_host_handler_log_level_t level, host_bindings_string_t *line) HOST_SHARED;
void event_host_handler_log_log(event_host_handler_log_level_t level, host_bindings_string_t *line) {
    static const char *const names[] = {"trace", "debug", "info", "warn", "error"};
    host_test_log_ = host_printf("%s%s: %s\n", host_test_log(), names[level], host_test_text_(*line));
}

void event_host_handler_context_group(host_bindings_string_t *name) HOST_SHARED;
void event_host_handler_context_group(host_bindings_string_t *name) { *name = host_test_words_(host_test_in.group); }

void event_host_handler_context_tenant(host_bindings_string_t *name) HOST_SHARED;
void event_host_handler_context_tenant(host_bindings_string_t *name) {
    *name = host_test_words_(host_test_in.tenant == NULL ? "" : host_test_in.tenant);
}

uint64_t event_host_handler_context_remaining_ms(void) HOST_SHARED;
uint64_t event_host_handler_context_remaining_ms(void) { return host_test_in.remaining_ms; }

bool event_host_handler_context_is_replay(void) HOST_SHARED;
bool event_host_handler_context_is_replay(void) { return host_test_in.is_replay; }

bool event_host_handler_context_is_late(void) HOST_SHARED;
bool event_host_handler_context_is_late(void) { return host_test_in.is_late; }

#ifdef __cplusplus
}
#endif

#endif
