/* Write event-host handlers in C. One header; for C++ see host.hpp beside it.
 *
 *     #include "host.h"
 *
 *     HOST_HANDLER(event) {
 *         const host_json *order;
 *         int64_t id, count = 0;
 *         HOST_TRY(host_event_json(event, &order));
 *         HOST_TRY(host_json_need_int(order, "id", &id));
 *         HOST_TRY(host_state_get_int("count", &count));
 *         HOST_TRY(host_state_set_int("count", count + 1));
 *         host_info("order %lld", (long long) id);
 *         return host_emit("order.seen", "{\"id\":%lld}", (long long) id);
 *     }
 *
 * The host calls the handler with one event at a time. What it emits and writes to
 * its state is kept when, and only when, it returns host_ok(), in the same
 * transaction that marks the event as done.
 *
 * Memory: everything that comes from this header (the event, texts, JSON, state)
 * lives until the call ends, and is freed then. Nothing is freed by the handler.
 * What must live longer belongs in the state.
 *
 * Texts are UTF-8 and end in a NUL. In a text that the host is given, such as a
 * type or a key, bytes that are no UTF-8 end the attempt; in a reason or a line of
 * the log they are replaced.
 *
 * Build: see README.md. With -DHOST_TEST for the machine's own compiler, the host is
 * one in memory: see host_test.h.
 */
#ifndef HOST_H
#define HOST_H

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HOST_BATCH
#include "../bindings/batch/host_bindings.h"
#else
#include "../bindings/event/host_bindings.h"
#endif

#if !defined(__wasm__) && !defined(HOST_TEST)
#error "build a handler with --target=wasm32-wasi, and its unit test with -DHOST_TEST"
#endif

#define HOST_PRINTF(format, first) __attribute__((__format__(__printf__, format, first)))
#define HOST_MUST_USE __attribute__((__warn_unused_result__))
/* One copy of these, however many files of a program include the header. */
#define HOST_SHARED __attribute__((__weak__))

#ifdef __cplusplus
#define HOST_EXTERN_C extern "C"
extern "C" {
#else
#define HOST_EXTERN_C
#endif

/* ---- What a handler gets ------------------------------------------------------ */

/* What kind of value an extension attribute has. */
typedef enum host_extension_kind {
    HOST_TEXT = 0,    /* every type but the two below, in its text form */
    HOST_BOOLEAN = 1, /* a CloudEvents Boolean */
    HOST_INTEGER = 2  /* a CloudEvents Integer: 32 bits, signed */
} host_extension_kind;

/* An extension attribute. The member that `kind` names is set. */
typedef struct host_extension {
    const char *name;
    host_extension_kind kind;
    const char *text;
    bool boolean;
    int32_t integer;
} host_extension;

/* A CloudEvents 1.0 event, with its place in the log. Texts that may be absent are
 * NULL then. */
typedef struct host_event {
    const char *id;              /* identifies the event together with `source` */
    const char *source;          /* the context in which it happened: a URI-reference */
    const char *type;            /* the kind of event */
    const char *subject;         /* what it is about, within `source`, or NULL */
    const char *time;            /* when it happened: RFC 3339 text in UTC */
    const char *datacontenttype; /* the media type of `data`; NULL: application/json */
    const char *dataschema;      /* a URI of the data's schema, or NULL */
    const char *partitionkey;    /* events of one key are ordered; or NULL */
    const host_extension *extensions; /* sorted by name, without `partitionkey` */
    size_t extension_count;
    const char *data;  /* the payload, with a NUL behind it that is no part of it */
    size_t data_len;   /* 0 when the event has none */
    uint64_t position; /* its place in the log; grows along it, with gaps */
    uint32_t attempt;  /* which call this is for this event, from 1 */
} host_event;

/* The extension attribute of this name, or NULL. */
static inline const host_extension *host_event_extension(const host_event *event, const char *name) {
    for (size_t i = 0; i < event->extension_count; i++)
        if (strcmp(event->extensions[i].name, name) == 0) return &event->extensions[i];
    return NULL;
}

/* ---- What a handler answers --------------------------------------------------- */

typedef enum host_outcome { HOST_OK = 0, HOST_RETRY = 1, HOST_REJECT = 2 } host_outcome;

/* How long to wait before the next attempt: as the handler's retry settings say. */
#define HOST_BACKOFF UINT64_MAX

/* How a call, or a function of this header, ended. */
typedef struct host_result {
    host_outcome outcome;
    const char *reason; /* why not, or NULL */
    uint64_t after_ms;  /* of HOST_RETRY: the least time to wait, or HOST_BACKOFF */
} host_result;

/* Returns from the function, with the result, unless it is host_ok(). */
#define HOST_TRY(expression)                                          \
    do {                                                              \
        host_result host_tried_ = (expression);                       \
        if (host_tried_.outcome != HOST_OK) return host_tried_;       \
    } while (0)

/* The event is done. */
static inline host_result host_ok(void) {
    host_result result = {HOST_OK, NULL, HOST_BACKOFF};
    return result;
}

/* It may work later: the host calls again, after at least so many milliseconds, until
 * the configured attempts are used up; then the event becomes a dead letter. */
host_result host_retry(uint64_t after_ms, const char *reason, ...) HOST_PRINTF(2, 3);

/* It will never work: the event becomes a dead letter at once. */
host_result host_reject(const char *reason, ...) HOST_PRINTF(1, 2);

/* ---- Memory of a call --------------------------------------------------------- */

/* Memory of zeros that lives until the call ends. Never NULL: without memory the
 * attempt ends. */
void *host_alloc(size_t size);

/* A text made as by printf, which lives until the call ends. */
const char *host_printf(const char *format, ...) HOST_PRINTF(1, 2);

/* The text as JSON, with its quotes: for JSON that is made by printf. */
const char *host_quote(const char *text);

/* ---- JSON --------------------------------------------------------------------- */

typedef enum host_json_type {
    HOST_JSON_NULL,
    HOST_JSON_BOOL,
    HOST_JSON_NUMBER,
    HOST_JSON_TEXT,
    HOST_JSON_ARRAY,
    HOST_JSON_OBJECT
} host_json_type;

/* A JSON value. Every function takes NULL for a value that is absent. */
typedef struct host_json {
    host_json_type type;
    bool boolean;            /* of a Boolean */
    const char *text;        /* of a text: decoded; of a number: as it was written */
    size_t text_len;         /* bytes of `text`, which may itself hold a NUL */
    size_t count;            /* of an array or object: its members */
    struct host_json *first; /* the first member, or NULL */
    struct host_json *next;  /* the next of the same array or object, or NULL */
    const char *name;        /* of a member of an object: its name */
} host_json;

/* Reads JSON, at most 128 levels deep. Retry, with line and column, if it is none. */
HOST_MUST_USE host_result host_json_parse(const char *text, size_t length, const host_json **value);

/* The event's data as JSON, whatever its media type says. Reject if it is none. */
HOST_MUST_USE host_result host_event_json(const host_event *event, const host_json **value);

/* The member of this name, the last if there are several, or NULL. */
static inline const host_json *host_json_get(const host_json *object, const char *name) {
    const host_json *found = NULL;
    if (object == NULL || object->type != HOST_JSON_OBJECT) return NULL;
    for (const host_json *member = object->first; member != NULL; member = member->next)
        if (strcmp(member->name, name) == 0) found = member;
    return found;
}

/* The member of this index, from 0, of an array, or NULL. */
static inline const host_json *host_json_at(const host_json *array, size_t index) {
    if (array == NULL || array->type != HOST_JSON_ARRAY) return NULL;
    const host_json *member = array->first;
    while (member != NULL && index-- > 0) member = member->next;
    return member;
}

/* Whether the value is a whole number of 64 bits, and which. */
static inline bool host_json_to_int(const host_json *value, int64_t *number) {
    if (value == NULL || value->type != HOST_JSON_NUMBER) return false;
    char *end;
    errno = 0;
    long long read = strtoll(value->text, &end, 10);
    if (errno != 0 || *end != '\0') return false;
    *number = read;
    return true;
}

/* The member's text, or `fallback` if it is absent or no text. */
static inline const char *host_json_text(const host_json *object, const char *name, const char *fallback) {
    const host_json *value = host_json_get(object, name);
    return value != NULL && value->type == HOST_JSON_TEXT ? value->text : fallback;
}

/* The member's whole number, or `fallback` if it is absent or no such number. */
static inline int64_t host_json_int(const host_json *object, const char *name, int64_t fallback) {
    int64_t number;
    return host_json_to_int(host_json_get(object, name), &number) ? number : fallback;
}

/* The member's number, or `fallback` if it is absent or no number. */
static inline double host_json_number(const host_json *object, const char *name, double fallback) {
    const host_json *value = host_json_get(object, name);
    return value != NULL && value->type == HOST_JSON_NUMBER ? strtod(value->text, NULL) : fallback;
}

/* The member's Boolean, or `fallback` if it is absent or no Boolean. */
static inline bool host_json_bool(const host_json *object, const char *name, bool fallback) {
    const host_json *value = host_json_get(object, name);
    return value != NULL && value->type == HOST_JSON_BOOL ? value->boolean : fallback;
}

/* The member's text. Reject if it is absent or no text. */
HOST_MUST_USE host_result host_json_need_text(const host_json *object, const char *name, const char **text);

/* The member's whole number. Reject if it is absent or no such number. */
HOST_MUST_USE host_result host_json_need_int(const host_json *object, const char *name, int64_t *number);

/* ---- Emitting ----------------------------------------------------------------- */

/* An event to emit. Only `type` is needed; the host fills in what is NULL: an id that
 * is the same on each attempt, the group as source, the time of the settlement, the
 * partition key of the handled event, or of a whole batch. */
typedef struct host_message {
    const char *type;
    const char *data; /* the payload, or NULL for none */
    size_t data_len;  /* its bytes; 0: up to its NUL */
    const char *id;
    const char *source;
    const char *subject;
    const char *time; /* RFC 3339 text */
    const char *datacontenttype;
    const char *dataschema;
    const char *partitionkey;
    const host_extension *extensions; /* names are lower-case letters and digits */
    size_t extension_count;
} host_message;

/* Emits an event of JSON data, made as by printf, when this call succeeds. Retry if
 * that is no JSON (host_quote makes texts safe), the type may not be emitted, or it
 * is no CloudEvent. A NULL format is an event without data. */
HOST_MUST_USE host_result host_emit(const char *type, const char *format, ...) HOST_PRINTF(2, 3);

/* Emits an event with whatever attributes and data. */
HOST_MUST_USE host_result host_emit_message(const host_message *message);

/* ---- State -------------------------------------------------------------------- */

/* The value of a key as a whole number; `value` stays as it is if the key has none.
 * State is kept as JSON text, which handlers in every language read alike. */
HOST_MUST_USE host_result host_state_get_int(const char *key, int64_t *value);
/* Gives a key a whole number. */
HOST_MUST_USE host_result host_state_set_int(const char *key, int64_t value);
/* The value of a key as JSON, or NULL if the key has none. */
HOST_MUST_USE host_result host_state_get_json(const char *key, const host_json **value);
/* Gives a key a value of JSON, made as by printf. Retry if that is no JSON. */
HOST_MUST_USE host_result host_state_set_json(const char *key, const char *format, ...) HOST_PRINTF(2, 3);
/* The value of a key as the bytes that were set, with a NUL behind them, or NULL if
 * the key has none. */
HOST_MUST_USE host_result host_state_get_bytes(const char *key, const char **value, size_t *length);
/* Gives a key a value of bytes. */
HOST_MUST_USE host_result host_state_set_bytes(const char *key, const void *value, size_t length);
/* Removes a key; one that is absent is no error. */
HOST_MUST_USE host_result host_state_delete(const char *key);
/* The first `limit` keys that start with `prefix`, sorted by their bytes. */
HOST_MUST_USE host_result host_state_keys(const char *prefix, uint32_t limit, const char *const **keys, size_t *count);

/* ---- Log and context ---------------------------------------------------------- */

typedef enum host_level {
    HOST_LEVEL_TRACE = EVENT_HOST_HANDLER_LOG_LEVEL_TRACE,
    HOST_LEVEL_DEBUG = EVENT_HOST_HANDLER_LOG_LEVEL_DEBUG,
    HOST_LEVEL_INFO = EVENT_HOST_HANDLER_LOG_LEVEL_INFO,
    HOST_LEVEL_WARN = EVENT_HOST_HANDLER_LOG_LEVEL_WARN,
    HOST_LEVEL_ERROR = EVENT_HOST_HANDLER_LOG_LEVEL_ERROR
} host_level;

/* Writes one line to the host's log, made as by printf. */
void host_log(host_level level, const char *format, ...) HOST_PRINTF(2, 3);

#define host_trace(...) host_log(HOST_LEVEL_TRACE, __VA_ARGS__)
#define host_debug(...) host_log(HOST_LEVEL_DEBUG, __VA_ARGS__)
#define host_info(...) host_log(HOST_LEVEL_INFO, __VA_ARGS__)
#define host_warn(...) host_log(HOST_LEVEL_WARN, __VA_ARGS__)
#define host_error(...) host_log(HOST_LEVEL_ERROR, __VA_ARGS__)

/* The consumer group's name. */
const char *host_group(void);
/* The tenant that owns the handler and the event, or NULL. */
const char *host_tenant(void);
/* Milliseconds until the host ends this attempt. */
static inline uint64_t host_remaining_ms(void) { return event_host_handler_context_remaining_ms(); }
/* Whether this event is a dead letter that an operator replayed. */
static inline bool host_is_replay(void) { return event_host_handler_context_is_replay(); }
/* Whether this event comes after later events of the log were already handed to this
 * group. */
static inline bool host_is_late(void) { return event_host_handler_context_is_late(); }

/* ---- The handler -------------------------------------------------------------- */

/* HOST_HANDLER(event) { ... return host_ok(); }
 *
 * Defines the handler: once in a program. `event` is a const host_event *.
 *
 * HOST_BATCH_HANDLER(events, count, results) { ... }
 *
 * Defines a handler of batches instead; `#define HOST_BATCH` before the header is
 * included, and link bindings/batch. `events` are `count` events in the order of the
 * log, and results[i] is to be the result of events[i]. What is emitted and written
 * belongs to all of them: it is kept when every result is host_ok(). Else nothing of
 * the call counts, and the same events come again one by one.
 */
#ifdef HOST_BATCH
#define HOST_BATCH_HANDLER(events, count, results)                                                   \
    static void host_handler_(const host_event *, size_t, host_result *);                            \
    HOST_EXTERN_C void host_handle_batch_(const host_event *all, size_t number, host_result *each) { \
        host_handler_(all, number, each);                                                            \
    }                                                                                                \
    HOST_EXPORTS_                                                                                    \
    static void host_handler_(const host_event *events, size_t count, host_result *results)
HOST_EXTERN_C void host_handle_batch_(const host_event *events, size_t count, host_result *results);
#else
#define HOST_HANDLER(event)                                             \
    static host_result host_handler_(const host_event *);               \
    HOST_EXTERN_C host_result host_handle_(const host_event *given) {   \
        return host_handler_(given);                                    \
    }                                                                   \
    HOST_EXPORTS_                                                       \
    static host_result host_handler_(const host_event *event)
HOST_EXTERN_C host_result host_handle_(const host_event *event);
#endif

/* ==== Implementation ===========================================================
 *
 * Nothing below is for handlers. */

#ifdef __wasm__
/* Names an export of the module. */
#define HOST_EXPORT_(name) __attribute__((__export_name__(name)))
#else
#define HOST_EXPORT_(name)
#endif

/* An arena: blocks in a list, the newest first. */
typedef struct host_block_ {
    struct host_block_ *older;
    size_t size; /* bytes behind this header */
    size_t used;
} host_block_;

HOST_SHARED host_block_ *host_arena_ = NULL;

/* A block of this size stays when the arena is emptied, so that most calls allocate
 * nothing. It holds a common event and what is made of it. */
#define HOST_BLOCK_ ((size_t) 16 * 1024)

HOST_SHARED void *host_arena_take_(size_t size, size_t align) {
    for (;;) {
        host_block_ *block = host_arena_;
        if (block != NULL) {
            uintptr_t start = (uintptr_t) (block + 1);
            uintptr_t place = (start + block->used + align - 1) & ~(uintptr_t) (align - 1);
            size_t offset = place - start;
            if (offset <= block->size && size <= block->size - offset) {
                block->used = offset + size;
                return (void *) place;
            }
        }
        size_t wanted = size > SIZE_MAX - align ? SIZE_MAX : size + align;
        if (wanted < HOST_BLOCK_) wanted = HOST_BLOCK_;
        block = wanted > SIZE_MAX - sizeof(host_block_) ? NULL : (host_block_ *) malloc(sizeof(host_block_) + wanted);
        if (block == NULL) {
            fputs("out of memory\n", stderr);
            abort();
        }
        block->older = host_arena_;
        block->size = wanted;
        block->used = 0;
        host_arena_ = block;
    }
}

/* Frees everything of a call. */
HOST_SHARED void host_arena_empty_(void) {
    host_block_ *kept = NULL;
    while (host_arena_ != NULL) {
        host_block_ *block = host_arena_;
        host_arena_ = block->older;
        if (kept == NULL && block->size == HOST_BLOCK_) {
            kept = block;
        } else {
            free(block);
        }
    }
    if (kept != NULL) {
        kept->older = NULL;
        kept->used = 0;
        host_arena_ = kept;
    }
}

HOST_SHARED void *host_alloc(size_t size) {
    return memset(host_arena_take_(size, 16), 0, size);
}

/* Where the host puts what it gives. A zero byte is put behind it, so that a text of
 * the host's is one of C's. */
HOST_SHARED void *host_receive_(void *old, size_t old_size, size_t align, size_t size) {
    if (size == SIZE_MAX) abort();
    char *place = (char *) host_arena_take_(size + 1, align);
    if (old_size > 0) memcpy(place, old, old_size < size ? old_size : size);
    place[size] = '\0';
    return place;
}

/* The exports that stand in for those of the bindings, which are weak. Memory that
 * WASI's adapter takes lives as long as the instance, so it comes from malloc. */
#ifdef __wasm__
#ifdef HOST_BATCH
#define HOST_POST_RETURN_                                                                              \
    HOST_EXPORT_("cabi_post_event-host:handler/batch-handler@0.1.0#handle-batch")                      \
    void __wasm_export_exports_event_host_handler_batch_handler_handle_batch_post_return(uint8_t *r) { \
        (void) r;                                                                                      \
        host_arena_empty_();                                                                           \
    }
#else
#define HOST_POST_RETURN_                                                                   \
    HOST_EXPORT_("cabi_post_event-host:handler/handler@0.1.0#handle")                       \
    void __wasm_export_exports_event_host_handler_handler_handle_post_return(uint8_t *r) {  \
        (void) r;                                                                           \
        host_arena_empty_();                                                                \
    }
#endif
#ifdef __cplusplus
#define HOST_OPEN_ extern "C" {
#define HOST_CLOSE_ }
#else
#define HOST_OPEN_
#define HOST_CLOSE_
#endif
#define HOST_EXPORTS_                                                                      \
    HOST_OPEN_                                                                             \
    HOST_EXPORT_("cabi_realloc")                                                           \
    void *cabi_realloc(void *old, size_t old_size, size_t align, size_t size) {            \
        return host_receive_(old, old_size, align, size);                                  \
    }                                                                                      \
    HOST_EXPORT_("cabi_realloc_adapter")                                                   \
    void *cabi_realloc_adapter(void *old, size_t old_size, size_t align, size_t size) {    \
        (void) old;                                                                        \
        (void) old_size;                                                                   \
        size_t rounded = (size + align - 1) & ~(align - 1);                                \
        void *place = aligned_alloc(align < sizeof(void *) ? sizeof(void *) : align,       \
                                    rounded < sizeof(void *) ? sizeof(void *) : rounded);  \
        if (place == NULL) abort();                                                        \
        return place;                                                                      \
    }                                                                                      \
    HOST_POST_RETURN_                                                                      \
    HOST_CLOSE_
#else
#define HOST_EXPORTS_
#endif

/* How many bytes the UTF-8 sequence at `text` has, or 0 if it is none. */
static inline size_t host_utf8_length_(const uint8_t *text, size_t left) {
    uint8_t first = text[0];
    if (first < 0x80) return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length > left) return 0;
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < low || text[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    return length;
}

/* The text, with U+FFFD for each byte that is no UTF-8. */
HOST_SHARED const char *host_lossy_(const char *text) {
    size_t length = strlen(text), bad = 0;
    const uint8_t *bytes = (const uint8_t *) text;
    for (size_t i = 0; i < length;) {
        size_t step = host_utf8_length_(bytes + i, length - i);
        if (step == 0) bad++;
        i += step == 0 ? 1 : step;
    }
    if (bad == 0) return text;
    char *clean = (char *) host_arena_take_(length + 2 * bad + 1, 1), *end = clean;
    for (size_t i = 0; i < length;) {
        size_t step = host_utf8_length_(bytes + i, length - i);
        memcpy(end, step == 0 ? "\xEF\xBF\xBD" : text + i, step == 0 ? 3 : step);
        end += step == 0 ? 3 : step;
        i += step == 0 ? 1 : step;
    }
    *end = '\0';
    return clean;
}

HOST_SHARED const char *host_vprintf_(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) {
        fprintf(stderr, "the format `%s` cannot be printed\n", format);
        abort();
    }
    char *text = (char *) host_arena_take_((size_t) length + 1, 1);
    vsnprintf(text, (size_t) length + 1, format, arguments);
    return text;
}

HOST_SHARED const char *host_printf(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = host_vprintf_(format, arguments);
    va_end(arguments);
    return text;
}

HOST_SHARED host_result host_retry(uint64_t after_ms, const char *reason, ...) {
    va_list arguments;
    va_start(arguments, reason);
    host_result result = {HOST_RETRY, host_lossy_(host_vprintf_(reason, arguments)), after_ms};
    va_end(arguments);
    return result;
}

HOST_SHARED host_result host_reject(const char *reason, ...) {
    va_list arguments;
    va_start(arguments, reason);
    host_result result = {HOST_REJECT, host_lossy_(host_vprintf_(reason, arguments)), HOST_BACKOFF};
    va_end(arguments);
    return result;
}

HOST_SHARED const char *host_quote(const char *text) {
    static const char digits[] = "0123456789abcdef";
    text = host_lossy_(text);
    char *quoted = (char *) host_arena_take_(strlen(text) * 6 + 3, 1), *end = quoted;
    *end++ = '"';
    for (const char *next = text; *next != '\0'; next++) {
        unsigned char byte = (unsigned char) *next;
        if (byte == '"' || byte == '\\') {
            *end++ = '\\';
            *end++ = (char) byte;
        } else if (byte == '\n' || byte == '\r' || byte == '\t') {
            *end++ = '\\';
            *end++ = byte == '\n' ? 'n' : byte == '\r' ? 'r' : 't';
        } else if (byte < 0x20) {
            memcpy(end, "\\u00", 4);
            end[4] = digits[byte >> 4];
            end[5] = digits[byte & 15];
            end += 6;
        } else {
            *end++ = (char) byte;
        }
    }
    *end++ = '"';
    *end = '\0';
    return quoted;
}

/* ---- Reading JSON */

typedef struct host_reader_ {
    const char *text;
    size_t length;
    size_t at;
    bool keep; /* whether values are made, or the text is only checked */
    const char *problem;
} host_reader_;

#define HOST_DEEPEST_ 128

static inline int host_peek_(const host_reader_ *reader) {
    return reader->at < reader->length ? (unsigned char) reader->text[reader->at] : -1;
}

static inline bool host_wrong_(host_reader_ *reader, const char *problem) {
    if (reader->problem == NULL) reader->problem = problem;
    return false;
}

static inline void host_skip_(host_reader_ *reader) {
    int next = host_peek_(reader);
    while (next == ' ' || next == '\t' || next == '\n' || next == '\r') {
        reader->at++;
        next = host_peek_(reader);
    }
}

static inline bool host_read_hex_(host_reader_ *reader, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int next = host_peek_(reader), digit;
        if (next >= '0' && next <= '9') digit = next - '0';
        else if (next >= 'a' && next <= 'f') digit = next - 'a' + 10;
        else if (next >= 'A' && next <= 'F') digit = next - 'A' + 10;
        else return host_wrong_(reader, "\\u without four hexadecimal digits");
        *unit = *unit * 16 + (uint32_t) digit;
        reader->at++;
    }
    return true;
}

/* Reads what follows a backslash, as UTF-8. */
static inline bool host_read_escape_(host_reader_ *reader, char **end) {
    int kind = host_peek_(reader);
    reader->at++;
    switch (kind) {
        case '"': case '\\': case '/': *(*end)++ = (char) kind; return true;
        case 'b': *(*end)++ = '\b'; return true;
        case 'f': *(*end)++ = '\f'; return true;
        case 'n': *(*end)++ = '\n'; return true;
        case 'r': *(*end)++ = '\r'; return true;
        case 't': *(*end)++ = '\t'; return true;
        case 'u': break;
        default: reader->at--; return host_wrong_(reader, "an unknown escape");
    }
    uint32_t code, low;
    if (!host_read_hex_(reader, &code)) return false;
    if (code >= 0xDC00 && code <= 0xDFFF) return host_wrong_(reader, "half of a surrogate pair");
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (host_peek_(reader) != '\\') return host_wrong_(reader, "half of a surrogate pair");
        reader->at++;
        if (host_peek_(reader) != 'u') return host_wrong_(reader, "half of a surrogate pair");
        reader->at++;
        if (!host_read_hex_(reader, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return host_wrong_(reader, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code < 0x80) {
        *(*end)++ = (char) code;
    } else if (code < 0x800) {
        *(*end)++ = (char) (0xC0 | (code >> 6));
        *(*end)++ = (char) (0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *(*end)++ = (char) (0xE0 | (code >> 12));
        *(*end)++ = (char) (0x80 | ((code >> 6) & 0x3F));
        *(*end)++ = (char) (0x80 | (code & 0x3F));
    } else {
        *(*end)++ = (char) (0xF0 | (code >> 18));
        *(*end)++ = (char) (0x80 | ((code >> 12) & 0x3F));
        *(*end)++ = (char) (0x80 | ((code >> 6) & 0x3F));
        *(*end)++ = (char) (0x80 | (code & 0x3F));
    }
    return true;
}

/* Reads a text, from its opening quote. */
HOST_SHARED bool host_read_text_(host_reader_ *reader, const char **text, size_t *length) {
    reader->at++;
    size_t close = reader->at;
    while (close < reader->length && reader->text[close] != '"') close += reader->text[close] == '\\' ? 2 : 1;
    /* An escape never gets longer when it is decoded. */
    char scratch[16], *start = scratch, *end;
    if (reader->keep) start = (char *) host_arena_take_(close - reader->at + 1, 1);
    end = start;
    for (;;) {
        if (!reader->keep) end = scratch;
        int next = host_peek_(reader);
        if (next < 0) return host_wrong_(reader, "a text without an end");
        if (next < 0x20) return host_wrong_(reader, "a control character in a text");
        if (next == '"') break;
        if (next == '\\') {
            reader->at++;
            if (!host_read_escape_(reader, &end)) return false;
            continue;
        }
        size_t step = host_utf8_length_((const uint8_t *) reader->text + reader->at, reader->length - reader->at);
        if (step == 0) return host_wrong_(reader, "a text that is no UTF-8");
        memcpy(end, reader->text + reader->at, step);
        end += step;
        reader->at += step;
    }
    reader->at++;
    *end = '\0';
    *text = start;
    *length = (size_t) (end - start);
    return true;
}

static inline bool host_read_digits_(host_reader_ *reader) {
    size_t start = reader->at;
    while (host_peek_(reader) >= '0' && host_peek_(reader) <= '9') reader->at++;
    return reader->at > start || host_wrong_(reader, "a number without a digit");
}

static inline bool host_read_number_(host_reader_ *reader, host_json *value) {
    size_t start = reader->at;
    if (host_peek_(reader) == '-') reader->at++;
    if (host_peek_(reader) == '0') reader->at++;
    else if (!host_read_digits_(reader)) return false;
    if (host_peek_(reader) == '.') {
        reader->at++;
        if (!host_read_digits_(reader)) return false;
    }
    if (host_peek_(reader) == 'e' || host_peek_(reader) == 'E') {
        reader->at++;
        if (host_peek_(reader) == '+' || host_peek_(reader) == '-') reader->at++;
        if (!host_read_digits_(reader)) return false;
    }
    value->type = HOST_JSON_NUMBER;
    value->text_len = reader->at - start;
    if (reader->keep) {
        char *text = (char *) host_arena_take_(value->text_len + 1, 1);
        memcpy(text, reader->text + start, value->text_len);
        text[value->text_len] = '\0';
        value->text = text;
    }
    return true;
}

static inline bool host_read_word_(host_reader_ *reader, const char *word) {
    size_t length = strlen(word);
    if (reader->length - reader->at < length || memcmp(reader->text + reader->at, word, length) != 0)
        return host_wrong_(reader, "something that is no JSON value");
    reader->at += length;
    return true;
}

HOST_SHARED bool host_read_value_(host_reader_ *reader, host_json *value, int depth) {
    host_skip_(reader);
    int open = host_peek_(reader);
    switch (open) {
        case -1: return host_wrong_(reader, "the end where a value was wanted");
        case 'n': value->type = HOST_JSON_NULL; return host_read_word_(reader, "null");
        case 't': value->type = HOST_JSON_BOOL; value->boolean = true; return host_read_word_(reader, "true");
        case 'f': value->type = HOST_JSON_BOOL; return host_read_word_(reader, "false");
        case '"': value->type = HOST_JSON_TEXT; return host_read_text_(reader, &value->text, &value->text_len);
        case '[': value->type = HOST_JSON_ARRAY; break;
        case '{': value->type = HOST_JSON_OBJECT; break;
        default:
            if (open == '-' || (open >= '0' && open <= '9')) return host_read_number_(reader, value);
            return host_wrong_(reader, "something that is no JSON value");
    }
    if (depth == HOST_DEEPEST_) return host_wrong_(reader, "more than 128 levels");
    int close = open == '[' ? ']' : '}';
    host_json **link = &value->first;
    reader->at++;
    host_skip_(reader);
    if (host_peek_(reader) == close) {
        reader->at++;
        return true;
    }
    for (;;) {
        host_json scratch, *member = &scratch;
        if (reader->keep) member = (host_json *) host_alloc(sizeof(host_json));
        else memset(&scratch, 0, sizeof scratch);
        if (open == '{') {
            size_t length;
            host_skip_(reader);
            if (host_peek_(reader) != '"') return host_wrong_(reader, "a member without a name");
            if (!host_read_text_(reader, &member->name, &length)) return false;
            host_skip_(reader);
            if (host_peek_(reader) != ':') return host_wrong_(reader, "a name without a colon");
            reader->at++;
        }
        if (!host_read_value_(reader, member, depth + 1)) return false;
        if (reader->keep) {
            *link = member;
            link = &member->next;
        }
        value->count++;
        host_skip_(reader);
        int next = host_peek_(reader);
        if (next != ',' && next != close) return host_wrong_(reader, next < 0 ? "the end where a comma or a bracket was wanted" : "a value without a comma behind it");
        reader->at++;
        if (next == close) return true;
    }
}

/* Reads JSON, or, with a NULL value, checks it. Gives what is wrong, or NULL. */
HOST_SHARED const char *host_json_problem_(const char *text, size_t length, host_json *value) {
    host_json scratch;
    memset(&scratch, 0, sizeof scratch);
    host_reader_ reader = {text, length, 0, value != NULL, NULL};
    if (host_read_value_(&reader, value != NULL ? value : &scratch, 0)) {
        host_skip_(&reader);
        if (reader.at == length) return NULL;
        host_wrong_(&reader, "something behind the value");
    }
    size_t line = 1, column = 1;
    for (size_t i = 0; i < reader.at && i < length; i++) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    return host_printf("%s at line %zu column %zu", reader.problem, line, column);
}

HOST_SHARED host_result host_json_parse(const char *text, size_t length, const host_json **value) {
    host_json *read = (host_json *) host_alloc(sizeof(host_json));
    const char *problem = host_json_problem_(text, length, read);
    *value = problem == NULL ? read : NULL;
    return problem == NULL ? host_ok() : host_retry(HOST_BACKOFF, "no JSON: %s", problem);
}

HOST_SHARED host_result host_event_json(const host_event *event, const host_json **value) {
    *value = NULL;
    if (event->data_len == 0) return host_reject("the event has no data");
    host_json *read = (host_json *) host_alloc(sizeof(host_json));
    const char *problem = host_json_problem_(event->data, event->data_len, read);
    if (problem != NULL) return host_reject("the data is not the JSON that this handler takes: %s", problem);
    *value = read;
    return host_ok();
}

HOST_SHARED host_result host_json_need_text(const host_json *object, const char *name, const char **text) {
    *text = host_json_text(object, name, NULL);
    if (*text != NULL) return host_ok();
    return host_reject("the data is not the JSON that this handler takes: `%s` is %s", name,
                       host_json_get(object, name) == NULL ? "missing" : "no text");
}

HOST_SHARED host_result host_json_need_int(const host_json *object, const char *name, int64_t *number) {
    const host_json *value = host_json_get(object, name);
    if (host_json_to_int(value, number)) return host_ok();
    return host_reject("the data is not the JSON that this handler takes: `%s` is %s", name,
                       value == NULL ? "missing" : "no whole number of 64 bits");
}

/* ---- The host's functions, in C's own types */

static inline host_bindings_string_t host_out_(const char *text) {
    host_bindings_string_t out = {(uint8_t *) text, strlen(text)};
    return out;
}

static inline host_bindings_option_string_t host_out_option_(const char *text) {
    host_bindings_option_string_t out;
    memset(&out, 0, sizeof out);
    out.is_some = text != NULL;
    if (text != NULL) out.val = host_out_(text);
    return out;
}

/* A text of the host's has a NUL behind it, but for an empty one, which may be
 * nowhere. */
static inline const char *host_in_(host_bindings_string_t text) {
    return text.len == 0 ? "" : (const char *) text.ptr;
}

static inline const char *host_in_option_(host_bindings_option_string_t text) {
    return text.is_some ? host_in_(text.val) : NULL;
}

HOST_SHARED host_result host_emit_message(const host_message *message) {
    event_host_handler_outbox_message_t out;
    event_host_handler_outbox_emit_error_t error;
    memset(&out, 0, sizeof out);
    out.type = host_out_(message->type == NULL ? "" : message->type);
    out.data.ptr = (uint8_t *) message->data;
    out.data.len = message->data == NULL ? 0 : message->data_len == 0 ? strlen(message->data) : message->data_len;
    out.id = host_out_option_(message->id);
    out.source = host_out_option_(message->source);
    out.subject = host_out_option_(message->subject);
    out.time = host_out_option_(message->time);
    out.datacontenttype = host_out_option_(message->datacontenttype);
    out.dataschema = host_out_option_(message->dataschema);
    out.partitionkey = host_out_option_(message->partitionkey);
    size_t count = message->extension_count;
    if (count > 0) {
        out.extensions.ptr = (event_host_handler_outbox_tuple2_string_extension_value_t *) host_alloc(count * sizeof *out.extensions.ptr);
        out.extensions.len = count;
    }
    for (size_t i = 0; i < count; i++) {
        const host_extension *from = &message->extensions[i];
        event_host_handler_outbox_tuple2_string_extension_value_t *to = &out.extensions.ptr[i];
        to->f0 = host_out_(from->name);
        if (from->kind == HOST_BOOLEAN) {
            to->f1.tag = EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_BOOLEAN;
            to->f1.val.boolean = from->boolean;
        } else if (from->kind == HOST_INTEGER) {
            to->f1.tag = EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_INTEGER;
            to->f1.val.integer = from->integer;
        } else {
            to->f1.tag = EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_TEXT;
            to->f1.val.text = host_out_(from->text == NULL ? "" : from->text);
        }
    }
    if (event_host_handler_outbox_emit(&out, &error)) return host_ok();
    if (error.tag == EVENT_HOST_HANDLER_OUTBOX_EMIT_ERROR_INVALID)
        return host_retry(HOST_BACKOFF, "cannot emit an invalid event: %s", host_in_(error.val.invalid));
    if (error.tag == EVENT_HOST_HANDLER_OUTBOX_EMIT_ERROR_DENIED)
        return host_retry(HOST_BACKOFF, "not allowed to emit: %s", host_in_(error.val.denied));
    return host_retry(HOST_BACKOFF, "cannot emit: %s", host_in_(error.val.other));
}

HOST_SHARED host_result host_emit(const char *type, const char *format, ...) {
    host_message message;
    memset(&message, 0, sizeof message);
    message.type = type;
    if (format != NULL) {
        va_list arguments;
        va_start(arguments, format);
        message.data = host_vprintf_(format, arguments);
        va_end(arguments);
        message.datacontenttype = "application/json";
        const char *problem = host_json_problem_(message.data, strlen(message.data), NULL);
        if (problem != NULL) return host_retry(HOST_BACKOFF, "cannot emit an invalid event: the data of `%s` is no JSON: %s", type, problem);
    }
    return host_emit_message(&message);
}

HOST_SHARED host_result host_state_failed_(event_host_handler_state_state_error_t error) {
    if (error.tag == EVENT_HOST_HANDLER_STATE_STATE_ERROR_INVALID_KEY)
        return host_retry(HOST_BACKOFF, "not a key of the state: %s", host_in_(error.val.invalid_key));
    return host_retry(HOST_BACKOFF, "the state is not available: %s", host_in_(error.val.other));
}

HOST_SHARED host_result host_state_get_bytes(const char *key, const char **value, size_t *length) {
    host_bindings_string_t name = host_out_(key);
    host_bindings_option_list_u8_t found;
    event_host_handler_state_state_error_t error;
    *value = NULL;
    *length = 0;
    if (!event_host_handler_state_get(&name, &found, &error)) return host_state_failed_(error);
    if (found.is_some) {
        *value = found.val.len == 0 ? "" : (const char *) found.val.ptr;
        *length = found.val.len;
    }
    return host_ok();
}

HOST_SHARED host_result host_state_set_bytes(const char *key, const void *value, size_t length) {
    host_bindings_string_t name = host_out_(key);
    host_bindings_list_u8_t bytes = {(uint8_t *) value, length};
    event_host_handler_state_state_error_t error;
    return event_host_handler_state_set(&name, &bytes, &error) ? host_ok() : host_state_failed_(error);
}

HOST_SHARED host_result host_state_get_json(const char *key, const host_json **value) {
    const char *bytes;
    size_t length;
    *value = NULL;
    HOST_TRY(host_state_get_bytes(key, &bytes, &length));
    if (bytes == NULL) return host_ok();
    host_json *read = (host_json *) host_alloc(sizeof(host_json));
    const char *problem = host_json_problem_(bytes, length, read);
    if (problem != NULL)
        return host_retry(HOST_BACKOFF, "the state's `%s` is not the JSON that this handler takes: %s", key, problem);
    *value = read;
    return host_ok();
}

HOST_SHARED host_result host_state_set_json(const char *key, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = host_vprintf_(format, arguments);
    va_end(arguments);
    const char *problem = host_json_problem_(text, strlen(text), NULL);
    if (problem != NULL) return host_retry(HOST_BACKOFF, "the new value of the state's `%s` is no JSON: %s", key, problem);
    return host_state_set_bytes(key, text, strlen(text));
}

HOST_SHARED host_result host_state_get_int(const char *key, int64_t *value) {
    const host_json *read;
    HOST_TRY(host_state_get_json(key, &read));
    if (read == NULL || host_json_to_int(read, value)) return host_ok();
    return host_retry(HOST_BACKOFF, "the state's `%s` is not the JSON that this handler takes: no whole number of 64 bits", key);
}

HOST_SHARED host_result host_state_set_int(const char *key, int64_t value) {
    const char *text = host_printf("%" PRId64, value);
    return host_state_set_bytes(key, text, strlen(text));
}

HOST_SHARED host_result host_state_delete(const char *key) {
    host_bindings_string_t name = host_out_(key);
    event_host_handler_state_state_error_t error;
    return event_host_handler_state_delete(&name, &error) ? host_ok() : host_state_failed_(error);
}

HOST_SHARED host_result host_state_keys(const char *prefix, uint32_t limit, const char *const **keys, size_t *count) {
    host_bindings_string_t start = host_out_(prefix);
    host_bindings_list_string_t found;
    event_host_handler_state_state_error_t error;
    *keys = NULL;
    *count = 0;
    if (!event_host_handler_state_keys(&start, limit, &found, &error)) return host_state_failed_(error);
    const char **texts = (const char **) host_alloc(found.len * sizeof *texts);
    for (size_t i = 0; i < found.len; i++) texts[i] = host_in_(found.ptr[i]);
    *keys = (const char *const *) texts;
    *count = found.len;
    return host_ok();
}

HOST_SHARED void host_log(host_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    host_bindings_string_t line = host_out_(host_lossy_(host_vprintf_(format, arguments)));
    va_end(arguments);
    event_host_handler_log_log((event_host_handler_log_level_t) level, &line);
}

HOST_SHARED const char *host_group(void) {
    host_bindings_string_t name;
    event_host_handler_context_group(&name);
    return host_in_(name);
}

HOST_SHARED const char *host_tenant(void) {
    host_bindings_string_t name;
    event_host_handler_context_tenant(&name);
    return name.len == 0 ? NULL : host_in_(name);
}

/* ---- From the export to the handler and back */

static inline void host_event_in_(const event_host_handler_types_event_t *from, host_event *to) {
    to->id = host_in_(from->id);
    to->source = host_in_(from->source);
    to->type = host_in_(from->type);
    to->subject = host_in_option_(from->subject);
    to->time = host_in_(from->time);
    to->datacontenttype = host_in_option_(from->datacontenttype);
    to->dataschema = host_in_option_(from->dataschema);
    to->partitionkey = host_in_option_(from->partitionkey);
    to->data = from->data.len == 0 ? "" : (const char *) from->data.ptr;
    to->data_len = from->data.len;
    to->position = from->position;
    to->attempt = from->attempt;
    size_t count = from->extensions.len;
    host_extension *extensions = (host_extension *) host_alloc(count * sizeof(host_extension));
    for (size_t i = 0; i < count; i++) {
        const event_host_handler_types_extension_value_t *value = &from->extensions.ptr[i].f1;
        extensions[i].name = host_in_(from->extensions.ptr[i].f0);
        if (value->tag == EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_BOOLEAN) {
            extensions[i].kind = HOST_BOOLEAN;
            extensions[i].boolean = value->val.boolean;
        } else if (value->tag == EVENT_HOST_HANDLER_TYPES_EXTENSION_VALUE_INTEGER) {
            extensions[i].kind = HOST_INTEGER;
            extensions[i].integer = value->val.integer;
        } else {
            extensions[i].kind = HOST_TEXT;
            extensions[i].text = host_in_(value->val.text);
        }
    }
    to->extensions = extensions;
    to->extension_count = count;
}

/* Whether it was a success; else the failure is put out. */
static inline bool host_result_out_(host_result from, event_host_handler_types_failure_t *to) {
    if (from.outcome == HOST_OK) return true;
    memset(to, 0, sizeof *to);
    host_bindings_string_t reason = host_out_(from.reason == NULL ? "" : from.reason);
    if (from.outcome == HOST_REJECT) {
        to->tag = EVENT_HOST_HANDLER_TYPES_FAILURE_REJECT;
        to->val.reject = reason;
    } else {
        to->tag = EVENT_HOST_HANDLER_TYPES_FAILURE_RETRY;
        to->val.retry.reason = reason;
        to->val.retry.after_ms.is_some = from.after_ms != HOST_BACKOFF;
        to->val.retry.after_ms.val = from.after_ms;
    }
    return false;
}

#ifdef __wasm__
#ifdef HOST_BATCH
HOST_SHARED void exports_event_host_handler_batch_handler_handle_batch(
    exports_event_host_handler_batch_handler_list_event_t *given,
    exports_event_host_handler_batch_handler_list_result_void_failure_t *answer) {
    size_t count = given->len;
    host_event *events = (host_event *) host_alloc(count * sizeof(host_event));
    host_result *results = (host_result *) host_alloc(count * sizeof(host_result));
    host_result none = host_retry(HOST_BACKOFF, "the handler gave this event no result");
    for (size_t i = 0; i < count; i++) {
        host_event_in_(&given->ptr[i], &events[i]);
        results[i] = none;
    }
    host_handle_batch_(events, count, results);
    answer->len = count;
    answer->ptr = (exports_event_host_handler_batch_handler_result_void_failure_t *) host_alloc(count * sizeof *answer->ptr);
    for (size_t i = 0; i < count; i++) answer->ptr[i].is_err = !host_result_out_(results[i], &answer->ptr[i].val.err);
}
#else
HOST_SHARED bool exports_event_host_handler_handler_handle(exports_event_host_handler_handler_event_t *given,
                                                           exports_event_host_handler_handler_failure_t *failure) {
    host_event event;
    host_event_in_(given, &event);
    return host_result_out_(host_handle_(&event), failure);
}
#endif
#endif

#ifdef __cplusplus
}
#endif

#ifdef HOST_TEST
#include "host_test.h"
#endif

#endif
