from sdk.throttler import Throttler, hold, run


class Throttle(Throttler):
    about = "At most `limit` jobs of each type at a time."

    def check(self, config):
        return [] if type(config.get("limit")) is int else [("/limit", "must be a whole number")]

    def decide(self, config, round, candidates):
        # The running jobs, and those that this call runs.
        used = round.running.weights("job-type")
        decisions = []
        for job in candidates:
            weight = used.get(job.job_type, 0) + job.weight
            if weight > config["limit"]:
                decisions.append(hold(f"the limit for {job.job_type} jobs is reached"))
            else:
                used[job.job_type] = weight
                decisions.append(run())
        return decisions
