/// The functions of `host.h`, the SDK for C, that a handler in D calls: as there, and said there.
///
/// Declared by hand, because D's own import of C has no preprocessor. What `host.h` has inline
/// stands here in D.
module host;

import core.stdc.string : strcmp;

extern (C):

enum host_outcome : int
{
    ok = 0,
    retry = 1,
    reject = 2,
}

/// How long to wait before the next attempt: as the handler's retry settings say.
enum ulong host_backoff = ulong.max;

struct host_result
{
    host_outcome outcome;
    const(char)* reason;
    ulong after_ms = host_backoff;
}

/// The event is done.
enum host_result done = host_result(host_outcome.ok, null, host_backoff);

struct host_extension;

struct host_event
{
    const(char)* id, source, type, subject, time, datacontenttype, dataschema, partitionkey;
    const(host_extension)* extensions;
    size_t extension_count;
    const(char)* data;
    size_t data_len;
    ulong position;
    uint attempt;
}

enum host_json_type : int
{
    null_,
    boolean,
    number,
    text,
    array,
    object,
}

struct host_json
{
    host_json_type type;
    bool boolean;
    const(char)* text;
    size_t text_len;
    size_t count;
    host_json* first;
    host_json* next;
    const(char)* name;
}

struct host_message
{
    const(char)* type, data;
    size_t data_len;
    const(char)* id, source, subject, time, datacontenttype, dataschema, partitionkey;
    const(host_extension)* extensions;
    size_t extension_count;
}

enum host_level : int
{
    trace,
    debug_,
    info,
    warn,
    error,
}

// Their place in memory is the same as in C; the C compiler asserts its half in glue.c.
static assert(host_result.sizeof == 16 && host_result.after_ms.offsetof == 8);
static assert(host_event.sizeof == 64 && host_event.position.offsetof == 48);
static assert(host_json.sizeof == 32 && host_json.name.offsetof == 28);
static assert(host_message.sizeof == 48);

host_result host_retry(ulong after_ms, const(char)* reason, ...);
host_result host_reject(const(char)* reason, ...);
const(char)* host_printf(const(char)* format, ...);
const(char)* host_quote(const(char)* text);
host_result host_event_json(const(host_event)* event, const(host_json)** value);
host_result host_emit_message(const(host_message)* message);
host_result host_state_get_int(const(char)* key, long* value);
host_result host_state_set_int(const(char)* key, long value);
void host_log(host_level level, const(char)* format, ...);

/// The member's text, or null if it is absent or no text.
const(char)* text(const(host_json)* object, const(char)* name)
{
    if (object is null || object.type != host_json_type.object)
        return null;
    const(char)* found = null;
    for (const(host_json)* member = object.first; member !is null; member = member.next)
        if (strcmp(member.name, name) == 0)
            found = member.type == host_json_type.text ? member.text : null;
    return found;
}
