// tidegate.hpp: plugins for tidegate in C++20, on top of tidegate.h, which describes the contract.
//
//     #include "sdk/tidegate.hpp"
//
//     using namespace tidegate;
//
//     static Answer decide(const Json &config, const Round &round, Jobs candidates) {
//         return std::vector<Decision>(candidates.size(), run());
//     }
//
//     static const Throttler throttler{.about = "Runs every job.", .decide = decide};
//     TIDEGATE_EXPORT_THROTTLER(throttler)
//
// Texts of a call are `std::string_view`s that are valid until its end. There are no exceptions:
// return an `Error`.

#ifndef TIDEGATE_HPP
#define TIDEGATE_HPP

#include "tidegate.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidegate {

/// A candidate, or the failed job. `job.attribute("region")` is an attribute's value.
using Job = tg_job;
/// The candidates. A loop over a range and `[]` work.
using Jobs = tg_jobs;
using Failure = tg_failure;
using RunningJob = tg_running_job;
using Ended = tg_ended;
using Group = tg_group;
using WaitingGroup = tg_waiting_group;
/// What happens to a candidate. `run()` and its neighbours make it.
using Decision = tg_decision;
/// The inputs of a retry strategy's decision.
using Call = tg_call;

namespace detail {
inline tg_string borrowed(std::string_view text) { return {text.data(), text.size()}; }

/// A copy that is valid until the end of the call.
inline tg_string kept(std::string_view text) { return tg_copy(text.data(), text.size()); }
} // namespace detail

/// A JSON value, or a value that is not there.
class Json {
  public:
    explicit Json(const tg_json *value) : value_(value) {}
    /// Reads JSON text. Not there if it is malformed.
    static Json parse(std::string_view text) {
        return Json(tg_json_parse(detail::borrowed(text)));
    }

    /// Whether it is there. `null` is.
    explicit operator bool() const { return value_ != nullptr; }
    /// The value of a field of an object.
    Json operator[](std::string_view name) const {
        return Json(tg_json_get_named(value_, detail::borrowed(name)));
    }
    /// An element of an array.
    Json item(std::size_t index) const { return Json(tg_json_item(value_, index)); }
    /// The number of elements or fields.
    std::size_t size() const { return value_ ? value_->len : 0; }
    /// The name of a field of an object. Empty if it has no such field.
    std::string_view name(std::size_t index) const {
        bool found = is_object() && index < value_->len;
        return found ? std::string_view(value_->names[index]) : std::string_view();
    }
    bool is_null() const { return is(TG_JSON_NULL); }
    bool is_array() const { return is(TG_JSON_ARRAY); }
    bool is_object() const { return is(TG_JSON_OBJECT); }
    /// A whole number of 64 bits without fraction or exponent.
    std::optional<std::int64_t> whole() const {
        std::int64_t number;
        return tg_json_whole(value_, &number) ? std::optional(number) : std::nullopt;
    }
    std::optional<double> number() const {
        double number;
        return tg_json_number(value_, &number) ? std::optional(number) : std::nullopt;
    }
    std::optional<std::string_view> string() const {
        tg_string text;
        if (!tg_json_string(value_, &text)) return std::nullopt;
        return std::string_view(text);
    }
    std::optional<bool> boolean() const {
        bool truth;
        return tg_json_bool(value_, &truth) ? std::optional(truth) : std::nullopt;
    }
    /// A text as a JSON string, in quotation marks.
    static std::string quote(std::string_view text) {
        return std::string(tg_json_quote(detail::borrowed(text)));
    }

  private:
    bool is(tg_json_kind kind) const { return value_ && value_->kind == kind; }
    const tg_json *value_;
};

/// The errors of a configuration.
class Problems {
  public:
    explicit Problems(tg_problems *problems) : problems_(problems) {}
    /// Adds an error. `path` is the JSON pointer to the wrong part (`/limit`).
    void add(const std::string &path, const std::string &message) {
        tg_problem(problems_, path.c_str(), "%s", message.c_str());
    }

  private:
    tg_problems *problems_;
};

/// Why a call failed. The queue's `on_failure` or the built-in backoff decides.
struct Error {
    std::string message;
};

/// The log of the plugin, which `tidegate plugin logs` shows.
namespace log {
inline void debug(const std::string &text) { tg_log_debug("%s", text.c_str()); }
inline void info(const std::string &text) { tg_log_info("%s", text.c_str()); }
inline void warn(const std::string &text) { tg_log_warn("%s", text.c_str()); }
inline void error(const std::string &text) { tg_log_error("%s", text.c_str()); }
} // namespace log

/// The clock, which does not move during a call. Times are milliseconds since 1970.
namespace clock {
inline std::uint64_t now() { return tg_clock_now(); }
/// Local time in a zone of the IANA database, such as `Europe/Berlin`.
inline tg_local local(std::string_view zone, std::uint64_t at) {
    return tg_clock_local(detail::borrowed(zone), at);
}
/// The instant at which a zone shows a time: the first of two, or the change that skips it.
inline tg_instant instant(std::string_view zone, tg_local_time time) {
    return tg_clock_instant(detail::borrowed(zone), time);
}
} // namespace clock

/// Random numbers that begin with the seed of the call. Not for secrets.
namespace random {
inline std::uint64_t next() { return tg_random_next(); }
/// A number of 0 to `bound` - 1. 0 if the bound is 0.
inline std::uint64_t below(std::uint64_t bound) { return tg_random_below(bound); }
} // namespace random

/// Metrics of the plugin, for operators.
namespace metrics {
/// Adds to a counter. A negative amount is left out.
inline void add(const char *name, std::string_view label, double amount) {
    tg_metrics_add(name, detail::borrowed(label), amount);
}
/// Sets a gauge.
inline void set(const char *name, std::string_view label, double value) {
    tg_metrics_set(name, detail::borrowed(label), value);
}
} // namespace metrics

/// The data of a candidate, or of the failed job, as JSON text. Needs `needs_data`.
inline std::optional<std::string_view> job_data(const Job &job) { return tg_job_data(&job); }

// Throttlers
// ----------

/// The property that groups the running set.
using Dimension = tg_dimension;
inline Dimension by_job_type() { return tg_by_job_type(); }
inline Dimension by_priority() { return tg_by_priority(); }
/// `group_by` must name the attribute.
inline Dimension by_attribute(std::string_view name) {
    return tg_by_attribute(detail::borrowed(name));
}

/// The running set: the queue's granted jobs, whether started or not, without the candidates.
struct Running {
    std::uint32_t count() const { return tg_running_count(); }
    std::uint64_t weight() const { return tg_running_weight(); }
    /// The groups of all values of a dimension. Jobs without the attribute are in no group.
    tg_groups groups(Dimension by) const { return tg_running_groups(by); }
    /// The group of one value. Its count and weight are 0 if no job has the value.
    Group in_group(Dimension by, std::string_view value) const {
        return tg_running_in_group(by, detail::borrowed(value));
    }
    /// The running weight by the values of a dimension.
    std::unordered_map<std::string_view, std::uint64_t> weights(Dimension by) const {
        std::unordered_map<std::string_view, std::uint64_t> weights;
        for (const Group &group : groups(by)) weights.emplace(group.value, group.weight);
        return weights;
    }
    /// The running jobs, the earliest granted first: at most 1000 a page. Needs
    /// `needs_running_jobs`.
    tg_running_jobs page(std::uint32_t offset, std::uint32_t limit) const {
        return tg_running_page(offset, limit);
    }
};

/// What waits in the queue: estimates by the attributes in `waiting_by`. A group of each candidate
/// is there.
struct Waiting {
    /// The groups of the values of an attribute, sorted by value.
    tg_waiting_groups groups(std::string_view by) const {
        return tg_waiting_groups_by(detail::borrowed(by));
    }
    /// The jobs of all partitions that are in no group, because there are too many.
    std::optional<WaitingGroup> others() const { return tg_waiting_others(); }
    /// When the queue was counted. None if that has not happened yet.
    std::optional<std::uint64_t> counted_at() const { return tg_waiting_counted_at(); }
};

/// The state, which is committed with the call's decisions if the call succeeds: `round.state` of a
/// throttler. In a retry strategy with a `state_version`, `State state;` is its state.
struct State {
    std::optional<std::string_view> get(std::string_view key) const {
        return tg_state_get(detail::borrowed(key));
    }
    /// Sets a value, which counts as deleted from `expires_at` on. The error says why it did not.
    std::optional<Error> set(std::string_view key, std::string_view value,
                             std::optional<std::uint64_t> expires_at = std::nullopt) const {
        tg_state_error error =
            tg_state_set(detail::borrowed(key), detail::borrowed(value),
                         expires_at ? tg_some_u64(*expires_at) : tg_no_u64());
        if (error == TG_STATE_OK) return std::nullopt;
        return Error{tg_state_error_message(error)};
    }
    /// `delete` of the contract, which is a word of C++.
    void remove(std::string_view key) const { tg_state_delete(detail::borrowed(key)); }
    /// The keys that begin with `prefix`, sorted.
    tg_strings keys(std::string_view prefix = "") const {
        return tg_state_keys(detail::borrowed(prefix));
    }
};

/// The inputs of a decision, in addition to the configuration and the candidates.
struct Round {
    /// The queue's name.
    std::string_view queue;
    /// The time of the decision. There is no other clock.
    std::uint64_t now;
    /// A seed for random numbers, different in every call.
    std::uint64_t seed;
    /// The queue's own concurrency, if it has one.
    std::optional<std::uint32_t> concurrency;
    /// How many jobs workers can take now.
    std::uint32_t room;
    /// The attempts that ended since the last answer that counted. Needs `needs_ended`.
    tg_ended_attempts ended;
    Running running;
    Waiting waiting;
    State state;
};

/// The job starts now.
inline Decision run() { return tg_run(); }
/// The job waits. The next tick of its queue offers it again.
inline Decision hold(std::string_view reason) { return tg_hold(detail::kept(reason)); }
/// The job waits. The next tick of its queue offers it again, at the latest at `until`.
inline Decision hold_until(std::uint64_t until, std::string_view reason) {
    return tg_hold_until(until, detail::kept(reason));
}
/// The job is due at `at`, which is after now and within 366 days.
inline Decision reschedule(std::uint64_t at, std::string_view reason) {
    return tg_reschedule(at, detail::kept(reason));
}
/// The job ends `dropped`.
inline Decision drop(std::string_view reason) { return tg_drop(detail::kept(reason)); }

/// The answer of a throttler: a list of decisions, or an `Error`.
struct Answer {
    Answer(std::vector<Decision> made, bool further = true)
        : decisions(std::move(made)), more(further) {}
    Answer(Error why) : error(std::move(why.message)) {}

    /// One decision per candidate, in their order.
    std::vector<Decision> decisions;
    /// Whether jobs further back in the queue may run too.
    bool more = true;
    std::optional<std::string> error;
};

/// A throttler. Only `about` and `decide` are required.
struct Throttler {
    /// A sentence for operators.
    const char *about;
    /// JSON Schema of the configuration, as text.
    const char *config_schema = nullptr;
    /// The version of the state's format. Another number starts with an empty state.
    std::uint32_t state_version = 0;
    /// The attributes that group the running set. `*` permits any.
    std::vector<const char *> group_by = {};
    /// Whether it calls `round.running.page`.
    bool needs_running_jobs = false;
    /// Whether it calls `job_data`.
    bool needs_data = false;
    /// Whether it reads `round.ended`.
    bool needs_ended = false;
    /// Whether it reads `job.earlier`.
    bool needs_earlier = false;
    /// The attributes that group what waits: at most 2, which the queue's `partition_by` and
    /// `partition_then_by` name. `*` permits both.
    std::vector<const char *> waiting_by = {};
    /// Adds the errors of a configuration.
    void (*check)(const Json &config, Problems &problems) = nullptr;
    /// Decides on the candidates. They are in the queue's order, and each of them alone fits the
    /// queue's limits. The running set does not contain those that this call runs, so count them.
    Answer (*decide)(const Json &config, const Round &round, Jobs candidates);
};

// Retry strategies
// ----------------

/// The next attempt. What has no value keeps the job's.
struct Plan {
    /// When it is due: within 366 days, and at least 50 ms after the call.
    std::uint64_t at;
    /// JSON text that replaces the job's data.
    std::optional<std::string> data = std::nullopt;
    std::optional<std::int32_t> priority = std::nullopt;
    std::optional<std::uint32_t> weight = std::nullopt;
    /// How many attempts the job still has, including the next one: at least 1.
    std::optional<std::uint32_t> attempts_left = std::nullopt;
    /// The timeout of the job's attempts, in milliseconds.
    std::optional<std::uint64_t> timeout = std::nullopt;
    /// A name in `retry_targets` of the job's type, or empty for the type's own target.
    std::optional<std::string> target = std::nullopt;
};

/// The answer of a retry strategy: what `retry`, `after` and `give_up` return, or an `Error`.
struct Verdict {
    Verdict(tg_verdict made) : answer(made) {}
    Verdict(const Error &why) : answer(tg_verdict_error(detail::kept(why.message))) {}

    tg_verdict answer;
};

/// Another attempt.
inline Verdict retry(const Plan &plan) {
    tg_plan lowered = tg_plan_at(plan.at);
    if (plan.data) lowered.data = tg_some_string(detail::kept(*plan.data));
    if (plan.priority) lowered.priority = tg_some_i32(*plan.priority);
    if (plan.weight) lowered.weight = tg_some_u32(*plan.weight);
    if (plan.attempts_left) lowered.attempts_left = tg_some_u32(*plan.attempts_left);
    if (plan.timeout) lowered.timeout = tg_some_u64(*plan.timeout);
    if (plan.target) lowered.target = tg_some_string(detail::kept(*plan.target));
    return tg_retry(lowered);
}
/// Another attempt, `millis` after the call. The server waits longer if the target requested it.
inline Verdict after(const Call &call, std::uint64_t millis) { return tg_after(&call, millis); }
/// No more attempts: the job ends `failed` with the message of the failure.
inline Verdict give_up() { return tg_give_up(); }
/// No more attempts: the job ends `failed` with this message.
inline Verdict give_up(std::string_view message) { return tg_give_up_with(detail::kept(message)); }

/// A retry strategy. Only `about` and `on_failure` are required.
struct RetryStrategy {
    /// A sentence for operators.
    const char *about;
    /// JSON Schema of the configuration, as text.
    const char *config_schema = nullptr;
    /// The version of the state's format. Another number starts with an empty state. With 0 it
    /// cannot use `State`.
    std::uint32_t state_version = 0;
    /// Whether it calls `job_data`.
    bool needs_data = false;
    /// Adds the errors of a configuration.
    void (*check)(const Json &config, Problems &problems) = nullptr;
    /// Decides what follows the failure `last` of `job`, whose earlier failures are in
    /// `job.earlier`.
    Verdict (*on_failure)(const Json &config, const Call &call, const Job &job,
                          const Failure &last);
};

// The exports of the contract
// ---------------------------

namespace detail {
template <const auto &plugin> void check(const tg_json *config, tg_problems *problems) {
    Problems list(problems);
    if (plugin.check) plugin.check(Json(config), list);
}

template <const Throttler &plugin>
tg_answer decide(const tg_json *config, const tg_round *given, tg_jobs candidates) {
    Round round{given->queue, given->now,   given->seed, given->concurrency,
                given->room,  given->ended, {},          {},
                {}};
    Answer made = plugin.decide(Json(config), round, candidates);
    if (made.error) return tg_answer_error(kept(*made.error));
    std::size_t len = made.decisions.size();
    tg_jobs places = {nullptr, len};
    tg_answer answer = tg_answer_for(places);
    for (std::size_t i = 0; i < len; i++) answer.decisions[i] = made.decisions[i];
    answer.more = made.more;
    return answer;
}

template <const RetryStrategy &plugin>
tg_verdict on_failure(const tg_json *config, const tg_call *call, const tg_job *job,
                      const tg_failure *last) {
    return plugin.on_failure(Json(config), *call, *job, *last).answer;
}

/// The names with a null pointer at the end.
inline const char **lowered_names(const std::vector<const char *> &given) {
    const char **names =
        static_cast<const char **>(tg_alloc((given.size() + 1) * sizeof(char *)));
    std::size_t len = 0;
    for (const char *name : given) names[len++] = name;
    names[len] = nullptr;
    return names;
}

template <const Throttler &plugin> tg_throttler lowered_throttler() {
    tg_throttler lowered{};
    lowered.about = plugin.about;
    lowered.config_schema = plugin.config_schema;
    lowered.state_version = plugin.state_version;
    lowered.group_by = lowered_names(plugin.group_by);
    lowered.needs_running_jobs = plugin.needs_running_jobs;
    lowered.needs_data = plugin.needs_data;
    lowered.needs_ended = plugin.needs_ended;
    lowered.needs_earlier = plugin.needs_earlier;
    lowered.waiting_by = lowered_names(plugin.waiting_by);
    lowered.check = check<plugin>;
    lowered.decide = decide<plugin>;
    return lowered;
}

template <const RetryStrategy &plugin> tg_retry_strategy lowered_retry() {
    tg_retry_strategy lowered{};
    lowered.about = plugin.about;
    lowered.config_schema = plugin.config_schema;
    lowered.state_version = plugin.state_version;
    lowered.needs_data = plugin.needs_data;
    lowered.check = check<plugin>;
    lowered.on_failure = on_failure<plugin>;
    return lowered;
}
} // namespace detail

} // namespace tidegate

/// Exports a `Throttler`, a variable of the file. A plugin may also export a retry strategy.
#define TIDEGATE_EXPORT_THROTTLER(throttler)                   \
    static const tg_throttler tidegate_throttler_of_the_file = \
        tidegate::detail::lowered_throttler<throttler>();      \
    TG_EXPORT_THROTTLER(tidegate_throttler_of_the_file)

/// Exports a `RetryStrategy`, a variable of the file. A plugin may also export a throttler.
#define TIDEGATE_EXPORT_RETRY(strategy)                        \
    static const tg_retry_strategy tidegate_retry_of_the_file = \
        tidegate::detail::lowered_retry<strategy>();           \
    TG_EXPORT_RETRY(tidegate_retry_of_the_file)

#endif
