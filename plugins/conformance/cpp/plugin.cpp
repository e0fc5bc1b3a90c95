// The conformance plugin: it writes what it receives into its state, and answers as its configuration
// says. `cases` has the configurations and the expected texts.

#include "sdk/tidegate.hpp"

using namespace tidegate;

// Texts
// -----

static std::string str(std::string_view text) { return std::string(text); }
static std::string str(bool truth) { return truth ? "true" : "false"; }
static std::string str(std::uint64_t number) { return std::to_string(number); }
static std::string str(std::uint32_t number) { return std::to_string(number); }
static std::string str(std::int32_t number) { return std::to_string(number); }
static std::string str(const char *text) { return text; }
static std::string str(const std::string &text) { return text; }
static std::string str(tg_string text) { return std::string(text); }

// An absent value is a dash.
static std::string or_none(const tg_maybe_string &value) {
    return value.is_some ? str(value.value) : "-";
}
static std::string or_none(const tg_maybe_u64 &value) {
    return value.is_some ? str(value.value) : "-";
}
static std::string or_none(const tg_maybe_u16 &value) {
    return value.is_some ? std::to_string(value.value) : "-";
}
static std::string or_none(std::optional<std::string_view> value) {
    return value ? str(*value) : "-";
}
static std::string or_none(std::optional<std::uint32_t> value) {
    return value ? str(*value) : "-";
}
static std::string or_none(std::optional<std::uint64_t> value) {
    return value ? str(*value) : "-";
}

template <typename First, typename... Rest>
static std::string joined(const char *separator, const First &first, const Rest &...rest) {
    std::string text = str(first);
    ((text += separator, text += str(rest)), ...);
    return text;
}

template <typename List, typename Text>
static std::string listed(const List &list, const char *separator, Text text) {
    std::string all;
    for (const auto &item : list) {
        if (!all.empty()) all += separator;
        all += text(item);
    }
    return all;
}

static std::string failure_text(const Failure &failure) {
    return joined(",", failure.attempt, failure.reason, or_none(failure.message),
                  or_none(failure.status), or_none(failure.details), failure.started_at,
                  failure.ended_at, or_none(failure.not_before));
}

static std::string job_text(const Job &job) {
    return joined("|", job.id, job.job_type, job.priority, job.weight, job.attempt, job.attempts,
                  job.created_at, job.run_at, or_none(job.expires_at), or_none(job.deadline_at),
                  or_none(job.target_host), or_none(job.replay_of), or_none(job.correlation_key));
}

// The configuration
// -----------------

static std::string text_of(const Json &config, const char *name, const char *otherwise = "") {
    return str(config[name].string().value_or(otherwise));
}

static std::string attribute_of(const Json &config) {
    return text_of(config, "attribute", "region");
}

static std::uint64_t at_of(const Json &config) {
    return static_cast<std::uint64_t>(config["at"].whole().value_or(0));
}

static bool shows(const Json &config, std::string_view what) {
    Json shown = config["show"];
    for (std::size_t i = 0; i < shown.size(); i++) {
        if (shown.item(i).string() == what) return true;
    }
    return false;
}

static std::string action_of(const Json &config, std::size_t index) {
    return str(config["decide"].item(index).string().value_or(""));
}

static void check(const Json &config, Problems &problems) {
    if (config["at"] && !config["at"].whole()) problems.add("/at", "must be a whole number");
    Json actions = config["decide"];
    for (std::size_t i = 0; i < actions.size(); i++) {
        if (!actions.item(i).string()) {
            problems.add("/decide/" + std::to_string(i), "must be a string");
        }
    }
    if (attribute_of(config).empty()) problems.add("/attribute", "must not be empty");
}

// What throttlers and retry strategies can use
// --------------------------------------------

static void show_job(const Json &config, const State &state, const Job &job) {
    if (shows(config, "jobs")) state.set("job " + str(job.id), job_text(job));
    if (shows(config, "attributes")) {
        auto pair = [](const tg_attribute &own) { return joined("=", own.name, own.value); };
        std::string one = or_none(job.attribute(attribute_of(config).c_str()));
        state.set("attributes " + str(job.id), joined("|", listed(job.attributes, ";", pair), one,
                                                      or_none(job.attribute("absent"))));
    }
    if (shows(config, "earlier")) {
        state.set("earlier " + str(job.id), listed(job.earlier, ";", failure_text));
    }
    if (shows(config, "data")) state.set("data " + str(job.id), or_none(job_data(job)));
}

static void show_state(const Json &config, const State &state) {
    std::string keys =
        listed(state.keys("k"), ",", [](const tg_string &key) { return str(key); });
    state.set("state", joined("|", or_none(state.get("kept")), or_none(state.get("missing")),
                              or_none(state.get("gone")), keys));
    state.remove("old");
    state.set("new", "ä🚲");
    state.set("soon", "1", at_of(config));
    bool key = state.set(std::string(129, 'k'), "v").has_value();
    bool value = state.set("k", std::string(16385, 'v')).has_value();
    state.set("refused", joined("|", key, value));
}

static std::string full_key(int number) { return "full " + std::to_string(number); }

// How many long values the state takes, and whether the next one is refused for its bound.
static void show_full(const State &state) {
    std::string value(16000, 'v');
    int count = 0;
    std::optional<Error> error = state.set(full_key(count), value);
    while (!error) {
        count++;
        error = state.set(full_key(count), value);
    }
    std::size_t first = state.get(full_key(0)).value_or("").size();
    std::string last = or_none(state.get(full_key(count)));
    for (int number = 0; number < count; number++) state.remove(full_key(number));
    bool is_full = error->message.find("256 KiB") != std::string::npos;
    state.set("full", joined("|", std::to_string(count), is_full, std::to_string(first), last));
}

static void show_wrong(const Json &config, const State &state) {
    tg_local zone = clock::local(text_of(config, "zone", "UTC"), 0);
    tg_local at = clock::local("UTC", at_of(config));
    tg_local_time wrong{.year = 2026, .month = 1, .day = 1, .hour = 24, .minute = 0, .second = 0,
                        .millisecond = 0};
    tg_instant time = clock::instant("UTC", wrong);
    state.set("wrong", joined("|", zone.failed, at.failed, time.failed));
}

static void show_clock(const Json &config, const State &state) {
    std::string zone = text_of(config, "zone", "UTC");
    tg_local local = clock::local(zone, at_of(config));
    tg_local_time time = local.shown.time;
    tg_instant instant = clock::instant(zone, time);
    auto number = [](int value) { return std::to_string(value); };
    std::string date = joined("-", time.year, number(time.month), number(time.day));
    std::string day = joined(":", number(time.hour), number(time.minute), number(time.second));
    std::string shown = date + " " + day + "." + number(time.millisecond);
    state.set("clock", joined("|", clock::now(), shown, number(local.shown.weekday),
                              local.shown.offset, instant.at));
}

static void show_common(const Json &config, const State &state, Jobs jobs) {
    for (const Job &job : jobs) show_job(config, state, job);
    if (shows(config, "state")) show_state(config, state);
    if (shows(config, "full")) show_full(state);
    if (shows(config, "clock")) show_clock(config, state);
    if (shows(config, "wrong")) show_wrong(config, state);
    if (shows(config, "random")) {
        std::uint64_t first = tidegate::random::next();
        state.set("random", str(first != tidegate::random::next()));
    }
    if (shows(config, "metrics")) {
        metrics::add("conformance_calls", text_of(config, "value"), 3);
        metrics::set("conformance_level", text_of(config, "value"), -0.5);
    }
    if (shows(config, "log")) {
        std::string reason = text_of(config, "reason");
        tidegate::log::debug(reason);
        tidegate::log::info(reason);
        tidegate::log::warn(reason);
        tidegate::log::error(reason);
    }
}

// The throttler
// -------------

static void show_ended(const Json &config, const Round &round) {
    for (const Ended &one : round.ended) {
        std::string region = or_none(one.attribute(attribute_of(config).c_str()));
        round.state.set("ended " + str(one.id),
                        joined("|", one.id, one.job_type, one.priority, one.weight, region,
                               or_none(one.target_host), one.attempt, one.started_at,
                               one.ended_at, one.succeeded, or_none(one.reason),
                               or_none(one.message), or_none(one.status), or_none(one.details),
                               or_none(one.not_before)));
    }
}

static void show_running(const Json &config, const Round &round) {
    const Running &running = round.running;
    round.state.set("running", joined("|", running.count(), running.weight()));
    for (const RunningJob &job : running.page(0, 1000)) {
        std::string region = or_none(job.attribute(attribute_of(config).c_str()));
        round.state.set("running " + str(job.id),
                        joined("|", job.id, job.job_type, job.priority, job.weight, job.critical,
                               region, job.granted_at));
    }
    auto id = [](const RunningJob &job) { return str(job.id); };
    round.state.set("page", listed(running.page(1, 2), ",", id));
}

static void show_groups(const Json &config, const Round &round) {
    auto text = [](const Group &group) {
        return str(group.value) + "=" + joined(",", group.count, group.weight);
    };
    const Running &running = round.running;
    std::string name = attribute_of(config);
    Dimension by = by_attribute(name);
    round.state.set("by type", listed(running.groups(by_job_type()), ";", text));
    round.state.set("by priority", listed(running.groups(by_priority()), ";", text));
    round.state.set("by attribute", listed(running.groups(by), ";", text));
    Group one = running.in_group(by, text_of(config, "value"));
    Group none = running.in_group(by_job_type(), "none");
    round.state.set("in group", joined("|", joined(",", one.count, one.weight),
                                       joined(",", none.count, none.weight)));
}

static void show_waiting(const Json &config, const Round &round) {
    auto text = [](const WaitingGroup &group) {
        return joined(",", group.count, group.weight, group.oldest_due_at, group.at_least);
    };
    auto named = [&](const WaitingGroup &group) { return str(group.value) + "=" + text(group); };
    round.state.set("waiting", listed(round.waiting.groups(attribute_of(config)), ";", named));
    std::optional<WaitingGroup> others = round.waiting.others();
    round.state.set("others", others ? text(*others) : "-");
    round.state.set("counted at", or_none(round.waiting.counted_at()));
}

static Decision decision(const Json &config, const std::string &action) {
    std::string reason = text_of(config, "reason");
    if (action == "hold") return hold(reason);
    if (action == "hold-until") return hold_until(at_of(config), reason);
    if (action == "reschedule") return reschedule(at_of(config), reason);
    if (action == "drop") return drop(reason);
    return run();
}

static Answer decide(const Json &config, const Round &round, Jobs candidates) {
    if (shows(config, "round")) {
        std::uint64_t count = candidates.size();
        round.state.set("round", joined("|", round.queue, round.now, or_none(round.concurrency),
                                        round.room, count));
    }
    show_common(config, round.state, candidates);
    if (shows(config, "ended")) show_ended(config, round);
    if (shows(config, "running")) show_running(config, round);
    if (shows(config, "groups")) show_groups(config, round);
    if (shows(config, "waiting")) show_waiting(config, round);
    if (action_of(config, 0) == "error") return Error{text_of(config, "reason")};
    std::vector<Decision> decisions;
    for (std::size_t i = 0; i < candidates.size(); i++) {
        decisions.push_back(decision(config, action_of(config, i)));
    }
    return {decisions, config["more"].boolean().value_or(true)};
}

static const Throttler throttler{
    .about = "Shows all that a throttler receives.",
    .state_version = 1,
    .group_by = {"*"},
    .needs_running_jobs = true,
    .needs_data = true,
    .needs_ended = true,
    .needs_earlier = true,
    .waiting_by = {"*"},
    .check = check,
    .decide = decide,
};
TIDEGATE_EXPORT_THROTTLER(throttler)

// The retry strategy
// ------------------

template <typename Number> static std::optional<Number> number_of(const Json &value) {
    std::optional<std::int64_t> number = value.whole();
    return number ? std::optional(static_cast<Number>(*number)) : std::nullopt;
}

static std::optional<std::string> string_of(const Json &value) {
    std::optional<std::string_view> text = value.string();
    return text ? std::optional(str(*text)) : std::nullopt;
}

static Verdict on_failure(const Json &config, const Call &call, const Job &job,
                          const Failure &last) {
    State state;
    if (shows(config, "call")) state.set("call", joined("|", call.queue, call.now));
    if (shows(config, "last")) state.set("last", failure_text(last));
    show_common(config, state, Jobs{&job, 1});
    std::string action = action_of(config, 0);
    if (action == "error") return Error{text_of(config, "reason")};
    if (action == "give-up") return give_up(text_of(config, "reason"));
    if (action == "give-up-silently") return give_up();
    return retry(Plan{
        .at = at_of(config),
        .data = string_of(config["data"]),
        .priority = number_of<std::int32_t>(config["priority"]),
        .weight = number_of<std::uint32_t>(config["weight"]),
        .attempts_left = number_of<std::uint32_t>(config["attempts_left"]),
        .timeout = number_of<std::uint64_t>(config["timeout"]),
        .target = string_of(config["target"]),
    });
}

static const RetryStrategy strategy{
    .about = "Shows all that a retry strategy receives.",
    .state_version = 1,
    .needs_data = true,
    .check = check,
    .on_failure = on_failure,
};
TIDEGATE_EXPORT_RETRY(strategy)
