// The conformance plugin: it writes what it receives into its state, and answers as its configuration
// says. `cases` has the configurations and the expected texts.

#include "sdk/tidegate.h"

#include <inttypes.h>

// Texts
// -----

static tg_string or_text(tg_maybe_string value) {
    return value.is_some ? value.value : tg_str("-");
}

static tg_string or_time(tg_maybe_u64 value) {
    return value.is_some ? tg_format("%" PRIu64, value.value) : tg_str("-");
}

static tg_string or_status(tg_maybe_u16 value) {
    return value.is_some ? tg_format("%u", (unsigned)value.value) : tg_str("-");
}

static tg_string or_attribute(const tg_string *value) { return value ? *value : tg_str("-"); }

static const char *truth(bool value) { return value ? "true" : "false"; }

// Adds a part to a list of texts.
static void add(tg_string *list, const char *separator, tg_string part) {
    const char *between = list->len == 0 ? "" : separator;
    *list = tg_format("%.*s%s%.*s", TG_ARG(*list), between, TG_ARG(part));
}

static tg_string failure_text(const tg_failure *failure) {
    return tg_format("%" PRIu32 ",%.*s,%.*s,%.*s,%.*s,%" PRIu64 ",%" PRIu64 ",%.*s",
                     failure->attempt, TG_ARG(failure->reason), TG_ARG(or_text(failure->message)),
                     TG_ARG(or_status(failure->status)), TG_ARG(or_text(failure->details)),
                     failure->started_at, failure->ended_at,
                     TG_ARG(or_time(failure->not_before)));
}

static tg_string job_text(const tg_job *job) {
    tg_string numbers =
        tg_format("%" PRId32 "|%" PRIu32 "|%" PRIu32 "|%" PRIu32 "|%" PRIu64 "|%" PRIu64,
                  job->priority, job->weight, job->attempt, job->attempts, job->created_at,
                  job->run_at);
    return tg_format("%.*s|%.*s|%.*s|%.*s|%.*s|%.*s|%.*s|%.*s", TG_ARG(job->id),
                     TG_ARG(job->job_type), TG_ARG(numbers), TG_ARG(or_time(job->expires_at)),
                     TG_ARG(or_time(job->deadline_at)), TG_ARG(or_text(job->target_host)),
                     TG_ARG(or_text(job->replay_of)), TG_ARG(or_text(job->correlation_key)));
}

// The configuration
// -----------------

static tg_string text_of(const tg_json *config, const char *name, const char *otherwise) {
    tg_string text;
    return tg_json_string(tg_json_get(config, name), &text) ? text : tg_str(otherwise);
}

static int64_t whole_of(const tg_json *config, const char *name) {
    int64_t number;
    return tg_json_whole(tg_json_get(config, name), &number) ? number : 0;
}

static bool shows(const tg_json *config, const char *what) {
    const tg_json *shown = tg_json_get(config, "show");
    tg_string text;
    for (size_t i = 0; tg_json_string(tg_json_item(shown, i), &text); i++) {
        if (tg_is(text, what)) return true;
    }
    return false;
}

static tg_string action_of(const tg_json *config, size_t index) {
    tg_string action;
    const tg_json *item = tg_json_item(tg_json_get(config, "decide"), index);
    return tg_json_string(item, &action) ? action : tg_str("");
}

// The name of an attribute as a C string.
static const char *attribute_name(const tg_json *config) {
    tg_string name = text_of(config, "attribute", "region");
    return tg_copy(name.ptr, name.len).ptr;
}

static void check(const tg_json *config, tg_problems *problems) {
    int64_t number;
    const tg_json *at = tg_json_get(config, "at");
    if (at != NULL && !tg_json_whole(at, &number)) {
        tg_problem(problems, "/at", "must be a whole number");
    }
    const tg_json *actions = tg_json_get(config, "decide");
    for (size_t i = 0; actions != NULL && i < actions->len; i++) {
        tg_string action;
        if (!tg_json_string(tg_json_item(actions, i), &action)) {
            tg_problem(problems, tg_format("/decide/%zu", i).ptr, "must be a string");
        }
    }
    if (text_of(config, "attribute", "region").len == 0) {
        tg_problem(problems, "/attribute", "must not be empty");
    }
}

// What throttlers and retry strategies can use
// --------------------------------------------

static void set(const char *key, tg_string value) {
    tg_state_set(tg_str(key), value, tg_no_u64());
}

// The key of what belongs to one job.
static const char *key_of(const char *what, tg_string id) {
    return tg_format("%s %.*s", what, TG_ARG(id)).ptr;
}

static void show_job(const tg_json *config, const tg_job *job) {
    if (shows(config, "jobs")) set(key_of("job", job->id), job_text(job));
    if (shows(config, "attributes")) {
        tg_string all = tg_str("");
        for (size_t i = 0; i < job->attributes.len; i++) {
            const tg_attribute *own = &job->attributes.ptr[i];
            add(&all, ";", tg_format("%.*s=%.*s", TG_ARG(own->name), TG_ARG(own->value)));
        }
        tg_string one = or_attribute(tg_job_attribute(job, attribute_name(config)));
        tg_string absent = or_attribute(tg_job_attribute(job, "absent"));
        set(key_of("attributes", job->id),
            tg_format("%.*s|%.*s|%.*s", TG_ARG(all), TG_ARG(one), TG_ARG(absent)));
    }
    if (shows(config, "earlier")) {
        tg_string earlier = tg_str("");
        for (size_t i = 0; i < job->earlier.len; i++) {
            add(&earlier, ";", failure_text(&job->earlier.ptr[i]));
        }
        set(key_of("earlier", job->id), earlier);
    }
    if (shows(config, "data")) set(key_of("data", job->id), or_text(tg_job_data(job)));
}

// A text that repeats a letter.
static tg_string repeated(char letter, size_t count) {
    char *text = tg_alloc(count);
    memset(text, letter, count);
    tg_string repeated = {text, count};
    return repeated;
}

static void show_state(const tg_json *config) {
    tg_string keys = tg_str("");
    tg_strings found = tg_state_keys(tg_str("k"));
    for (size_t i = 0; i < found.len; i++) add(&keys, ",", found.ptr[i]);
    tg_string kept = or_text(tg_state_get(tg_str("kept")));
    tg_string missing = or_text(tg_state_get(tg_str("missing")));
    tg_string gone = or_text(tg_state_get(tg_str("gone")));
    set("state", tg_format("%.*s|%.*s|%.*s|%.*s", TG_ARG(kept), TG_ARG(missing), TG_ARG(gone),
                           TG_ARG(keys)));
    tg_state_delete(tg_str("old"));
    set("new", tg_str("ä🚲"));
    tg_state_set(tg_str("soon"), tg_str("1"), tg_some_u64((uint64_t)whole_of(config, "at")));
    tg_state_error key = tg_state_set(repeated('k', 129), tg_str("v"), tg_no_u64());
    tg_state_error value = tg_state_set(tg_str("k"), repeated('v', 16385), tg_no_u64());
    set("refused", tg_format("%s|%s", truth(key == TG_STATE_INVALID_KEY),
                             truth(value == TG_STATE_VALUE_TOO_LONG)));
}

// The key of a long value.
static tg_string full_key(int number) { return tg_format("full %d", number); }

// How many long values the state takes, and whether the next one is refused for its bound.
static void show_full(void) {
    tg_string value = repeated('v', 16000);
    int count = 0;
    tg_state_error error = tg_state_set(full_key(count), value, tg_no_u64());
    while (error == TG_STATE_OK) {
        count++;
        error = tg_state_set(full_key(count), value, tg_no_u64());
    }
    tg_maybe_string first = tg_state_get(full_key(0));
    tg_string last = or_text(tg_state_get(full_key(count)));
    for (int number = 0; number < count; number++) tg_state_delete(full_key(number));
    set("full", tg_format("%d|%s|%zu|%.*s", count, truth(error == TG_STATE_FULL),
                          first.is_some ? first.value.len : 0, TG_ARG(last)));
}

static void show_wrong(const tg_json *config) {
    tg_local zone = tg_clock_local(text_of(config, "zone", "UTC"), 0);
    tg_local at = tg_clock_local(tg_str("UTC"), (uint64_t)whole_of(config, "at"));
    tg_local_time wrong = {.year = 2026, .month = 1, .day = 1, .hour = 24};
    tg_instant time = tg_clock_instant(tg_str("UTC"), wrong);
    set("wrong",
        tg_format("%s|%s|%s", truth(zone.failed), truth(at.failed), truth(time.failed)));
}

static void show_clock(const tg_json *config) {
    tg_string zone = text_of(config, "zone", "UTC");
    tg_local local = tg_clock_local(zone, (uint64_t)whole_of(config, "at"));
    tg_instant instant = tg_clock_instant(zone, local.shown.time);
    tg_local_time time = local.shown.time;
    tg_string day = tg_format("%d-%d-%d %d:%d:%d.%d", (int)time.year, time.month, time.day,
                              time.hour, time.minute, time.second, time.millisecond);
    set("clock", tg_format("%" PRIu64 "|%.*s|%d|%d|%" PRIu64, tg_clock_now(), TG_ARG(day),
                           local.shown.weekday, (int)local.shown.offset, instant.at));
}

static void show_common(const tg_json *config, tg_jobs jobs) {
    for (size_t i = 0; i < jobs.len; i++) show_job(config, &jobs.ptr[i]);
    if (shows(config, "state")) show_state(config);
    if (shows(config, "full")) show_full();
    if (shows(config, "clock")) show_clock(config);
    if (shows(config, "wrong")) show_wrong(config);
    if (shows(config, "random")) {
        uint64_t first = tg_random_next();
        set("random", tg_str(truth(first != tg_random_next())));
    }
    if (shows(config, "metrics")) {
        tg_string label = text_of(config, "value", "");
        tg_metrics_add("conformance_calls", label, 3);
        tg_metrics_set("conformance_level", label, -0.5);
    }
    if (shows(config, "log")) {
        tg_string reason = text_of(config, "reason", "");
        tg_log_debug("%.*s", TG_ARG(reason));
        tg_log_info("%.*s", TG_ARG(reason));
        tg_log_warn("%.*s", TG_ARG(reason));
        tg_log_error("%.*s", TG_ARG(reason));
    }
}

// The throttler
// -------------

static void show_ended(const tg_json *config, tg_ended_attempts ended) {
    for (size_t i = 0; i < ended.len; i++) {
        const tg_ended *one = &ended.ptr[i];
        tg_string region = or_attribute(tg_ended_attribute(one, attribute_name(config)));
        tg_string job = tg_format("%.*s|%.*s|%" PRId32 "|%" PRIu32 "|%.*s|%.*s", TG_ARG(one->id),
                                  TG_ARG(one->job_type), one->priority, one->weight,
                                  TG_ARG(region), TG_ARG(or_text(one->target_host)));
        tg_string times = tg_format("%" PRIu32 "|%" PRIu64 "|%" PRIu64 "|%s", one->attempt,
                                    one->started_at, one->ended_at, truth(one->succeeded));
        set(key_of("ended", one->id),
            tg_format("%.*s|%.*s|%.*s|%.*s|%.*s|%.*s|%.*s", TG_ARG(job), TG_ARG(times),
                      TG_ARG(or_text(one->reason)), TG_ARG(or_text(one->message)),
                      TG_ARG(or_status(one->status)), TG_ARG(or_text(one->details)),
                      TG_ARG(or_time(one->not_before))));
    }
}

static void show_running(const tg_json *config) {
    set("running", tg_format("%" PRIu32 "|%" PRIu64, tg_running_count(), tg_running_weight()));
    tg_running_jobs jobs = tg_running_page(0, 1000);
    for (size_t i = 0; i < jobs.len; i++) {
        const tg_running_job *job = &jobs.ptr[i];
        tg_string region = or_attribute(tg_running_job_attribute(job, attribute_name(config)));
        set(key_of("running", job->id),
            tg_format("%.*s|%.*s|%" PRId32 "|%" PRIu32 "|%s|%.*s|%" PRIu64, TG_ARG(job->id),
                      TG_ARG(job->job_type), job->priority, job->weight, truth(job->critical),
                      TG_ARG(region), job->granted_at));
    }
    tg_string page = tg_str("");
    tg_running_jobs second = tg_running_page(1, 2);
    for (size_t i = 0; i < second.len; i++) add(&page, ",", second.ptr[i].id);
    set("page", page);
}

static tg_string groups_text(tg_groups groups) {
    tg_string text = tg_str("");
    for (size_t i = 0; i < groups.len; i++) {
        const tg_group *group = &groups.ptr[i];
        add(&text, ";",
            tg_format("%.*s=%" PRIu32 ",%" PRIu64, TG_ARG(group->value), group->count,
                      group->weight));
    }
    return text;
}

static void show_groups(const tg_json *config) {
    tg_dimension by = tg_by_attribute(text_of(config, "attribute", "region"));
    set("by type", groups_text(tg_running_groups(tg_by_job_type())));
    set("by priority", groups_text(tg_running_groups(tg_by_priority())));
    set("by attribute", groups_text(tg_running_groups(by)));
    tg_group one = tg_running_in_group(by, text_of(config, "value", ""));
    tg_group none = tg_running_in_group(tg_by_job_type(), tg_str("none"));
    set("in group", tg_format("%" PRIu32 ",%" PRIu64 "|%" PRIu32 ",%" PRIu64, one.count,
                              one.weight, none.count, none.weight));
}

static tg_string waiting_text(const tg_waiting_group *group) {
    return tg_format("%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%s", group->count, group->weight,
                     group->oldest_due_at, truth(group->at_least));
}

static void show_waiting(const tg_json *config) {
    tg_string text = tg_str("");
    tg_waiting_groups groups = tg_waiting_groups_by(text_of(config, "attribute", "region"));
    for (size_t i = 0; i < groups.len; i++) {
        const tg_waiting_group *group = &groups.ptr[i];
        add(&text, ";",
            tg_format("%.*s=%.*s", TG_ARG(group->value), TG_ARG(waiting_text(group))));
    }
    set("waiting", text);
    tg_maybe_waiting_group others = tg_waiting_others();
    set("others", others.is_some ? waiting_text(&others.value) : tg_str("-"));
    set("counted at", or_time(tg_waiting_counted_at()));
}

static tg_decision decision(const tg_json *config, tg_string action) {
    tg_string reason = text_of(config, "reason", "");
    uint64_t at = (uint64_t)whole_of(config, "at");
    if (tg_is(action, "hold")) return tg_hold(reason);
    if (tg_is(action, "hold-until")) return tg_hold_until(at, reason);
    if (tg_is(action, "reschedule")) return tg_reschedule(at, reason);
    if (tg_is(action, "drop")) return tg_drop(reason);
    return tg_run();
}

static tg_answer decide(const tg_json *config, const tg_round *round, tg_jobs candidates) {
    if (shows(config, "round")) {
        tg_string concurrency = round->concurrency.is_some
                                    ? tg_format("%" PRIu32, round->concurrency.value)
                                    : tg_str("-");
        set("round", tg_format("%.*s|%" PRIu64 "|%.*s|%" PRIu32 "|%zu", TG_ARG(round->queue),
                               round->now, TG_ARG(concurrency), round->room, candidates.len));
    }
    show_common(config, candidates);
    if (shows(config, "ended")) show_ended(config, round->ended);
    if (shows(config, "running")) show_running(config);
    if (shows(config, "groups")) show_groups(config);
    if (shows(config, "waiting")) show_waiting(config);
    if (tg_is(action_of(config, 0), "error")) {
        return tg_answer_error(text_of(config, "reason", ""));
    }
    tg_answer answer = tg_answer_for(candidates);
    for (size_t i = 0; i < candidates.len; i++) {
        answer.decisions[i] = decision(config, action_of(config, i));
    }
    bool more;
    if (tg_json_bool(tg_json_get(config, "more"), &more)) answer.more = more;
    return answer;
}

static const char *const any[] = {"*", NULL};

static const tg_throttler throttler = {
    .about = "Shows all that a throttler receives.",
    .state_version = 1,
    .group_by = any,
    .needs_running_jobs = true,
    .needs_data = true,
    .needs_ended = true,
    .needs_earlier = true,
    .waiting_by = any,
    .check = check,
    .decide = decide,
};
TG_EXPORT_THROTTLER(throttler)

// The retry strategy
// ------------------

static tg_verdict planned(const tg_json *config) {
    tg_plan plan = tg_plan_at((uint64_t)whole_of(config, "at"));
    tg_string text;
    int64_t number;
    if (tg_json_string(tg_json_get(config, "data"), &text)) plan.data = tg_some_string(text);
    if (tg_json_string(tg_json_get(config, "target"), &text)) plan.target = tg_some_string(text);
    if (tg_json_whole(tg_json_get(config, "priority"), &number)) {
        plan.priority = tg_some_i32((int32_t)number);
    }
    if (tg_json_whole(tg_json_get(config, "weight"), &number)) {
        plan.weight = tg_some_u32((uint32_t)number);
    }
    if (tg_json_whole(tg_json_get(config, "attempts_left"), &number)) {
        plan.attempts_left = tg_some_u32((uint32_t)number);
    }
    if (tg_json_whole(tg_json_get(config, "timeout"), &number)) {
        plan.timeout = tg_some_u64((uint64_t)number);
    }
    return tg_retry(plan);
}

static tg_verdict on_failure(const tg_json *config, const tg_call *call, const tg_job *job,
                             const tg_failure *last) {
    if (shows(config, "call")) {
        set("call", tg_format("%.*s|%" PRIu64, TG_ARG(call->queue), call->now));
    }
    if (shows(config, "last")) set("last", failure_text(last));
    tg_jobs jobs = {job, 1};
    show_common(config, jobs);
    tg_string action = action_of(config, 0);
    tg_string reason = text_of(config, "reason", "");
    if (tg_is(action, "error")) return tg_verdict_error(reason);
    if (tg_is(action, "give-up")) return tg_give_up_with(reason);
    if (tg_is(action, "give-up-silently")) return tg_give_up();
    return planned(config);
}

static const tg_retry_strategy strategy = {
    .about = "Shows all that a retry strategy receives.",
    .state_version = 1,
    .needs_data = true,
    .check = check,
    .on_failure = on_failure,
};
TG_EXPORT_RETRY(strategy)
