// Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
// rule.

#include "sdk/tidegate.h"

// The longest wait, in seconds.
#define A_DAY 86400.0

static void check(const tg_json *config, tg_problems *problems) {
    double base;
    if (!tg_json_number(tg_json_get(config, "base_seconds"), &base) || base <= 0) {
        tg_problem(problems, "/base_seconds", "must be a number over 0");
    }
}

static tg_verdict on_failure(const tg_json *config, const tg_call *call, const tg_job *job,
                             const tg_failure *last) {
    if (last->status.is_some && (last->status.value == 404 || last->status.value == 410)) {
        return tg_give_up_with(tg_str("what it was for is gone"));
    }
    double wait = 0;
    tg_json_number(tg_json_get(config, "base_seconds"), &wait);
    for (uint32_t attempt = 1; attempt < job->attempt && wait < A_DAY; attempt++) wait *= 2;
    if (wait > A_DAY) wait = A_DAY;
    return tg_after(call, (uint64_t)(wait * 1000));
}

static const tg_retry_strategy strategy = {
    .about = "Gives up what is gone, and waits longer each time for the rest.",
    .check = check,
    .on_failure = on_failure,
};
TG_EXPORT_RETRY(strategy)
