// The tests of host.hpp, with the host in memory.
#include "host.hpp"

#include <stdexcept>

static int failures = 0;

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                                             \
        }                                                                           \
    } while (0)

static host::Result handle(const host::Event &event) {
    auto data = event.json();
    if (!data) return std::unexpected(data.error());
    auto n = (*data)["n"].integer();
    if (!n) return host::reject("no n");
    auto count = host::state::get_int("count");
    if (!count) return std::unexpected(count.error());
    HOST_CHECK(host::state::set_int("count", count->value_or(0) + 1));
    HOST_CHECK(host::emit("done", "{\"name\":" + host::quote((*data)["name"].text().value_or("")) + "}",
                          {.subject = "about", .extensions = event.extensions()}));
    if (*n == 1) return host::retry("not yet: " + std::to_string(event.attempt()), std::chrono::milliseconds(50));
    if (*n == 2) throw std::runtime_error("line busy");
    if (*n == 3) HOST_CHECK(host::emit("t", "bare"));
    if (*n == 4) HOST_CHECK(host::emit("", ""));
    if (*n == 5) {
        HOST_CHECK(host::state::set_json("list", "[1,\"x\"]"));
        auto list = host::state::get_json("list");
        CHECK(list && list->members().size() == 2 && (*list)[0].integer() == 1 && (*list)[1].text() == "x" && !(*list)[2]);
        HOST_CHECK(host::state::set_bytes("raw", std::string_view("\0\xff", 2)));
        CHECK(host::state::get_bytes("raw")->value() == std::string_view("\0\xff", 2));
        CHECK(host::state::keys("", 10)->size() == 3);
        HOST_CHECK(host::state::remove("raw"));
        CHECK(!host::state::get_bytes("raw")->has_value());
        CHECK(host::context::group() == "test" && !host::context::tenant() && host::context::remaining().count() == 10000);
        host::log::warn("careful");
    }
    return {};
}
HOST_HANDLE(handle)

static host_test_result call(const char *data) {
    host_event event = {};
    event.data = data;
    return host_test_call(event);
}

int main() {
    host_test_set_state("count", "4");
    host_test_result result = call("{\"n\":1}");
    CHECK(result.outcome == HOST_RETRY && result.after_ms == 50 && std::string_view(result.reason) == "not yet: 1");
    CHECK(std::string_view(host_test_state("count")) == "4");
    result = call("{\"n\":2}");
    CHECK(result.outcome == HOST_RETRY && result.after_ms == HOST_BACKOFF && std::string_view(result.reason) == "line busy");
    result = call("{\"n\":3}");
    CHECK(std::string_view(result.reason) == "cannot emit an invalid event: the data of `t` is no JSON: something that is no JSON value at line 1 column 1");
    result = call("{\"n\":4}");
    CHECK(std::string_view(result.reason) == "cannot emit an invalid event: `type` is empty");
    result = call("{}");
    CHECK(result.outcome == HOST_REJECT && std::string_view(result.reason) == "no n");
    result = call("");
    CHECK(result.outcome == HOST_REJECT);

    host_extension extensions[] = {{"flag", HOST_BOOLEAN, nullptr, true, 0}, {"level", HOST_INTEGER, nullptr, false, -3}, {"note", HOST_TEXT, "h", false, 0}};
    host_event event = {};
    event.data = "{\"n\":5,\"name\":\"J\\u00fcrgen\"}";
    event.extensions = extensions;
    event.extension_count = 3;
    result = host_test_call(event);
    CHECK(result.outcome == HOST_OK && result.emit_count == 1);
    CHECK(std::string_view(result.emits[0].data) == "{\"name\":\"J\xC3\xBCrgen\"}");
    CHECK(std::string_view(result.emits[0].subject) == "about");
    CHECK(result.emits[0].extension_count == 3 && result.emits[0].extensions[1].integer == -3 && result.emits[0].extensions[0].boolean);
    CHECK(std::string_view(host_test_state("count")) == "5");
    CHECK(std::string_view(host_test_log()) == "warn: careful\n");
    host_test_reset();
    printf("1 test, %d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
