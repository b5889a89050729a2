// What the conformance tests ask of a handler, of one event.
#include "host.hpp"

#include <cstdio>

static host::Result roundtrip() {
    constexpr std::string_view value("\0\xff", 2);
    HOST_CHECK(host::state::set_bytes("raw", value));
    auto read = host::state::get_bytes("raw");
    if (!read || *read != value) return host::reject("other bytes");
    auto keys = host::state::keys("ra", 10);
    if (!keys || keys->size() != 1 || keys->front() != "raw") return host::reject("other keys");
    HOST_CHECK(host::state::remove("raw"));
    read = host::state::get_bytes("raw");
    if (!read || read->has_value()) return host::reject("not deleted");
    return {};
}

// Whether the value is [1,"\xc3\xbc",null,{"a":true}].
static bool is_the_list(host::Json value) {
    return value.members().size() == 4 && value[0].integer() == 1 && value[1].text() == "\xc3\xbc" && value[2].is_null() &&
           value[3].members().size() == 1 && value[3]["a"].boolean() == true;
}

static host::Result list() {
    auto value = host::state::get_json("list");
    if (!value) return std::unexpected(value.error());
    if (*value && !is_the_list(*value)) return host::reject("another list");
    HOST_CHECK(host::state::set_json("list", "[1,\"\xc3\xbc\",null,{\"a\":true}]"));
    value = host::state::get_json("list");
    if (!value) return std::unexpected(value.error());
    if (!is_the_list(*value)) return host::reject("not the list");
    return {};
}

static host::Result order(const host::Event &event) {
    auto data = event.json();
    if (!data) return std::unexpected(data.error());
    auto id = (*data)["id"].integer();
    auto name = (*data)["name"].text();
    if (!id || !name) return host::reject("the data is not the JSON that this handler takes");
    std::string_view cmd = (*data)["cmd"].text().value_or("");

    host::log::info("order " + std::to_string(*id) + " of " + std::string(host::context::group()));
    if (cmd == "retry" && event.attempt() < 3)
        return host::retry("not yet: " + std::to_string(event.attempt()), std::chrono::milliseconds(50));
    if (cmd == "never") return host::retry("never", std::chrono::milliseconds(50));
    if (cmd == "reject") return host::reject("no: " + std::string(*name));
    if (cmd == "error") return host::retry("an ordinary error");
    if (cmd == "boom") {
        std::fputs("about to fall\n", stderr);
        std::abort();
    }
    if (cmd == "print") std::puts("printed");
    if (cmd == "invalid") HOST_CHECK(host::emit("order.invalid", "", {.subject = ""}));
    if (cmd == "denied") HOST_CHECK(host::emit("secret.spilled", ""));
    if (cmd == "empty") HOST_CHECK(host::emit("order.empty", ""));
    if (cmd == "bytes") HOST_CHECK(roundtrip());
    if (cmd == "list") HOST_CHECK(list());
    if (cmd == "late" && event.attempt() < 2) {
        HOST_CHECK(host::state::set_int("count", -1));
        HOST_CHECK(host::emit("order.never", ""));
        return host::retry("too early");
    }

    auto before = host::state::get_int("count");
    if (!before) return std::unexpected(before.error());
    std::int64_t count = before->value_or(0) + 1;
    HOST_CHECK(host::state::set_int("count", count));
    auto left = host::context::remaining().count();
    auto tenant = host::context::tenant();
    auto boolean = [](bool value) { return value ? "true" : "false"; };
    std::string json = "{\"id\":" + std::to_string(*id) + ",\"name\":" + host::quote(*name) + ",\"count\":" + std::to_string(count) +
                       ",\"attempt\":" + std::to_string(event.attempt()) + ",\"bytes\":" + std::to_string(event.data().size()) +
                       ",\"group\":" + host::quote(host::context::group()) + ",\"tenant\":" + (tenant ? host::quote(*tenant) : "null") +
                       ",\"left\":" + boolean(left > 0 && left <= 10000) +
                       ",\"replay\":" + boolean(host::context::is_replay()) + ",\"late\":" + boolean(host::context::is_late()) + "}";
    std::string subject = std::to_string(*id);
    return host::emit("order.done", json, {.subject = subject, .extensions = event.extensions()});
}
