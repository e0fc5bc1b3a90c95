// tidegate.h: plugins for tidegate in C. `wit/plugin.wit` is the contract and has every bound.
//
//     #include "sdk/tidegate.h"
//
//     static tg_answer decide(const tg_json *config, const tg_round *round, tg_jobs candidates) {
//         tg_answer answer = tg_answer_for(candidates);
//         for (size_t i = 0; i < candidates.len; i++) answer.decisions[i] = tg_run();
//         return answer;
//     }
//
//     static const tg_throttler throttler = {.about = "Runs every job.", .decide = decide};
//     TG_EXPORT_THROTTLER(throttler)
//
// Every call is made in a new instance of the plugin, and its memory is dropped after the call.
// So nothing must be freed, and a global variable is not kept between calls: use the state.
//
// A `tg_string` is a text with a length. The texts of a call contain no NUL at their end. A
// `const char *` is a text that your source contains: a name, a path or a format.
//
// The structs of the contract have the layout of the component model's canonical ABI, so that
// jobs and decisions cross the boundary without a copy.

#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#include <optional>
#include <string_view>
extern "C" {
#endif

// Texts, lists and options
// ------------------------

/// A text of `len` bytes of UTF-8.
typedef struct tg_string {
    const char *ptr;
    size_t len;
#ifdef __cplusplus
    constexpr operator std::string_view() const { return {ptr, len}; }
#endif
} tg_string;

/// Declares a list: `ptr[0]` to `ptr[len - 1]`. In C++ a loop over a range accepts it too, and `[]`
/// traps behind its end.
#ifdef __cplusplus
#define TG_LIST(name, element)                           \
    typedef struct name {                                \
        const element *ptr;                              \
        size_t len;                                      \
        const element *begin() const { return ptr; }     \
        const element *end() const { return ptr + len; } \
        size_t size() const { return len; }              \
        bool empty() const { return len == 0; }          \
        const element &operator[](size_t index) const {  \
            if (index >= len) __builtin_trap();          \
            return ptr[index];                           \
        }                                                \
    } name
#else
#define TG_LIST(name, element) \
    typedef struct name {      \
        const element *ptr;    \
        size_t len;            \
    } name
#endif

/// Declares an optional value: `value` counts only if `is_some`. In C++ it converts to
/// `std::optional`, and is tested and read like one.
#ifdef __cplusplus
#define TG_OPTION(name, type, cpp_type)                                                  \
    typedef struct name {                                                                \
        bool is_some;                                                                    \
        type value;                                                                      \
        constexpr explicit operator bool() const { return is_some; }                     \
        constexpr cpp_type operator*() const { return value; }                           \
        constexpr cpp_type value_or(cpp_type other) const {                              \
            return is_some ? static_cast<cpp_type>(value) : other;                       \
        }                                                                                \
        constexpr operator std::optional<cpp_type>() const {                             \
            return is_some ? std::optional<cpp_type>(value) : std::nullopt;              \
        }                                                                                \
    } name
#else
#define TG_OPTION(name, type, cpp_type) \
    typedef struct name {               \
        bool is_some;                   \
        type value;                     \
    } name
#endif

TG_LIST(tg_strings, tg_string);
TG_OPTION(tg_maybe_string, tg_string, std::string_view);
TG_OPTION(tg_maybe_u16, uint16_t, uint16_t);
TG_OPTION(tg_maybe_u32, uint32_t, uint32_t);
TG_OPTION(tg_maybe_i32, int32_t, int32_t);
TG_OPTION(tg_maybe_u64, uint64_t, uint64_t);

/// Memory of this call, aligned to 16 bytes. Traps if there is none left.
void *tg_alloc(size_t size);

/// The text of a C string, which is not copied.
static inline tg_string tg_str(const char *text) {
    tg_string string = {text, strlen(text)};
    return string;
}

/// Whether two texts are equal.
static inline bool tg_same(tg_string a, tg_string b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/// Whether a text equals a C string.
static inline bool tg_is(tg_string text, const char *literal) {
    return tg_same(text, tg_str(literal));
}

/// Whether a text begins with a C string.
static inline bool tg_starts_with(tg_string text, const char *literal) {
    size_t len = strlen(literal);
    return text.len >= len && memcmp(text.ptr, literal, len) == 0;
}

/// The two arguments for `%.*s` of a format: `tg_format("no room for %.*s", TG_ARG(job->id))`.
#define TG_ARG(string) (int)(string).len, (string).ptr

#define TG_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))

/// A new text, from a format of `printf`. A NUL follows it, so that `.ptr` is a C string. Each byte
/// that is not UTF-8, such as half of a cut letter, becomes a question mark: the host ends a call
/// that gives it such a text.
tg_string tg_format(const char *format, ...) TG_PRINTF(1, 2);
/// A copy of a text, with a NUL behind it and without bytes that are not UTF-8.
tg_string tg_copy(const char *start, size_t len);

/// No text.
static inline tg_maybe_string tg_no_string(void) {
    tg_maybe_string none = {false, {NULL, 0}};
    return none;
}

/// A text that is there.
static inline tg_maybe_string tg_some_string(tg_string value) {
    tg_maybe_string some = {true, value};
    return some;
}

/// No number.
static inline tg_maybe_u64 tg_no_u64(void) {
    tg_maybe_u64 none = {false, 0};
    return none;
}

/// A number that is there, such as a time.
static inline tg_maybe_u64 tg_some_u64(uint64_t value) {
    tg_maybe_u64 some = {true, value};
    return some;
}

/// A number that is there, such as a weight.
static inline tg_maybe_u32 tg_some_u32(uint32_t value) {
    tg_maybe_u32 some = {true, value};
    return some;
}

/// A number that is there, such as a priority.
static inline tg_maybe_i32 tg_some_i32(int32_t value) {
    tg_maybe_i32 some = {true, value};
    return some;
}

// Jobs
// ----

/// One attribute of a job. A number has its shortest decimal form (`2`, `0.5`).
typedef struct tg_attribute {
    tg_string name;
    tg_string value;
} tg_attribute;

TG_LIST(tg_attributes, tg_attribute);

/// The value of the attribute `name`. NULL if there is none.
const tg_string *tg_attribute_of(tg_attributes attributes, const char *name);

#ifdef __cplusplus
#define TG_HAS_ATTRIBUTES                                                      \
    /* The value of its attribute `name`, if it has one. */                    \
    std::optional<std::string_view> attribute(const char *name) const {        \
        const tg_string *value = tg_attribute_of(attributes, name);            \
        return value ? std::optional<std::string_view>(*value) : std::nullopt; \
    }
#else
#define TG_HAS_ATTRIBUTES
#endif

/// An attempt that failed. Times are milliseconds since 1970, as everywhere.
typedef struct tg_failure {
    /// The number of the attempt, from 1.
    uint32_t attempt;
    /// `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`.
    tg_string reason;
    tg_maybe_string message;
    /// The HTTP status of the target's response, if there was one.
    tg_maybe_u16 status;
    /// The details that the worker reported, as JSON text.
    tg_maybe_string details;
    uint64_t started_at;
    uint64_t ended_at;
    /// The earliest next attempt that the worker or the target requested (`Retry-After`).
    tg_maybe_u64 not_before;
} tg_failure;

TG_LIST(tg_failures, tg_failure);

/// A candidate of a throttler, or the failed job of a retry strategy.
typedef struct tg_job {
    tg_string id;
    tg_string job_type;
    /// Jobs with a lower number start first.
    int32_t priority;
    /// The capacity units that the job takes.
    uint32_t weight;
    /// Sorted by name. `tg_job_attribute` finds one.
    tg_attributes attributes;
    /// The attempt that would start (throttler) or that failed (retry strategy), from 1.
    uint32_t attempt;
    /// The job's `max_attempts`.
    uint32_t attempts;
    uint64_t created_at;
    /// When the job is, or was, due. For a retry strategy the earliest time of the next attempt.
    uint64_t run_at;
    /// No attempt starts after this time.
    tg_maybe_u64 expires_at;
    /// The job ends `failed` at this time if it has not ended before.
    tg_maybe_u64 deadline_at;
    /// The host of the URL of its type's target. None if the type has no such target.
    tg_maybe_string target_host;
    /// The id of the job that this one runs again.
    tg_maybe_string replay_of;
    tg_maybe_string correlation_key;
    /// The failed attempts before `attempt`, oldest first: the latest 50. A throttler gets them
    /// if it sets `needs_earlier`.
    tg_failures earlier;
    TG_HAS_ATTRIBUTES
} tg_job;

TG_LIST(tg_jobs, tg_job);

/// A granted job, whether started or not.
typedef struct tg_running_job {
    tg_string id;
    tg_string job_type;
    int32_t priority;
    /// 0 for a critical job, which takes no capacity.
    uint32_t weight;
    bool critical;
    tg_attributes attributes;
    uint64_t granted_at;
    TG_HAS_ATTRIBUTES
} tg_running_job;

TG_LIST(tg_running_jobs, tg_running_job);

/// An attempt of the queue that ended.
typedef struct tg_ended {
    tg_string id;
    tg_string job_type;
    int32_t priority;
    uint32_t weight;
    tg_attributes attributes;
    tg_maybe_string target_host;
    uint32_t attempt;
    uint64_t started_at;
    uint64_t ended_at;
    /// False for an attempt that failed or was cancelled.
    bool succeeded;
    /// Why it failed, or `released` or `snoozed`. None if it was cancelled.
    tg_maybe_string reason;
    tg_maybe_string message;
    tg_maybe_u16 status;
    tg_maybe_string details;
    tg_maybe_u64 not_before;
    TG_HAS_ATTRIBUTES
} tg_ended;

TG_LIST(tg_ended_attempts, tg_ended);

/// The value of a job's attribute `name`. NULL if it has none.
static inline const tg_string *tg_job_attribute(const tg_job *job, const char *name) {
    return tg_attribute_of(job->attributes, name);
}

/// The value of a running job's attribute `name`. NULL if it has none.
static inline const tg_string *tg_running_job_attribute(const tg_running_job *job,
                                                        const char *name) {
    return tg_attribute_of(job->attributes, name);
}

/// The value of the attribute `name` of the job whose attempt ended. NULL if it has none.
static inline const tg_string *tg_ended_attribute(const tg_ended *ended, const char *name) {
    return tg_attribute_of(ended->attributes, name);
}

/// The data of a candidate, or of the failed job, as JSON text. Needs `needs_data`. None if the
/// job is not in this call or has no data.
tg_maybe_string tg_job_data(const tg_job *job);

// JSON
// ----

/// The kinds of JSON values.
typedef enum tg_json_kind {
    TG_JSON_NULL,
    TG_JSON_BOOL,
    TG_JSON_NUMBER,
    TG_JSON_STRING,
    TG_JSON_ARRAY,
    TG_JSON_OBJECT,
} tg_json_kind;

/// A JSON value. Functions take NULL for a value that is not there.
typedef struct tg_json {
    tg_json_kind kind;
    /// Of a bool.
    bool truth;
    /// Of a string its text, without escapes. Of a number its digits. A NUL follows it.
    tg_string text;
    /// Of an array or an object: its elements or values.
    const struct tg_json *items;
    /// Of an object: the names of the values, in the same order.
    const tg_string *names;
    /// The number of items.
    size_t len;
} tg_json;

/// Reads JSON text. NULL if it is malformed or nests deeper than 128 levels. Of two fields with
/// one name the second counts.
const tg_json *tg_json_parse(tg_string text);
/// The value of a field. NULL if `object` is no object or has no such field.
const tg_json *tg_json_get(const tg_json *object, const char *name);
/// The value of a field whose name is known at run time only.
const tg_json *tg_json_get_named(const tg_json *object, tg_string name);
/// An element of an array. NULL if `array` is no array, or is shorter.
const tg_json *tg_json_item(const tg_json *array, size_t index);
/// Whether `value` is a whole number of 64 bits without fraction or exponent, which is stored in
/// `number`.
bool tg_json_whole(const tg_json *value, int64_t *number);
/// Whether `value` is a number, which is stored in `number`.
bool tg_json_number(const tg_json *value, double *number);
/// Whether `value` is a string, which is stored in `text`.
bool tg_json_string(const tg_json *value, tg_string *text);
/// Whether `value` is a bool, which is stored in `truth`.
bool tg_json_bool(const tg_json *value, bool *truth);
/// A text as a JSON string, in quotation marks.
tg_string tg_json_quote(tg_string text);

// What a call can use
// -------------------

/// Writes to the log of the plugin, which `tidegate plugin logs` shows.
void tg_log_debug(const char *format, ...) TG_PRINTF(1, 2);
void tg_log_info(const char *format, ...) TG_PRINTF(1, 2);
void tg_log_warn(const char *format, ...) TG_PRINTF(1, 2);
void tg_log_error(const char *format, ...) TG_PRINTF(1, 2);

/// A date and a time of day.
typedef struct tg_local_time {
    int32_t year;
    /// 1 to 12.
    uint8_t month;
    /// 1 to 31.
    uint8_t day;
    uint8_t hour;
    uint8_t minute;
    uint8_t second;
    uint16_t millisecond;
} tg_local_time;

/// What a time zone shows at an instant.
typedef struct tg_shown {
    tg_local_time time;
    /// 1 is Monday, 7 is Sunday.
    uint8_t weekday;
    /// How far local time is ahead of UTC, in seconds.
    int32_t offset;
} tg_shown;

/// `shown`, or why there is none.
typedef struct tg_local {
    bool failed;
    tg_shown shown;
    tg_string error;
} tg_local;

/// `at`, or why there is none.
typedef struct tg_instant {
    bool failed;
    uint64_t at;
    tg_string error;
} tg_instant;

/// The time of the decision, which is also in `tg_round` and `tg_call`.
uint64_t tg_clock_now(void);
/// Local time in a zone of the IANA database, such as `Europe/Berlin`.
tg_local tg_clock_local(tg_string zone, uint64_t at);
/// The instant at which a zone shows a time: the first of two, or the change that skips it.
tg_instant tg_clock_instant(tg_string zone, tg_local_time time);

/// The next number of a sequence that begins with the seed of the call. Not for secrets.
uint64_t tg_random_next(void);
/// A random number of 0 to `bound` - 1. 0 if the bound is 0.
uint64_t tg_random_below(uint64_t bound);

/// Adds to a counter that operators see. A negative amount is left out.
void tg_metrics_add(const char *name, tg_string label, double amount);
/// Sets a gauge that operators see.
void tg_metrics_set(const char *name, tg_string label, double value);

// What a throttler can use
// ------------------------

/// The property that groups the running set.
typedef struct tg_dimension {
    uint8_t tag;
    tg_string attribute;
} tg_dimension;

/// Groups by job type.
static inline tg_dimension tg_by_job_type(void) {
    tg_dimension by = {0, {NULL, 0}};
    return by;
}

/// Groups by priority.
static inline tg_dimension tg_by_priority(void) {
    tg_dimension by = {1, {NULL, 0}};
    return by;
}

/// Groups by an attribute, which `group_by` must name.
static inline tg_dimension tg_by_attribute(tg_string name) {
    tg_dimension by = {2, name};
    return by;
}

/// The jobs with one value of a dimension: their number and their total weight.
typedef struct tg_group {
    tg_string value;
    uint32_t count;
    uint64_t weight;
} tg_group;

TG_LIST(tg_groups, tg_group);

/// The running set: the queue's granted jobs, whether started or not, without the candidates.
uint32_t tg_running_count(void);
/// The total weight of the running jobs.
uint64_t tg_running_weight(void);
/// The groups of all values of a dimension. Jobs without the attribute are in no group.
tg_groups tg_running_groups(tg_dimension by);
/// The group of one value. Its count and weight are 0 if no job has the value.
tg_group tg_running_in_group(tg_dimension by, tg_string value);
/// The running jobs, the earliest granted first: at most 1000 a page. Needs `needs_running_jobs`.
tg_running_jobs tg_running_page(uint32_t offset, uint32_t limit);

/// The waiting jobs with one value of an attribute.
typedef struct tg_waiting_group {
    tg_string value;
    uint32_t count;
    uint64_t weight;
    /// When the first of them was due.
    uint64_t oldest_due_at;
    /// Whether there may be more: counting stopped at a bound.
    bool at_least;
} tg_waiting_group;

TG_LIST(tg_waiting_groups, tg_waiting_group);
TG_OPTION(tg_maybe_waiting_group, tg_waiting_group, tg_waiting_group);

/// What waits in the queue: estimates by an attribute that `waiting_by` names, sorted by value. A
/// group of each candidate is there.
tg_waiting_groups tg_waiting_groups_by(tg_string attribute);
/// The jobs of all partitions that are in no group, because there are too many.
tg_maybe_waiting_group tg_waiting_others(void);
/// When the queue was counted. None if that has not happened yet.
tg_maybe_u64 tg_waiting_counted_at(void);

/// Weights by value.
typedef struct tg_weights tg_weights;

/// The running weight by the values of a dimension.
tg_weights *tg_running_weights(tg_dimension by);
/// The weight of a value, to read and to change: 0 at first. Valid until the next call of this
/// function with the same `weights`.
uint64_t *tg_weight_of(tg_weights *weights, tg_string value);

/// Why a value was not set.
typedef enum tg_state_error {
    /// It was set.
    TG_STATE_OK,
    /// The key is empty, or has more than 128 bytes.
    TG_STATE_INVALID_KEY,
    /// The value has more than 16 KiB.
    TG_STATE_VALUE_TOO_LONG,
    /// The state would have more than 256 KiB.
    TG_STATE_FULL,
} tg_state_error;

/// The value of a key of the state, if it has one.
tg_maybe_string tg_state_get(tg_string key);
/// Sets a value, which counts as deleted from `expires_at` on (`tg_no_u64()` for never). It is
/// committed with the call's decisions, if the call succeeds.
tg_state_error tg_state_set(tg_string key, tg_string value, tg_maybe_u64 expires_at);
void tg_state_delete(tg_string key);
/// The keys that begin with `prefix`, sorted.
tg_strings tg_state_keys(tg_string prefix);
/// A sentence about an error, for a log or an answer.
const char *tg_state_error_message(tg_state_error error);

// Throttlers
// ----------

/// The errors of a configuration.
typedef struct tg_problems tg_problems;

/// Adds an error. `path` is the JSON pointer to the wrong part (`/limit`).
void tg_problem(tg_problems *problems, const char *path, const char *format, ...)
    TG_PRINTF(3, 4);

/// The inputs of a decision, in addition to the configuration and the candidates.
typedef struct tg_round {
    /// The queue's name.
    tg_string queue;
    /// The time of the decision. There is no other clock.
    uint64_t now;
    /// A seed for random numbers, different in every call.
    uint64_t seed;
    /// The queue's own concurrency, if it has one.
    tg_maybe_u32 concurrency;
    /// How many jobs workers can take now.
    uint32_t room;
    /// The attempts that ended since the last answer that counted. Needs `needs_ended`.
    tg_ended_attempts ended;
} tg_round;

/// What happens to a candidate.
typedef struct tg_action {
    uint8_t tag;
    union {
        tg_maybe_u64 until;
        uint64_t at;
    } when;
} tg_action;

/// An action and the explanation that users see for a waiting job.
typedef struct tg_decision {
    tg_action action;
    tg_maybe_string reason;
} tg_decision;

/// The job starts now.
static inline tg_decision tg_run(void) {
    tg_decision decision = {{0, {{false, 0}}}, {false, {NULL, 0}}};
    return decision;
}

/// The job waits. The next tick of its queue offers it again.
static inline tg_decision tg_hold(tg_string reason) {
    tg_decision decision = {{1, {{false, 0}}}, {true, reason}};
    return decision;
}

/// The job waits. The next tick of its queue offers it again, at the latest at `until`, which is
/// after now and within 366 days.
static inline tg_decision tg_hold_until(uint64_t until, tg_string reason) {
    tg_decision decision = {{1, {{true, until}}}, {true, reason}};
    return decision;
}

/// The job is due at `at`, which is after now and within 366 days.
static inline tg_decision tg_reschedule(uint64_t at, tg_string reason) {
    tg_decision decision = {{2, {{false, 0}}}, {true, reason}};
    decision.action.when.at = at;
    return decision;
}

/// The job ends `dropped`.
static inline tg_decision tg_drop(tg_string reason) {
    tg_decision decision = {{3, {{false, 0}}}, {true, reason}};
    return decision;
}

/// The answer of a throttler.
typedef struct tg_answer {
    /// One decision per candidate, in their order.
    tg_decision *decisions;
    size_t len;
    /// Whether jobs further back in the queue may run too.
    bool more;
    /// If it has a value, the call failed and the queue's `on_failure` decides.
    tg_maybe_string error;
} tg_answer;

/// An answer with room for the decisions on all candidates, which hold them at first; `more` is
/// true.
tg_answer tg_answer_for(tg_jobs candidates);
/// The answer of a call that failed.
tg_answer tg_answer_error(tg_string error);

/// A throttler. Only `about` and `decide` are required.
typedef struct tg_throttler {
    /// A sentence for operators.
    const char *about;
    /// JSON Schema of the configuration, as text.
    const char *config_schema;
    /// The version of the state's format. Another number starts with an empty state.
    uint32_t state_version;
    /// The attributes that group the running set, with a NULL at the end. `*` permits any.
    const char *const *group_by;
    /// Whether it calls `tg_running_page`.
    bool needs_running_jobs;
    /// Whether it calls `tg_job_data`.
    bool needs_data;
    /// Whether it reads `round->ended`.
    bool needs_ended;
    /// Whether it reads `job->earlier`.
    bool needs_earlier;
    /// The attributes that group what waits, with a NULL at the end: at most 2, which the queue's
    /// `partition_by` and `partition_then_by` name. `*` permits both.
    const char *const *waiting_by;
    /// Adds the errors of a configuration to `problems`. `config` is never NULL.
    void (*check)(const tg_json *config, tg_problems *problems);
    /// Decides on the candidates. They are in the queue's order, and each of them alone fits the
    /// queue's limits. The running set does not contain those that this call runs, so count them.
    tg_answer (*decide)(const tg_json *config, const tg_round *round, tg_jobs candidates);
} tg_throttler;

// Retry strategies
// ----------------

/// The inputs of a decision, in addition to the configuration and the failed job.
typedef struct tg_call {
    /// The job's queue.
    tg_string queue;
    /// The time of the decision. There is no other clock.
    uint64_t now;
    /// A seed for random numbers, different in every call.
    uint64_t seed;
} tg_call;

/// The next attempt. What has no value keeps the job's.
typedef struct tg_plan {
    /// When it is due: within 366 days, and at least 50 ms after the call.
    uint64_t at;
    /// JSON text that replaces the job's data.
    tg_maybe_string data;
    tg_maybe_i32 priority;
    tg_maybe_u32 weight;
    /// How many attempts the job still has, including the next one: at least 1.
    tg_maybe_u32 attempts_left;
    /// The timeout of the job's attempts, in milliseconds.
    tg_maybe_u64 timeout;
    /// A name in `retry_targets` of the job's type, or empty for the type's own target.
    tg_maybe_string target;
} tg_plan;

/// The answer of a retry strategy. The functions below make it.
typedef struct tg_verdict {
    bool failed;
    union {
        struct {
            uint8_t tag;
            union {
                tg_plan plan;
                tg_maybe_string message;
            } of;
        } verdict;
        tg_string error;
    } of;
} tg_verdict;

/// A plan for an attempt at `at` that changes nothing else.
tg_plan tg_plan_at(uint64_t at);
/// Another attempt.
tg_verdict tg_retry(tg_plan plan);
/// Another attempt, `millis` after the call. The server waits longer if the target requested it.
tg_verdict tg_after(const tg_call *call, uint64_t millis);
/// No more attempts: the job ends `failed` with the message of the failure.
tg_verdict tg_give_up(void);
/// No more attempts: the job ends `failed` with this message.
tg_verdict tg_give_up_with(tg_string message);
/// The answer of a call that failed: the built-in backoff decides.
tg_verdict tg_verdict_error(tg_string error);

/// A retry strategy. Only `about` and `on_failure` are required.
typedef struct tg_retry_strategy {
    /// A sentence for operators.
    const char *about;
    /// JSON Schema of the configuration, as text.
    const char *config_schema;
    /// The version of the state's format. Another number starts with an empty state. With 0 it
    /// cannot use the state (`tg_state_get` and its neighbours).
    uint32_t state_version;
    /// Whether it calls `tg_job_data`.
    bool needs_data;
    /// Adds the errors of a configuration to `problems`. `config` is never NULL.
    void (*check)(const tg_json *config, tg_problems *problems);
    /// Decides what follows the failure `last` of `job`, whose earlier failures are in
    /// `job->earlier`.
    tg_verdict (*on_failure)(const tg_json *config, const tg_call *call, const tg_job *job,
                             const tg_failure *last);
} tg_retry_strategy;

// The exports of the contract
// ---------------------------

struct tg_description;
struct tg_problem_list;
struct tg_answer_result;

const struct tg_description *tg_describe_throttler(const tg_throttler *throttler);
const struct tg_description *tg_describe_retry(const tg_retry_strategy *strategy);
const struct tg_problem_list *tg_check(void (*check)(const tg_json *, tg_problems *),
                                       tg_string config);
const struct tg_answer_result *tg_decide(const tg_throttler *throttler, tg_string config,
                                         const tg_round *round, tg_jobs candidates);
const tg_verdict *tg_on_failure(const tg_retry_strategy *strategy, const void *arguments);

#define TG_EXPORT(name) __attribute__((export_name("tidegate:plugin/" name))) __attribute__((used))

/// Exports a `tg_throttler`. A plugin may also export a retry strategy.
#define TG_EXPORT_THROTTLER(throttler)                                                            \
    TG_EXPORT("throttle@0.2.0#describe") const void *tg_export_throttle_describe(void) {          \
        return tg_describe_throttler(&(throttler));                                               \
    }                                                                                             \
    TG_EXPORT("throttle@0.2.0#check-config")                                                      \
    const void *tg_export_throttle_check(const char *config, size_t config_len) {                 \
        tg_string text = {config, config_len};                                                    \
        return tg_check((throttler).check, text);                                                 \
    }                                                                                             \
    TG_EXPORT("throttle@0.2.0#decide")                                                            \
    const void *tg_export_decide(const char *queue, size_t queue_len, uint64_t now,               \
                                 uint64_t seed, const char *config, size_t config_len,            \
                                 uint32_t has_concurrency, uint32_t concurrency, uint32_t room,   \
                                 const tg_ended *ended, size_t ended_len,                         \
                                 const tg_job *candidates, size_t candidates_len) {               \
        tg_string text = {config, config_len};                                                    \
        tg_round round = {{queue, queue_len},                                                     \
                          now,                                                                    \
                          seed,                                                                   \
                          {has_concurrency != 0, concurrency},                                    \
                          room,                                                                   \
                          {ended, ended_len}};                                                    \
        tg_jobs jobs = {candidates, candidates_len};                                              \
        return tg_decide(&(throttler), text, &round, jobs);                                       \
    }

/// Exports a `tg_retry_strategy`. A plugin may also export a throttler.
#define TG_EXPORT_RETRY(strategy)                                                                 \
    TG_EXPORT("retry@0.2.0#describe") const void *tg_export_retry_describe(void) {                \
        return tg_describe_retry(&(strategy));                                                    \
    }                                                                                             \
    TG_EXPORT("retry@0.2.0#check-config")                                                         \
    const void *tg_export_retry_check(const char *config, size_t config_len) {                    \
        tg_string text = {config, config_len};                                                    \
        return tg_check((strategy).check, text);                                                  \
    }                                                                                             \
    TG_EXPORT("retry@0.2.0#on-failure") const void *tg_export_on_failure(const void *arguments) { \
        return tg_on_failure(&(strategy), arguments);                                             \
    }

#ifdef __cplusplus
}
#endif

#endif
