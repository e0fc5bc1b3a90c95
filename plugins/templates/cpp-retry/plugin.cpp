// Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
// rule.

#include "sdk/tidegate.hpp"

#include <algorithm>
#include <cmath>

using namespace tidegate;

// The longest wait, in seconds.
constexpr double a_day = 86400;

static void check(const Json &config, Problems &problems) {
    if (config["base_seconds"].number().value_or(0) <= 0) {
        problems.add("/base_seconds", "must be a number over 0");
    }
}

static Verdict on_failure(const Json &config, const Call &call, const Job &job,
                          const Failure &last) {
    if (last.status && (*last.status == 404 || *last.status == 410)) {
        return give_up("what it was for is gone");
    }
    double base = config["base_seconds"].number().value_or(0);
    double wait = std::min(std::ldexp(base, static_cast<int>(job.attempt) - 1), a_day);
    return after(call, static_cast<uint64_t>(wait * 1000));
}

static const RetryStrategy strategy{
    .about = "Gives up what is gone, and waits longer each time for the rest.",
    .check = check,
    .on_failure = on_failure,
};
TIDEGATE_EXPORT_RETRY(strategy)
