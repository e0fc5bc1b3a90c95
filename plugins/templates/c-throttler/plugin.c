// At most `limit` jobs of each type at a time. Change it into your own rule.

#include "sdk/tidegate.h"

static void check(const tg_json *config, tg_problems *problems) {
    int64_t limit;
    if (!tg_json_whole(tg_json_get(config, "limit"), &limit) || limit < 0) {
        tg_problem(problems, "/limit", "must be a whole number, not negative");
    }
}

static tg_answer decide(const tg_json *config, const tg_round *round, tg_jobs candidates) {
    (void)round;
    int64_t limit = 0;
    tg_json_whole(tg_json_get(config, "limit"), &limit);
    // The running jobs, and those that this call runs.
    tg_weights *used = tg_running_weights(tg_by_job_type());
    tg_answer answer = tg_answer_for(candidates);
    for (size_t i = 0; i < candidates.len; i++) {
        const tg_job *job = &candidates.ptr[i];
        uint64_t *weight = tg_weight_of(used, job->job_type);
        if (*weight + job->weight > (uint64_t)limit) {
            answer.decisions[i] =
                tg_hold(tg_format("the limit for %.*s jobs is reached", TG_ARG(job->job_type)));
        } else {
            *weight += job->weight;
            answer.decisions[i] = tg_run();
        }
    }
    return answer;
}

static const tg_throttler throttler = {
    .about = "At most `limit` jobs of each type at a time.",
    .check = check,
    .decide = decide,
};
TG_EXPORT_THROTTLER(throttler)
