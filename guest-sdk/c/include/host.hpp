// Write event-host handlers in C++23. It is host.h, which see, in the types of C++.
//
//     #include "host.hpp"
//
//     static host::Result handle(const host::Event &event) {
//         auto order = event.json();
//         if (!order) return std::unexpected(order.error());
//         auto id = (*order)["id"].integer();
//         if (!id) return host::reject("the order has no id");
//         auto count = host::state::get_int("count");
//         if (!count) return std::unexpected(count.error());
//         HOST_CHECK(host::state::set_int("count", count->value_or(0) + 1));
//         host::log::info("order " + std::to_string(*id));
//         return host::emit("order.seen", "{\"id\":" + std::to_string(*id) + "}");
//     }
//     HOST_HANDLE(handle)
//
// Every std::string_view that it gives lives until the call ends, and has a NUL behind
// it. Exceptions are off in a component (-fno-exceptions); where they are on, as in a
// unit test, one that leaves the handler is a retry with its text.
#ifndef HOST_HPP
#define HOST_HPP

#include "host.h"

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace host {

/// Why a handler did not handle an event.
class Failure {
public:
    /// What a function of host.h gave, which is no success.
    explicit Failure(host_result result) : result_(result) {}
    /// Whether it asks for another attempt; else the event is a dead letter at once.
    bool is_retry() const { return result_.outcome == HOST_RETRY; }
    /// Why.
    std::string_view reason() const { return result_.reason == nullptr ? "" : result_.reason; }
    /// The least time to wait; none: as the handler's retry settings say.
    std::optional<std::chrono::milliseconds> after() const {
        if (!is_retry() || result_.after_ms == HOST_BACKOFF) return std::nullopt;
        return std::chrono::milliseconds(result_.after_ms);
    }
    /// The same in the type of host.h.
    host_result c() const { return result_; }

private:
    host_result result_;
};

/// How a handler, or a function of this header, ended.
using Result = std::expected<void, Failure>;

/// Returns from the function, with the failure, if the expression is one.
#define HOST_CHECK(expression)                                                                \
    do {                                                                                      \
        if (auto host_checked_ = (expression); !host_checked_)                                \
            return std::unexpected(host_checked_.error());                                    \
    } while (0)

namespace detail {
/// A text of host.h, which has a NUL behind it.
inline const char *text(std::string_view from) {
    char *to = static_cast<char *>(host_alloc(from.size() + 1));
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return to;
}
inline const char *text(const std::optional<std::string_view> &from) { return from ? text(*from) : nullptr; }
inline std::optional<std::string_view> view(const char *from) {
    if (from == nullptr) return std::nullopt;
    return std::string_view(from);
}
inline Result result(host_result from) {
    if (from.outcome == HOST_OK) return {};
    return std::unexpected(Failure(from));
}
} // namespace detail

/// It may work later: the host calls again, after at least this time (none: as the
/// handler's retry settings say), until the configured attempts are used up.
inline std::unexpected<Failure> retry(std::string_view reason, std::optional<std::chrono::milliseconds> after = std::nullopt) {
    std::uint64_t ms = HOST_BACKOFF;
    if (after) ms = after->count() < 0 ? 0 : static_cast<std::uint64_t>(after->count());
    return std::unexpected(Failure(host_retry(ms, "%s", detail::text(reason))));
}

/// It will never work: the event becomes a dead letter at once.
inline std::unexpected<Failure> reject(std::string_view reason) {
    return std::unexpected(Failure(host_reject("%s", detail::text(reason))));
}

/// The text as JSON, with its quotes.
inline std::string quote(std::string_view text) { return host_quote(detail::text(text)); }

/// A JSON value, or one that is absent: each function is fine to call then.
class Json {
public:
    explicit Json(const host_json *value) : value_(value) {}
    /// Whether there is a value.
    explicit operator bool() const { return value_ != nullptr; }
    /// The member of this name.
    Json operator[](std::string_view name) const { return Json(host_json_get(value_, detail::text(name))); }
    /// The member of this name.
    Json operator[](const char *name) const { return Json(host_json_get(value_, name)); }
    /// The member of this index of an array. A template, since a plain 0 could be a name's pointer as well.
    template <std::integral Index> Json operator[](Index index) const {
        return Json(host_json_at(value_, static_cast<std::size_t>(index)));
    }
    /// The members of an array or object.
    std::vector<Json> members() const {
        std::vector<Json> all;
        for (const host_json *next = value_ == nullptr ? nullptr : value_->first; next != nullptr; next = next->next) all.emplace_back(next);
        return all;
    }
    /// The name of a member of an object.
    std::string_view name() const { return value_ == nullptr || value_->name == nullptr ? "" : value_->name; }
    /// Whether it is null.
    bool is_null() const { return is(HOST_JSON_NULL); }
    /// Its text, if it is one.
    std::optional<std::string_view> text() const {
        if (!is(HOST_JSON_TEXT)) return std::nullopt;
        return std::string_view(value_->text, value_->text_len);
    }
    /// Its whole number, if it is one of 64 bits.
    std::optional<std::int64_t> integer() const {
        std::int64_t number;
        if (!host_json_to_int(value_, &number)) return std::nullopt;
        return number;
    }
    /// Its number, if it is one.
    std::optional<double> number() const {
        if (!is(HOST_JSON_NUMBER)) return std::nullopt;
        return std::strtod(value_->text, nullptr);
    }
    /// Its Boolean, if it is one.
    std::optional<bool> boolean() const {
        if (!is(HOST_JSON_BOOL)) return std::nullopt;
        return value_->boolean;
    }

private:
    bool is(host_json_type type) const { return value_ != nullptr && value_->type == type; }
    const host_json *value_;
};

/// The value of an extension attribute: text is every type but Boolean and Integer.
using ExtensionValue = std::variant<std::string_view, bool, std::int32_t>;

/// An extension attribute.
struct Extension {
    std::string_view name;
    ExtensionValue value;
};

/// A CloudEvents 1.0 event, with its place in the log.
class Event {
public:
    explicit Event(const host_event *event) : event_(event) {}
    /// Identifies the event together with its source.
    std::string_view id() const { return event_->id; }
    /// The context in which it happened: a URI-reference.
    std::string_view source() const { return event_->source; }
    /// The kind of event.
    std::string_view type() const { return event_->type; }
    /// What it is about, within its source.
    std::optional<std::string_view> subject() const { return detail::view(event_->subject); }
    /// When it happened: RFC 3339 text in UTC.
    std::string_view time() const { return event_->time; }
    /// The media type of the data; none: application/json.
    std::optional<std::string_view> datacontenttype() const { return detail::view(event_->datacontenttype); }
    /// A URI of the data's schema.
    std::optional<std::string_view> dataschema() const { return detail::view(event_->dataschema); }
    /// CloudEvents' partitioning extension: events of one key are ordered.
    std::optional<std::string_view> partitionkey() const { return detail::view(event_->partitionkey); }
    /// The payload.
    std::string_view data() const { return {event_->data, event_->data_len}; }
    /// Its place in the log. Grows along the log, with gaps.
    std::uint64_t position() const { return event_->position; }
    /// Which call this is for this event, from 1.
    std::uint32_t attempt() const { return event_->attempt; }
    /// The extension attributes, sorted by name, without `partitionkey`.
    std::vector<Extension> extensions() const {
        std::vector<Extension> all;
        for (std::size_t i = 0; i < event_->extension_count; i++) {
            const host_extension &own = event_->extensions[i];
            if (own.kind == HOST_BOOLEAN) all.push_back({own.name, own.boolean});
            else if (own.kind == HOST_INTEGER) all.push_back({own.name, own.integer});
            else all.push_back({own.name, std::string_view(own.text)});
        }
        return all;
    }
    /// The data as JSON, whatever its media type says. Rejects the event if it is none.
    std::expected<Json, Failure> json() const {
        const host_json *value;
        HOST_CHECK(detail::result(host_event_json(event_, &value)));
        return Json(value);
    }
    /// The same in the type of host.h.
    const host_event *c() const { return event_; }

private:
    const host_event *event_;
};

/// Attributes of an event that is emitted. The host fills in what is left out.
struct Attributes {
    std::optional<std::string_view> id = {}, source = {}, subject = {}, time = {}, datacontenttype = {}, dataschema = {}, partitionkey = {};
    /// Names are lower-case letters and digits.
    std::vector<Extension> extensions = {};
};

/// Emits an event with these bytes as its data, when this call succeeds.
inline Result emit_bytes(std::string_view type, std::string_view data, const Attributes &attributes = {}) {
    std::vector<host_extension> extensions;
    for (const Extension &from : attributes.extensions) {
        host_extension to = {detail::text(from.name), HOST_TEXT, nullptr, false, 0};
        if (const bool *boolean = std::get_if<bool>(&from.value)) {
            to.kind = HOST_BOOLEAN;
            to.boolean = *boolean;
        } else if (const std::int32_t *integer = std::get_if<std::int32_t>(&from.value)) {
            to.kind = HOST_INTEGER;
            to.integer = *integer;
        } else {
            to.text = detail::text(*std::get_if<std::string_view>(&from.value));
        }
        extensions.push_back(to);
    }
    host_message message = {};
    message.type = detail::text(type);
    message.data = data.empty() ? nullptr : data.data();
    message.data_len = data.size();
    message.id = detail::text(attributes.id);
    message.source = detail::text(attributes.source);
    message.subject = detail::text(attributes.subject);
    message.time = detail::text(attributes.time);
    message.datacontenttype = detail::text(attributes.datacontenttype);
    message.dataschema = detail::text(attributes.dataschema);
    message.partitionkey = detail::text(attributes.partitionkey);
    message.extensions = extensions.data();
    message.extension_count = extensions.size();
    return detail::result(host_emit_message(&message));
}

/// Emits an event with data of JSON; a retry if that is none (`quote` makes texts safe).
/// An empty text is an event without data.
inline Result emit(std::string_view type, std::string_view json, Attributes attributes = {}) {
    if (json.empty()) return emit_bytes(type, json, attributes);
    if (const char *problem = host_json_problem_(json.data(), json.size(), nullptr))
        return retry("cannot emit an invalid event: the data of `" + std::string(type) + "` is no JSON: " + problem);
    if (!attributes.datacontenttype) attributes.datacontenttype = "application/json";
    return emit_bytes(type, json, attributes);
}

/// Small durable values of the consumer group, kept as JSON text.
namespace state {

/// The value of a key as a whole number, or none if the key has no value.
inline std::expected<std::optional<std::int64_t>, Failure> get_int(std::string_view key) {
    const host_json *value;
    std::int64_t number = 0;
    const char *name = detail::text(key);
    HOST_CHECK(detail::result(host_state_get_json(name, &value)));
    if (value == nullptr) return std::nullopt;
    HOST_CHECK(detail::result(host_state_get_int(name, &number)));
    return number;
}

/// Gives a key a whole number.
inline Result set_int(std::string_view key, std::int64_t value) { return detail::result(host_state_set_int(detail::text(key), value)); }

/// The value of a key as JSON: absent if the key has none.
inline std::expected<Json, Failure> get_json(std::string_view key) {
    const host_json *value;
    HOST_CHECK(detail::result(host_state_get_json(detail::text(key), &value)));
    return Json(value);
}

/// Gives a key a value of JSON. A retry if it is none.
inline Result set_json(std::string_view key, std::string_view json) {
    return detail::result(host_state_set_json(detail::text(key), "%s", detail::text(json)));
}

/// The value of a key as the bytes that were set, or none if the key has no value.
inline std::expected<std::optional<std::string_view>, Failure> get_bytes(std::string_view key) {
    const char *bytes;
    std::size_t length;
    HOST_CHECK(detail::result(host_state_get_bytes(detail::text(key), &bytes, &length)));
    if (bytes == nullptr) return std::nullopt;
    return std::string_view(bytes, length);
}

/// Gives a key a value of bytes.
inline Result set_bytes(std::string_view key, std::string_view value) {
    return detail::result(host_state_set_bytes(detail::text(key), value.data(), value.size()));
}

/// Removes a key; one that is absent is no error.
inline Result remove(std::string_view key) { return detail::result(host_state_delete(detail::text(key))); }

/// The first `limit` keys that start with `prefix`, sorted by their bytes.
inline std::expected<std::vector<std::string_view>, Failure> keys(std::string_view prefix, std::uint32_t limit) {
    const char *const *found;
    std::size_t count;
    HOST_CHECK(detail::result(host_state_keys(detail::text(prefix), limit, &found, &count)));
    return std::vector<std::string_view>(found, found + count);
}

} // namespace state

/// Lines in the host's log.
namespace log {
/// Writes one line.
inline void write(host_level level, std::string_view line) { host_log(level, "%s", detail::text(line)); }
inline void trace(std::string_view line) { write(HOST_LEVEL_TRACE, line); }
inline void debug(std::string_view line) { write(HOST_LEVEL_DEBUG, line); }
inline void info(std::string_view line) { write(HOST_LEVEL_INFO, line); }
inline void warn(std::string_view line) { write(HOST_LEVEL_WARN, line); }
inline void error(std::string_view line) { write(HOST_LEVEL_ERROR, line); }
} // namespace log

/// What the handler may know of the call it is in.
namespace context {
/// The consumer group's name.
inline std::string_view group() { return host_group(); }
/// The tenant that owns the handler and the event.
inline std::optional<std::string_view> tenant() { return detail::view(host_tenant()); }
/// How long the host lets this attempt go on.
inline std::chrono::milliseconds remaining() { return std::chrono::milliseconds(host_remaining_ms()); }
/// Whether this event is a dead letter that an operator replayed.
inline bool is_replay() { return host_is_replay(); }
/// Whether this event comes after later ones were already handed to this group.
inline bool is_late() { return host_is_late(); }
} // namespace context

namespace detail {
inline host_result c(const Result &result) { return result ? host_ok() : result.error().c(); }

/// Calls it; an exception is a retry with its text.
template <typename Call> Result guarded(Call call) {
#ifdef __cpp_exceptions
    try {
        return call();
    } catch (const std::exception &exception) {
        return retry(exception.what());
    } catch (...) {
        return retry("an exception that is no std::exception");
    }
#else
    return call();
#endif
}

template <typename Handler> host_result handle(Handler handler, const host_event *event) {
    return c(guarded([&] { return Result(handler(Event(event))); }));
}

template <typename Handler> void handle_batch(Handler handler, const host_event *events, std::size_t count, host_result *results) {
    std::vector<Event> given;
    for (std::size_t i = 0; i < count; i++) given.emplace_back(&events[i]);
    Result whole = guarded([&]() -> Result {
        std::vector<Result> answers = handler(std::span<const Event>(given));
        if (answers.size() != count)
            return retry("the handler gave " + std::to_string(answers.size()) + " results for " + std::to_string(count) + " events");
        for (std::size_t i = 0; i < count; i++) results[i] = c(answers[i]);
        return {};
    });
    if (!whole)
        for (std::size_t i = 0; i < count; i++) results[i] = whole.error().c();
}
} // namespace detail

} // namespace host

/// Makes a function from `const host::Event &` to `host::Result` the handler: once in a
/// program.
#define HOST_HANDLE(function) \
    HOST_HANDLER(host_event_) { return host::detail::handle(function, host_event_); }

/// Makes a function from `std::span<const host::Event>` to `std::vector<host::Result>`,
/// one for each event, the handler of batches. `#define HOST_BATCH` before the header is
/// included, and link bindings/batch.
#define HOST_HANDLE_BATCH(function)                                                          \
    HOST_BATCH_HANDLER(host_events_, host_count_, host_results_) {                           \
        host::detail::handle_batch(function, host_events_, host_count_, host_results_);      \
    }

#endif
