// At most `limit` jobs of each type at a time. Change it into your own rule.

#include "sdk/tidegate.hpp"

using namespace tidegate;

static void check(const Json &config, Problems &problems) {
    if (config["limit"].whole().value_or(-1) < 0) {
        problems.add("/limit", "must be a whole number, not negative");
    }
}

static Answer decide(const Json &config, const Round &round, Jobs candidates) {
    uint64_t limit = config["limit"].whole().value_or(0);
    // The running jobs, and those that this call runs.
    auto used = round.running.weights(by_job_type());
    std::vector<Decision> decisions;
    for (const Job &job : candidates) {
        uint64_t &weight = used[job.job_type];
        if (weight + job.weight > limit) {
            decisions.push_back(
                hold("the limit for " + std::string(job.job_type) + " jobs is reached"));
        } else {
            weight += job.weight;
            decisions.push_back(run());
        }
    }
    return decisions;
}

static const Throttler throttler{
    .about = "At most `limit` jobs of each type at a time.",
    .check = check,
    .decide = decide,
};
TIDEGATE_EXPORT_THROTTLER(throttler)
