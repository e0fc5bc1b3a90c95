// The parts of tidegate.h that are no inline functions: memory, texts, JSON, the host's functions,
// and the forms of answers.

#include "tidegate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// The layout of these structs is the contract's. Sizes and places are those of the canonical ABI.
#define TG_PLACE(type, field, place) \
    _Static_assert(offsetof(type, field) == (place), "the contract has another layout")
#define TG_SIZE(type, size) \
    _Static_assert(sizeof(type) == (size), "the contract has another layout")
TG_SIZE(tg_string, 8);
TG_SIZE(tg_attribute, 16);
TG_SIZE(tg_maybe_u16, 4);
TG_SIZE(tg_failure, 72);
TG_PLACE(tg_failure, not_before, 56);
TG_SIZE(tg_job, 136);
TG_PLACE(tg_job, created_at, 40);
TG_PLACE(tg_job, earlier, 124);
TG_SIZE(tg_running_job, 48);
TG_PLACE(tg_running_job, attributes, 28);
TG_SIZE(tg_ended, 128);
TG_PLACE(tg_ended, not_before, 112);
TG_SIZE(tg_local_time, 12);
TG_SIZE(tg_shown, 20);
TG_SIZE(tg_group, 24);
TG_SIZE(tg_waiting_group, 40);
TG_PLACE(tg_waiting_group, at_least, 32);
TG_SIZE(tg_maybe_waiting_group, 48);
TG_SIZE(tg_decision, 40);
TG_PLACE(tg_decision, reason, 24);
TG_SIZE(tg_plan, 80);
TG_PLACE(tg_plan, timeout, 48);
TG_PLACE(tg_plan, target, 64);
TG_SIZE(tg_verdict, 96);
TG_PLACE(tg_verdict, of, 8);

// Memory
// ------

#define TG_CHUNK 65536
#define TG_ALIGNMENT 16

static char *tg_free_memory;
static size_t tg_free_bytes;

void *tg_alloc(size_t size) {
    if (size > SIZE_MAX - TG_ALIGNMENT) abort();
    size = (size + TG_ALIGNMENT - 1) & ~(size_t)(TG_ALIGNMENT - 1);
    if (size > tg_free_bytes) {
        size_t chunk = size > TG_CHUNK ? size : TG_CHUNK;
        tg_free_memory = malloc(chunk);
        if (tg_free_memory == NULL) abort();
        tg_free_bytes = chunk;
    }
    char *memory = tg_free_memory;
    tg_free_memory += size;
    tg_free_bytes -= size;
    return memory;
}

/// Memory for `count` values. Traps if there is none left.
static void *tg_alloc_array(size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) abort();
    return tg_alloc(count * size);
}

/// The memory into which the host writes its arguments and results.
__attribute__((export_name("cabi_realloc"))) void *tg_realloc(void *old, size_t old_size,
                                                              size_t alignment, size_t size) {
    (void)alignment;
    if (size <= old_size) return old;
    void *memory = tg_alloc(size);
    if (old_size != 0) memcpy(memory, old, old_size);
    return memory;
}

// Texts
// -----

/// The bytes of the letter at the start of a text. 0 if they are not UTF-8.
static size_t tg_letter(const unsigned char *text, size_t len) {
    unsigned char first = text[0];
    if (first < 0x80) return 1;
    size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (first < 0xC2 || first > 0xF4 || len < size) return 0;
    // Longer forms than necessary, halves of surrogate pairs and what is behind the last letter.
    unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < least || text[1] > most) return 0;
    for (size_t i = 2; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    return size;
}

/// Replaces each byte that is not UTF-8 by a question mark. The host refuses other texts.
static void tg_mend(char *text, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t letter = tg_letter((unsigned char *)text + i, len - i);
        if (letter == 0) text[i] = '?';
        i += letter == 0 ? 1 : letter;
    }
}

tg_string tg_copy(const char *start, size_t len) {
    char *copy = tg_alloc(len + 1);
    if (len != 0) memcpy(copy, start, len);
    copy[len] = '\0';
    tg_mend(copy, len);
    tg_string text = {copy, len};
    return text;
}

static tg_string tg_formatted(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    // A text that fits is written where `tg_alloc` will return memory.
    size_t room = tg_free_bytes;
    int len = vsnprintf(tg_free_memory, room, format, arguments);
    tg_string text = {"", 0};
    if (len >= 0) {
        char *memory = tg_alloc((size_t)len + 1);
        if ((size_t)len >= room) vsnprintf(memory, (size_t)len + 1, format, again);
        tg_mend(memory, (size_t)len);
        text.ptr = memory;
        text.len = (size_t)len;
    }
    va_end(again);
    return text;
}

/// Defines `text` as the text of a function's last parameters.
#define TG_FORMATTED(text, format)                    \
    va_list arguments;                                \
    va_start(arguments, format);                      \
    tg_string text = tg_formatted(format, arguments); \
    va_end(arguments)

tg_string tg_format(const char *format, ...) {
    TG_FORMATTED(text, format);
    return text;
}

const tg_string *tg_attribute_of(tg_attributes attributes, const char *name) {
    tg_string wanted = tg_str(name);
    for (size_t i = 0; i < attributes.len; i++) {
        if (tg_same(attributes.ptr[i].name, wanted)) return &attributes.ptr[i].value;
    }
    return NULL;
}

// JSON
// ----

#define TG_JSON_DEPTH 128

/// What is left of a JSON text.
typedef struct tg_reader {
    const char *at;
    const char *end;
    unsigned depth;
} tg_reader;

static char tg_peek(const tg_reader *reader) {
    return reader->at < reader->end ? *reader->at : '\0';
}

static void tg_skip_space(tg_reader *reader) {
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at) reader->at++;
}

static bool tg_skip(tg_reader *reader, char expected) {
    if (reader->at >= reader->end || *reader->at != expected) return false;
    reader->at++;
    return true;
}

static bool tg_skip_word(tg_reader *reader, const char *word) {
    size_t len = strlen(word);
    if ((size_t)(reader->end - reader->at) < len) return false;
    if (memcmp(reader->at, word, len) != 0) return false;
    reader->at += len;
    return true;
}

static bool tg_skip_digits(tg_reader *reader) {
    const char *start = reader->at;
    while (tg_peek(reader) >= '0' && tg_peek(reader) <= '9') reader->at++;
    return reader->at > start;
}

static bool tg_read_number(tg_reader *reader, tg_string *text) {
    const char *start = reader->at;
    tg_skip(reader, '-');
    if (!tg_skip(reader, '0') && !tg_skip_digits(reader)) return false;
    if (tg_skip(reader, '.') && !tg_skip_digits(reader)) return false;
    if (tg_skip(reader, 'e') || tg_skip(reader, 'E')) {
        if (!tg_skip(reader, '+')) tg_skip(reader, '-');
        if (!tg_skip_digits(reader)) return false;
    }
    *text = tg_copy(start, (size_t)(reader->at - start));
    return true;
}

static bool tg_read_hex(tg_reader *reader, uint32_t *code) {
    if (reader->end - reader->at < 4) return false;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char digit = *reader->at++;
        uint32_t value;
        if (digit >= '0' && digit <= '9') value = (uint32_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f') value = (uint32_t)(digit - 'a') + 10;
        else if (digit >= 'A' && digit <= 'F') value = (uint32_t)(digit - 'A') + 10;
        else return false;
        *code = *code * 16 + value;
    }
    return true;
}

/// Appends a code point as UTF-8.
static char *tg_put_utf8(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/// Reads what follows `\u`. A half of a surrogate pair alone is refused.
static bool tg_read_code_point(tg_reader *reader, uint32_t *code) {
    if (!tg_read_hex(reader, code)) return false;
    if (*code < 0xD800 || *code > 0xDFFF) return true;
    uint32_t low;
    if (*code > 0xDBFF || !tg_skip(reader, '\\') || !tg_skip(reader, 'u')) return false;
    if (!tg_read_hex(reader, &low) || low < 0xDC00 || low > 0xDFFF) return false;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

static bool tg_read_string(tg_reader *reader, tg_string *text) {
    if (!tg_skip(reader, '"')) return false;
    const char *end = reader->at;
    while (end < reader->end && *end != '"') end += *end == '\\' ? 2 : 1;
    if (end >= reader->end) return false;
    // An escape is longer than what it means.
    char *memory = tg_alloc((size_t)(end - reader->at) + 1);
    char *to = memory;
    while (reader->at < end) {
        char next = *reader->at++;
        if ((unsigned char)next < 0x20) return false;
        if (next != '\\') {
            *to++ = next;
            continue;
        }
        char escaped = *reader->at++;
        const char *names = "\"\\/bfnrt", *values = "\"\\/\b\f\n\r\t";
        const char *name = escaped == '\0' ? NULL : strchr(names, escaped);
        uint32_t code;
        if (name != NULL) *to++ = values[name - names];
        else if (escaped == 'u' && tg_read_code_point(reader, &code)) to = tg_put_utf8(to, code);
        else return false;
    }
    *to = '\0';
    text->ptr = memory;
    text->len = (size_t)(to - memory);
    return tg_skip(reader, '"');
}

static bool tg_read_value(tg_reader *reader, tg_json *value);

/// Reads the elements of an array, or the fields of an object, up to its last bracket.
static bool tg_read_items(tg_reader *reader, tg_json *value) {
    bool object = value->kind == TG_JSON_OBJECT;
    char last = object ? '}' : ']';
    if (reader->depth++ == TG_JSON_DEPTH) return false;
    size_t room = 0;
    tg_json *items = NULL;
    tg_string *names = NULL;
    tg_skip_space(reader);
    bool done = tg_skip(reader, last);
    while (!done) {
        if (value->len == room) {
            size_t old = room;
            room = room == 0 ? 4 : 2 * room;
            tg_json *more = tg_alloc_array(room, sizeof(tg_json));
            if (old != 0) memcpy(more, items, old * sizeof(tg_json));
            items = more;
            if (object) {
                tg_string *more_names = tg_alloc_array(room, sizeof(tg_string));
                if (old != 0) memcpy(more_names, names, old * sizeof(tg_string));
                names = more_names;
            }
        }
        if (object) {
            tg_skip_space(reader);
            if (!tg_read_string(reader, &names[value->len])) return false;
            tg_skip_space(reader);
            if (!tg_skip(reader, ':')) return false;
        }
        if (!tg_read_value(reader, &items[value->len])) return false;
        value->len++;
        tg_skip_space(reader);
        done = tg_skip(reader, last);
        if (!done && !tg_skip(reader, ',')) return false;
    }
    value->items = items;
    value->names = names;
    reader->depth--;
    return true;
}

/// Reads a value and the white space before it.
static bool tg_read_value(tg_reader *reader, tg_json *value) {
    memset(value, 0, sizeof(*value));
    tg_skip_space(reader);
    switch (tg_peek(reader)) {
    case 'n':
        return tg_skip_word(reader, "null");
    case 't':
        value->kind = TG_JSON_BOOL;
        value->truth = true;
        return tg_skip_word(reader, "true");
    case 'f':
        value->kind = TG_JSON_BOOL;
        return tg_skip_word(reader, "false");
    case '"':
        value->kind = TG_JSON_STRING;
        return tg_read_string(reader, &value->text);
    case '[':
        value->kind = TG_JSON_ARRAY;
        reader->at++;
        return tg_read_items(reader, value);
    case '{':
        value->kind = TG_JSON_OBJECT;
        reader->at++;
        return tg_read_items(reader, value);
    default:
        value->kind = TG_JSON_NUMBER;
        return tg_read_number(reader, &value->text);
    }
}

const tg_json *tg_json_parse(tg_string text) {
    if (text.len == 0) return NULL;
    tg_reader reader = {text.ptr, text.ptr + text.len, 0};
    tg_json *value = tg_alloc(sizeof(tg_json));
    if (!tg_read_value(&reader, value)) return NULL;
    tg_skip_space(&reader);
    return reader.at == reader.end ? value : NULL;
}

const tg_json *tg_json_get_named(const tg_json *object, tg_string name) {
    if (object == NULL || object->kind != TG_JSON_OBJECT) return NULL;
    for (size_t i = object->len; i > 0; i--) {
        if (tg_same(object->names[i - 1], name)) return &object->items[i - 1];
    }
    return NULL;
}

const tg_json *tg_json_get(const tg_json *object, const char *name) {
    return tg_json_get_named(object, tg_str(name));
}

const tg_json *tg_json_item(const tg_json *array, size_t index) {
    if (array == NULL || array->kind != TG_JSON_ARRAY || index >= array->len) return NULL;
    return &array->items[index];
}

bool tg_json_whole(const tg_json *value, int64_t *number) {
    if (value == NULL || value->kind != TG_JSON_NUMBER) return false;
    const char *digit = value->text.ptr;
    bool negative = *digit == '-';
    if (negative) digit++;
    // Below zero, because the least number has no positive counterpart.
    int64_t sum = 0;
    for (; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9') return false;
        if (__builtin_mul_overflow(sum, 10, &sum)) return false;
        if (__builtin_sub_overflow(sum, *digit - '0', &sum)) return false;
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, sum, &sum)) return false;
    *number = sum;
    return true;
}

bool tg_json_number(const tg_json *value, double *number) {
    if (value == NULL || value->kind != TG_JSON_NUMBER) return false;
    *number = strtod(value->text.ptr, NULL);
    return true;
}

bool tg_json_string(const tg_json *value, tg_string *text) {
    if (value == NULL || value->kind != TG_JSON_STRING) return false;
    *text = value->text;
    return true;
}

bool tg_json_bool(const tg_json *value, bool *truth) {
    if (value == NULL || value->kind != TG_JSON_BOOL) return false;
    *truth = value->truth;
    return true;
}

tg_string tg_json_quote(tg_string text) {
    static const char hex[] = "0123456789abcdef";
    // A control character takes six bytes: \u001f.
    if (text.len > (SIZE_MAX - 3) / 6) abort();
    char *memory = tg_alloc(6 * text.len + 3);
    char *to = memory;
    *to++ = '"';
    for (size_t i = 0; i < text.len; i++) {
        unsigned char next = (unsigned char)text.ptr[i];
        if (next < 0x20) {
            memcpy(to, "\\u00", 4);
            to[4] = hex[next >> 4];
            to[5] = hex[next & 15];
            to += 6;
            continue;
        }
        if (next == '"' || next == '\\') *to++ = '\\';
        *to++ = (char)next;
    }
    *to++ = '"';
    *to = '\0';
    tg_string quoted = {memory, (size_t)(to - memory)};
    return quoted;
}

// The host's functions
// --------------------

#define TG_IMPORT(interface, name)                                              \
    __attribute__((import_module("tidegate:plugin/" interface "@0.2.0"))) \
    __attribute__((import_name(name)))

typedef struct tg_shown_result {
    bool failed;
    union {
        tg_shown shown;
        tg_string error;
    } of;
} tg_shown_result;

typedef struct tg_timestamp_result {
    bool failed;
    union {
        uint64_t at;
        tg_string error;
    } of;
} tg_timestamp_result;

typedef struct tg_set_result {
    uint8_t failed;
    uint8_t error;
} tg_set_result;

TG_IMPORT("log", "write") void tg_host_log(uint32_t level, const char *text, size_t len);
TG_IMPORT("clock", "now") uint64_t tg_host_now(void);
TG_IMPORT("clock", "local")
void tg_host_local(const char *zone, size_t len, uint64_t at, tg_shown_result *result);
TG_IMPORT("clock", "instant")
void tg_host_instant(const char *zone, size_t len, int32_t year, uint32_t month, uint32_t day,
                     uint32_t hour, uint32_t minute, uint32_t second, uint32_t millisecond,
                     tg_timestamp_result *result);
TG_IMPORT("random", "next") uint64_t tg_host_random(void);
TG_IMPORT("metrics", "add")
void tg_host_add(const char *name, size_t name_len, const char *label, size_t len, double amount);
TG_IMPORT("metrics", "set")
void tg_host_set(const char *name, size_t name_len, const char *label, size_t len, double value);
TG_IMPORT("jobs", "data") void tg_host_data(const char *id, size_t len, tg_maybe_string *result);
TG_IMPORT("running", "count") uint32_t tg_host_count(void);
TG_IMPORT("running", "weight") uint64_t tg_host_weight(void);
TG_IMPORT("running", "groups")
void tg_host_groups(uint32_t tag, const char *name, size_t len, tg_groups *result);
TG_IMPORT("running", "in-group")
void tg_host_in_group(uint32_t tag, const char *name, size_t name_len, const char *value,
                      size_t len, tg_group *result);
TG_IMPORT("running", "page")
void tg_host_page(uint32_t offset, uint32_t limit, tg_running_jobs *result);
TG_IMPORT("waiting", "groups")
void tg_host_waiting_groups(const char *name, size_t len, tg_waiting_groups *result);
TG_IMPORT("waiting", "others") void tg_host_waiting_others(tg_maybe_waiting_group *result);
TG_IMPORT("waiting", "counted-at") void tg_host_waiting_counted_at(tg_maybe_u64 *result);
TG_IMPORT("state", "get")
void tg_host_state_get(const char *key, size_t len, tg_maybe_string *result);
TG_IMPORT("state", "set")
void tg_host_state_set(const char *key, size_t key_len, const char *value, size_t len,
                       uint32_t expires, uint64_t expires_at, tg_set_result *result);
TG_IMPORT("state", "delete") void tg_host_state_delete(const char *key, size_t len);
TG_IMPORT("state", "keys")
void tg_host_state_keys(const char *prefix, size_t len, tg_strings *result);

enum { TG_DEBUG, TG_INFO, TG_WARN, TG_ERROR };

#define TG_LOG(name, level)                    \
    void name(const char *format, ...) {       \
        TG_FORMATTED(text, format);            \
        tg_host_log(level, text.ptr, text.len); \
    }
TG_LOG(tg_log_debug, TG_DEBUG)
TG_LOG(tg_log_info, TG_INFO)
TG_LOG(tg_log_warn, TG_WARN)
TG_LOG(tg_log_error, TG_ERROR)

uint64_t tg_clock_now(void) {
    return tg_host_now();
}

tg_local tg_clock_local(tg_string zone, uint64_t at) {
    tg_shown_result result;
    tg_host_local(zone.ptr, zone.len, at, &result);
    tg_local local;
    memset(&local, 0, sizeof(local));
    local.failed = result.failed;
    if (result.failed) local.error = result.of.error;
    else local.shown = result.of.shown;
    return local;
}

tg_instant tg_clock_instant(tg_string zone, tg_local_time time) {
    tg_timestamp_result result;
    tg_host_instant(zone.ptr, zone.len, time.year, time.month, time.day, time.hour, time.minute,
                    time.second, time.millisecond, &result);
    tg_instant instant;
    memset(&instant, 0, sizeof(instant));
    instant.failed = result.failed;
    if (result.failed) instant.error = result.of.error;
    else instant.at = result.of.at;
    return instant;
}

uint64_t tg_random_next(void) {
    return tg_host_random();
}

uint64_t tg_random_below(uint64_t bound) {
    return (uint64_t)(((unsigned __int128)tg_random_next() * bound) >> 64);
}

void tg_metrics_add(const char *name, tg_string label, double amount) {
    tg_host_add(name, strlen(name), label.ptr, label.len, amount);
}

void tg_metrics_set(const char *name, tg_string label, double value) {
    tg_host_set(name, strlen(name), label.ptr, label.len, value);
}

tg_maybe_string tg_job_data(const tg_job *job) {
    tg_maybe_string data;
    tg_host_data(job->id.ptr, job->id.len, &data);
    return data;
}

uint32_t tg_running_count(void) {
    return tg_host_count();
}

uint64_t tg_running_weight(void) {
    return tg_host_weight();
}

tg_groups tg_running_groups(tg_dimension by) {
    tg_groups groups;
    tg_host_groups(by.tag, by.attribute.ptr, by.attribute.len, &groups);
    return groups;
}

tg_group tg_running_in_group(tg_dimension by, tg_string value) {
    tg_group group;
    tg_host_in_group(by.tag, by.attribute.ptr, by.attribute.len, value.ptr, value.len, &group);
    return group;
}

tg_running_jobs tg_running_page(uint32_t offset, uint32_t limit) {
    tg_running_jobs page;
    tg_host_page(offset, limit, &page);
    return page;
}

tg_waiting_groups tg_waiting_groups_by(tg_string attribute) {
    tg_waiting_groups groups;
    tg_host_waiting_groups(attribute.ptr, attribute.len, &groups);
    return groups;
}

tg_maybe_waiting_group tg_waiting_others(void) {
    tg_maybe_waiting_group others;
    tg_host_waiting_others(&others);
    return others;
}

tg_maybe_u64 tg_waiting_counted_at(void) {
    tg_maybe_u64 at;
    tg_host_waiting_counted_at(&at);
    return at;
}

tg_maybe_string tg_state_get(tg_string key) {
    tg_maybe_string value;
    tg_host_state_get(key.ptr, key.len, &value);
    return value;
}

tg_state_error tg_state_set(tg_string key, tg_string value, tg_maybe_u64 expires_at) {
    tg_set_result result;
    tg_host_state_set(key.ptr, key.len, value.ptr, value.len, expires_at.is_some,
                      expires_at.value, &result);
    return result.failed ? (tg_state_error)(TG_STATE_INVALID_KEY + result.error) : TG_STATE_OK;
}

void tg_state_delete(tg_string key) {
    tg_host_state_delete(key.ptr, key.len);
}

tg_strings tg_state_keys(tg_string prefix) {
    tg_strings keys;
    tg_host_state_keys(prefix.ptr, prefix.len, &keys);
    return keys;
}

const char *tg_state_error_message(tg_state_error error) {
    switch (error) {
    case TG_STATE_OK:
        return "the value was set";
    case TG_STATE_INVALID_KEY:
        return "the key is empty, or has more than 128 bytes";
    case TG_STATE_VALUE_TOO_LONG:
        return "the value has more than 16 KiB";
    case TG_STATE_FULL:
        return "the state would have more than 256 KiB";
    }
    return "the host refused the value";
}

// Weights
// -------

/// A hash table with open addressing. Its size is a power of two, and at most half is in use.
struct tg_weights {
    struct {
        tg_string value;
        uint64_t weight;
    } *slots;
    size_t size;
    size_t used;
};

static uint32_t tg_hash(tg_string text) {
    // FNV-1a.
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < text.len; i++) hash = (hash ^ (unsigned char)text.ptr[i]) * 16777619u;
    return hash;
}

static void tg_resize(tg_weights *weights, size_t size) {
    tg_weights old = *weights;
    weights->slots = tg_alloc_array(size, sizeof(*weights->slots));
    memset(weights->slots, 0, size * sizeof(*weights->slots));
    weights->size = size;
    weights->used = 0;
    for (size_t i = 0; i < old.size; i++) {
        if (old.slots[i].value.ptr == NULL) continue;
        *tg_weight_of(weights, old.slots[i].value) = old.slots[i].weight;
    }
}

tg_weights *tg_running_weights(tg_dimension by) {
    tg_groups groups = tg_running_groups(by);
    tg_weights *weights = tg_alloc(sizeof(tg_weights));
    memset(weights, 0, sizeof(*weights));
    size_t size = 16;
    while (size < 4 * groups.len) size *= 2;
    tg_resize(weights, size);
    for (size_t i = 0; i < groups.len; i++) {
        *tg_weight_of(weights, groups.ptr[i].value) = groups.ptr[i].weight;
    }
    return weights;
}

uint64_t *tg_weight_of(tg_weights *weights, tg_string value) {
    // A slot in use has a pointer.
    if (value.ptr == NULL) value.ptr = "";
    if (2 * (weights->used + 1) > weights->size) tg_resize(weights, 2 * weights->size);
    size_t at = tg_hash(value) & (weights->size - 1);
    while (weights->slots[at].value.ptr != NULL && !tg_same(weights->slots[at].value, value)) {
        at = (at + 1) & (weights->size - 1);
    }
    if (weights->slots[at].value.ptr == NULL) {
        weights->slots[at].value = value;
        weights->used++;
    }
    return &weights->slots[at].weight;
}

// Answers
// -------

tg_answer tg_answer_for(tg_jobs candidates) {
    tg_answer answer;
    memset(&answer, 0, sizeof(answer));
    answer.decisions = tg_alloc_array(candidates.len, sizeof(tg_decision));
    answer.len = candidates.len;
    answer.more = true;
    for (size_t i = 0; i < answer.len; i++) {
        answer.decisions[i] = tg_hold(tg_str(""));
        answer.decisions[i].reason.is_some = false;
    }
    return answer;
}

tg_answer tg_answer_error(tg_string error) {
    tg_answer answer;
    memset(&answer, 0, sizeof(answer));
    answer.error = tg_some_string(error);
    return answer;
}

tg_plan tg_plan_at(uint64_t at) {
    tg_plan plan;
    memset(&plan, 0, sizeof(plan));
    plan.at = at;
    return plan;
}

enum { TG_RETRY, TG_GIVE_UP };

tg_verdict tg_retry(tg_plan plan) {
    tg_verdict verdict;
    memset(&verdict, 0, sizeof(verdict));
    verdict.of.verdict.tag = TG_RETRY;
    verdict.of.verdict.of.plan = plan;
    return verdict;
}

tg_verdict tg_after(const tg_call *call, uint64_t millis) {
    return tg_retry(tg_plan_at(millis > UINT64_MAX - call->now ? UINT64_MAX : call->now + millis));
}

tg_verdict tg_give_up(void) {
    tg_verdict verdict;
    memset(&verdict, 0, sizeof(verdict));
    verdict.of.verdict.tag = TG_GIVE_UP;
    return verdict;
}

tg_verdict tg_give_up_with(tg_string message) {
    tg_verdict verdict = tg_give_up();
    verdict.of.verdict.of.message = tg_some_string(message);
    return verdict;
}

tg_verdict tg_verdict_error(tg_string error) {
    tg_verdict verdict;
    memset(&verdict, 0, sizeof(verdict));
    verdict.failed = true;
    verdict.of.error = error;
    return verdict;
}

// Exports
// -------

typedef struct tg_description {
    tg_string about;
    tg_maybe_string config_schema;
    uint32_t state_version;
    tg_strings group_by;
    bool needs_running_jobs;
    bool needs_data;
    bool needs_ended;
    bool needs_earlier;
    tg_strings waiting_by;
} tg_description;

typedef struct tg_problem_item {
    tg_string path;
    tg_string message;
} tg_problem_item;

struct tg_problems {
    tg_problem_item *items;
    size_t len;
    size_t room;
};

typedef struct tg_problem_list {
    const tg_problem_item *ptr;
    size_t len;
} tg_problem_list;

typedef struct tg_answer_result {
    bool failed;
    union {
        struct {
            const tg_decision *decisions;
            size_t len;
            bool more;
        } answer;
        tg_string error;
    } of;
} tg_answer_result;

typedef struct tg_failure_arguments {
    tg_string queue;
    uint64_t now;
    uint64_t seed;
    tg_string config;
    tg_job job;
    tg_failure last;
} tg_failure_arguments;

TG_SIZE(tg_description, 44);
TG_PLACE(tg_description, group_by, 24);
TG_SIZE(tg_answer_result, 16);
TG_PLACE(tg_failure_arguments, job, 32);
TG_PLACE(tg_failure_arguments, last, 168);

static tg_description *tg_description_of(const char *about, const char *config_schema) {
    tg_description *description = tg_alloc(sizeof(tg_description));
    memset(description, 0, sizeof(*description));
    description->about = tg_str(about == NULL ? "" : about);
    if (config_schema != NULL) {
        description->config_schema = tg_some_string(tg_str(config_schema));
    }
    return description;
}

/// The texts of an array with a NULL at the end.
static tg_strings tg_strings_of(const char *const *texts) {
    size_t len = 0;
    while (texts != NULL && texts[len] != NULL) len++;
    tg_string *names = tg_alloc_array(len, sizeof(tg_string));
    for (size_t i = 0; i < len; i++) names[i] = tg_str(texts[i]);
    tg_strings strings = {names, len};
    return strings;
}

const tg_description *tg_describe_throttler(const tg_throttler *throttler) {
    tg_description *description = tg_description_of(throttler->about, throttler->config_schema);
    description->state_version = throttler->state_version;
    description->group_by = tg_strings_of(throttler->group_by);
    description->waiting_by = tg_strings_of(throttler->waiting_by);
    description->needs_running_jobs = throttler->needs_running_jobs;
    description->needs_data = throttler->needs_data;
    description->needs_ended = throttler->needs_ended;
    description->needs_earlier = throttler->needs_earlier;
    return description;
}

const tg_description *tg_describe_retry(const tg_retry_strategy *strategy) {
    tg_description *description = tg_description_of(strategy->about, strategy->config_schema);
    description->state_version = strategy->state_version;
    description->needs_data = strategy->needs_data;
    return description;
}

void tg_problem(tg_problems *problems, const char *path, const char *format, ...) {
    TG_FORMATTED(message, format);
    if (problems->len == problems->room) {
        size_t room = problems->room == 0 ? 8 : 2 * problems->room;
        tg_problem_item *items = tg_alloc_array(room, sizeof(tg_problem_item));
        if (problems->len != 0) {
            memcpy(items, problems->items, problems->len * sizeof(tg_problem_item));
        }
        problems->items = items;
        problems->room = room;
    }
    tg_problem_item problem = {tg_copy(path, strlen(path)), message};
    problems->items[problems->len++] = problem;
}

const tg_problem_list *tg_check(void (*check)(const tg_json *, tg_problems *),
                                tg_string config) {
    tg_problems problems = {NULL, 0, 0};
    const tg_json *json = tg_json_parse(config);
    if (json == NULL) tg_problem(&problems, "", "it is not JSON");
    else if (check != NULL) check(json, &problems);
    tg_problem_list *list = tg_alloc(sizeof(tg_problem_list));
    list->ptr = problems.items;
    list->len = problems.len;
    return list;
}

static const char tg_no_json[] = "the configuration is not JSON";

const tg_answer_result *tg_decide(const tg_throttler *throttler, tg_string config,
                                  const tg_round *round, tg_jobs candidates) {
    const tg_json *json = tg_json_parse(config);
    tg_answer answer = json == NULL ? tg_answer_error(tg_str(tg_no_json))
                                    : throttler->decide(json, round, candidates);
    tg_answer_result *result = tg_alloc(sizeof(tg_answer_result));
    memset(result, 0, sizeof(*result));
    result->failed = answer.error.is_some;
    if (answer.error.is_some) {
        result->of.error = answer.error.value;
    } else {
        result->of.answer.decisions = answer.decisions;
        result->of.answer.len = answer.len;
        result->of.answer.more = answer.more;
    }
    return result;
}

const tg_verdict *tg_on_failure(const tg_retry_strategy *strategy, const void *arguments) {
    const tg_failure_arguments *given = arguments;
    const tg_json *json = tg_json_parse(given->config);
    tg_call call = {given->queue, given->now, given->seed};
    tg_verdict *verdict = tg_alloc(sizeof(tg_verdict));
    *verdict = json == NULL ? tg_verdict_error(tg_str(tg_no_json))
                            : strategy->on_failure(json, &call, &given->job, &given->last);
    return verdict;
}
