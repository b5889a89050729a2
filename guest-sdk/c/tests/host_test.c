/* The tests of host.h, with the host in memory. */
#include "host.h"

static int failures = 0;

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);   \
            failures++;                                                               \
        }                                                                             \
    } while (0)
#define CHECK_TEXT(found, wanted)                                                                             \
    do {                                                                                                      \
        const char *found_ = (found), *wanted_ = (wanted);                                                    \
        if (found_ == NULL || strcmp(found_, wanted_) != 0) {                                                 \
            fprintf(stderr, "%s:%d: `%s`, wanted `%s`\n", __FILE__, __LINE__, found_ ? found_ : "(NULL)", wanted_); \
            failures++;                                                                                       \
        }                                                                                                     \
    } while (0)

/* What the handler does in the test that is running. */
static host_result (*work)(const host_event *);

HOST_HANDLER(event) { return work(event); }

static host_event event(const char *data) {
    host_event made = {.type = "t", .data = data};
    return made;
}

static host_test_result call(host_result (*does)(const host_event *), const char *data) {
    work = does;
    return host_test_call(event(data));
}

/* -- Each test resets the host, and calls a handler. */

static host_result counts(const host_event *given) {
    const host_json *data;
    int64_t count = 0, seen = 0, n;
    HOST_TRY(host_event_json(given, &data));
    HOST_TRY(host_json_need_int(data, "n", &n));
    HOST_TRY(host_state_get_int("count", &count));
    HOST_TRY(host_state_set_int("count", count + 1));
    HOST_TRY(host_state_get_int("count", &seen));
    CHECK(seen == count + 1);
    HOST_TRY(host_emit("done", "{\"n\":%" PRId64 ",\"name\":%s}", n, host_quote(host_json_text(data, "name", ""))));
    if (n == 1) return host_retry(50, "not yet: %u", (unsigned) given->attempt);
    if (n == 2) return host_reject("no: %s", host_json_text(data, "name", "?"));
    if (n == 3) return host_retry(HOST_BACKOFF, "a\xff%s", "b");
    return host_ok();
}

static void what_a_call_does_counts_only_if_it_succeeds(void) {
    host_test_set_state("count", "4");
    host_test_result failed = call(counts, "{\"n\":1}");
    CHECK(failed.outcome == HOST_RETRY && failed.after_ms == 50 && failed.emit_count == 0);
    CHECK_TEXT(failed.reason, "not yet: 1");
    CHECK_TEXT(host_test_state("count"), "4");
    host_test_result done = call(counts, "{\"n\":9,\"name\":\"J\\u00fcrgen \xF0\x9F\x98\x80 \\\"q\\\" \\\\ \\u0001\\n\",\"more\":[1,{}]}");
    CHECK(done.outcome == HOST_OK && done.emit_count == 1);
    CHECK_TEXT(done.emits[0].data, "{\"n\":9,\"name\":\"J\xC3\xBCrgen \xF0\x9F\x98\x80 \\\"q\\\" \\\\ \\u0001\\n\"}");
    CHECK_TEXT(done.emits[0].datacontenttype, "application/json");
    CHECK_TEXT(host_test_state("count"), "5");
    CHECK_TEXT(failed.reason, "not yet: 1"); /* what a test got stays until the reset */
}

static void a_failure_says_why(void) {
    host_test_result rejected = call(counts, "{\"n\":2,\"name\":\"x\"}");
    CHECK(rejected.outcome == HOST_REJECT);
    CHECK_TEXT(rejected.reason, "no: x");
    host_test_result lossy = call(counts, "{\"n\":3}");
    CHECK(lossy.outcome == HOST_RETRY && lossy.after_ms == HOST_BACKOFF);
    CHECK_TEXT(lossy.reason, "a\xEF\xBF\xBD" "b");
    CHECK_TEXT(call(counts, "").reason, "the event has no data");
    CHECK(call(counts, "").outcome == HOST_REJECT);
    CHECK_TEXT(call(counts, "{\"n\": ").reason,
               "the data is not the JSON that this handler takes: the end where a value was wanted at line 1 column 7");
    CHECK_TEXT(call(counts, "{}").reason, "the data is not the JSON that this handler takes: `n` is missing");
    CHECK_TEXT(call(counts, "{\"n\":1.5}").reason, "the data is not the JSON that this handler takes: `n` is no whole number of 64 bits");
    CHECK(call(counts, "[]").outcome == HOST_REJECT);
}

static host_result emits_badly(const host_event *given) {
    if (given->data_len == 1) HOST_TRY(host_emit("", NULL));
    if (given->data_len == 2) HOST_TRY(host_emit("secret", NULL));
    return host_emit("t", "{\"name\":%s}", "bare");
}

static void a_message_that_is_not_taken_is_a_retry_that_says_why(void) {
    CHECK_TEXT(call(emits_badly, "1").reason, "cannot emit an invalid event: `type` is empty");
    CHECK_TEXT(call(emits_badly, "").reason,
               "cannot emit an invalid event: the data of `t` is no JSON: something that is no JSON value at line 1 column 9");
    host_test_deny_emits("the handler may not emit `secret`");
    CHECK_TEXT(call(emits_badly, "12").reason, "not allowed to emit: the handler may not emit `secret`");
}

static host_result emits_all(const host_event *given) {
    const host_extension *level = host_event_extension(given, "level");
    CHECK(level != NULL && level->kind == HOST_INTEGER && level->integer == -3);
    CHECK(host_event_extension(given, "absent") == NULL);
    host_message message = {
        .type = "t", .data = "\0\xff", .data_len = 2, .id = "i", .source = "/s", .subject = "about",
        .time = "2026-02-03T04:05:06Z", .datacontenttype = "image/png", .dataschema = "https://example.com/schema",
        .partitionkey = "k", .extensions = given->extensions, .extension_count = given->extension_count,
    };
    HOST_TRY(host_emit_message(&message));
    return host_emit("empty", NULL);
}

static void an_emitted_event_has_what_it_was_given(void) {
    host_extension extensions[] = {
        {.name = "flag", .kind = HOST_BOOLEAN, .boolean = true},
        {.name = "level", .kind = HOST_INTEGER, .integer = -3},
        {.name = "note", .kind = HOST_TEXT, .text = "h\xC3\xA9"},
    };
    host_event given = event("");
    given.extensions = extensions;
    given.extension_count = 3;
    work = emits_all;
    host_test_result result = host_test_call(given);
    CHECK(result.outcome == HOST_OK && result.emit_count == 2);
    const host_message *emit = &result.emits[0];
    CHECK(emit->data_len == 2 && memcmp(emit->data, "\0\xff", 2) == 0);
    CHECK_TEXT(emit->id, "i");
    CHECK_TEXT(emit->source, "/s");
    CHECK_TEXT(emit->subject, "about");
    CHECK_TEXT(emit->time, "2026-02-03T04:05:06Z");
    CHECK_TEXT(emit->datacontenttype, "image/png");
    CHECK_TEXT(emit->dataschema, "https://example.com/schema");
    CHECK_TEXT(emit->partitionkey, "k");
    CHECK(emit->extension_count == 3 && emit->extensions[0].boolean && emit->extensions[1].integer == -3);
    CHECK_TEXT(emit->extensions[2].text, "h\xC3\xA9");
    CHECK(result.emits[1].data_len == 0 && result.emits[1].id == NULL && result.emits[1].datacontenttype == NULL);
}

static host_result keeps(const host_event *given) {
    const char *bytes;
    size_t length;
    const char *const *keys;
    const host_json *value;
    int64_t number = 7;
    (void) given;
    HOST_TRY(host_state_set_json("a/1", "[%d,%d]", 1, 2));
    HOST_TRY(host_state_set_json("a/2", "%s", host_quote("text")));
    HOST_TRY(host_state_set_bytes("b", "\0\xff", 2));
    HOST_TRY(host_state_get_json("a/1", &value));
    CHECK(value != NULL && value->count == 2);
    HOST_TRY(host_state_get_bytes("b", &bytes, &length));
    CHECK(length == 2 && memcmp(bytes, "\0\xff", 2) == 0);
    HOST_TRY(host_state_keys("a/", 10, &keys, &length));
    CHECK(length == 2 && strcmp(keys[0], "a/1") == 0 && strcmp(keys[1], "a/2") == 0);
    HOST_TRY(host_state_keys("", 2, &keys, &length));
    CHECK(length == 2);
    HOST_TRY(host_state_delete("a/1"));
    HOST_TRY(host_state_delete("a/1"));
    HOST_TRY(host_state_get_json("a/1", &value));
    CHECK(value == NULL);
    HOST_TRY(host_state_get_int("none", &number));
    CHECK(number == 7);
    CHECK_TEXT(host_state_get_int("", &number).reason, "not a key of the state: it is empty");
    CHECK_TEXT(host_state_set_json("x", "{").reason,
               "the new value of the state's `x` is no JSON: a member without a name at line 1 column 2");
    return host_state_get_int("a/2", &number);
}

static void values_come_back_as_they_were_set_until_they_are_deleted(void) {
    host_test_result result = call(keeps, "");
    CHECK(result.outcome == HOST_RETRY);
    CHECK_TEXT(result.reason, "the state's `a/2` is not the JSON that this handler takes: no whole number of 64 bits");
}

static host_result knows(const host_event *given) {
    (void) given;
    CHECK_TEXT(host_group(), "test");
    CHECK_TEXT(host_tenant(), "acme");
    CHECK(host_remaining_ms() == 1500 && host_is_replay() && host_is_late());
    host_trace("%d", 1);
    host_debug("%d", 2);
    host_info("%d", 3);
    host_warn("%d", 4);
    host_error("%d\xff", 5);
    return host_ok();
}

static void a_handler_knows_its_call_and_writes_to_the_log(void) {
    host_test_in.tenant = "acme";
    host_test_in.remaining_ms = 1500;
    host_test_in.is_replay = host_test_in.is_late = true;
    CHECK(call(knows, "").outcome == HOST_OK);
    CHECK_TEXT(host_test_log(), "trace: 1\ndebug: 2\ninfo: 3\nwarn: 4\nerror: 5\xEF\xBF\xBD\n");
    host_test_reset();
    CHECK(host_tenant() == NULL);
}

static const char *problem(const char *text) {
    const host_json *value;
    host_result result = host_json_parse(text, strlen(text), &value);
    CHECK((result.outcome == HOST_OK) == (value != NULL));
    /* Checking without reading comes to the same. */
    CHECK((host_json_problem_(text, strlen(text), NULL) == NULL) == (value != NULL));
    return result.outcome == HOST_OK ? "" : result.reason;
}

static void json_is_read_as_it_is_defined(void) {
    const host_json *value;
    const char *text = " { \"a\" : [ 1 , -2.5e3 , true , null , \"\\ud83d\\ude00\\u0000x\" ] , \"a2\" : {} , \"n\" : 9007199254740993, \"n\" : 5 } ";
    CHECK(host_json_parse(text, strlen(text), &value).outcome == HOST_OK);
    const host_json *list = host_json_get(value, "a");
    CHECK(list->count == 5 && host_json_at(list, 5) == NULL && host_json_at(value, 0) == NULL);
    CHECK_TEXT(host_json_at(list, 1)->text, "-2.5e3");
    CHECK(host_json_at(list, 4)->text_len == 6 && memcmp(host_json_at(list, 4)->text, "\xF0\x9F\x98\x80\0x", 6) == 0);
    CHECK(host_json_int(value, "n", 0) == 5); /* the last of a name */
    CHECK(host_json_number(value, "n", 0) == 5.0 && host_json_int(value, "a", 3) == 3);
    CHECK(host_json_get(NULL, "x") == NULL && host_json_bool(value, "x", true));
    static const char *const good[] = {"0", "-0", "1e5", "1E-5", "\"\"", "[]", "{}", " [ ] ", "\"\xC3\xA9\"", "123456789012345678901234567890", "\"\\/\\b\\f\""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) CHECK_TEXT(problem(good[i]), "");
    static const char *const bad[] = {"", "01", "1.", ".5", "+1", "1e", "nul", "tru", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":1,}", "{a:1}", "\"\\x\"",
                                      "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\xff\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"",
                                      "\"", "\"\n\"", "[", "{", "1 2", "\"\\", "\"\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(problem(bad[i])[0] != '\0');
    CHECK_TEXT(problem("[1,\n 2,\n  x]"), "no JSON: something that is no JSON value at line 3 column 3");
    char deep[300];
    memset(deep, '[', 128);
    memset(deep + 128, ']', 128);
    deep[256] = '\0';
    CHECK_TEXT(problem(deep), "");
    memset(deep, '[', 129);
    memset(deep + 129, ']', 129);
    deep[258] = '\0';
    CHECK(strstr(problem(deep), "more than 128 levels") != NULL);
}

static void memory_of_a_call_is_aligned_and_zero_and_may_be_large(void) {
    for (size_t size = 0; size < 70000; size = size * 2 + 1) {
        char *memory = (char *) host_alloc(size);
        CHECK((uintptr_t) memory % 16 == 0);
        for (size_t i = 0; i < size; i++) CHECK(memory[i] == 0);
        memset(memory, 0xff, size);
    }
    host_test_reset();
    CHECK(((char *) host_alloc(1000))[999] == 0);
}

int main(void) {
    void (*const tests[])(void) = {
        what_a_call_does_counts_only_if_it_succeeds,
        a_failure_says_why,
        a_message_that_is_not_taken_is_a_retry_that_says_why,
        an_emitted_event_has_what_it_was_given,
        values_come_back_as_they_were_set_until_they_are_deleted,
        a_handler_knows_its_call_and_writes_to_the_log,
        json_is_read_as_it_is_defined,
        memory_of_a_call_is_aligned_and_zero_and_may_be_large,
    };
    size_t count = sizeof tests / sizeof *tests;
    for (size_t i = 0; i < count; i++) {
        host_test_reset();
        tests[i]();
    }
    host_test_reset();
    printf("%zu tests, %d failures\n", count, failures);
    return failures == 0 ? 0 : 1;
}
