from sdk.retry import RetryStrategy, after, give_up


class Retry(RetryStrategy):
    about = "Gives up what is gone, and waits longer each time for the rest."

    def check(self, config):
        base = config.get("base_seconds")
        return [] if type(base) in (int, float) and base > 0 else [("/base_seconds", "must be a number over 0")]

    def on_failure(self, config, call, failed, last):
        if last.status in (404, 410):
            return give_up("what it was for is gone")
        # A day at most.
        return after(call, min(config["base_seconds"] * 2 ** (failed.attempt - 1), 86400))
