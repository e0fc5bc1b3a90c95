"""Decides by what the worker reports about a failure: a code in its details, or a part of its message. A rule
gives up, or changes the data, the priority and the wait of the next attempt. The same rule as in src/lib.rs."""

import json
import random

from sdk.retry import RetryStrategy, data_of, give_up, log, retry_at


class Retry(RetryStrategy):
    about = "Gives up, or changes the job, by what the worker reports about a failure."
    needs_data = True

    def check(self, config):
        rules, backoff = config.get("rules"), config.get("backoff", {})
        if not isinstance(rules, list):
            return [("", "missing field `rules`")]
        waits = [rule.get("wait_seconds", 0) for rule in rules]
        bounds = [(f"/rules/{place}/wait_seconds", wait, 2592000) for place, wait in enumerate(waits)]
        bounds.append(("/backoff/base_seconds", backoff.get("base_seconds", 0), 86400))
        bounds.append(("/backoff/max_seconds", backoff.get("max_seconds", 0), 2592000))
        return [(path, f"must be 0 to {most}") for path, wait, most in bounds if not 0 <= wait <= most]

    def on_failure(self, config, call, failed, last):
        code, message = code_of(last.details, config.get("field", "code")), last.message or ""

        def matches(rule):
            return rule.get("code", code) == code and rule.get("text", "") in message

        rule = next(filter(matches, config["rules"]), {})
        if "give_up" in rule:
            return give_up(rule["give_up"])
        if "wait_seconds" in rule:
            wait = millis(rule["wait_seconds"])
        else:
            wait = after_attempt(failed.attempt, config.get("backoff", {}))
        # Not before the time that the worker or the target requested.
        at = max(call.now + wait, last.not_before or 0)
        return retry_at(at, priority=rule.get("priority"), **changed(failed, rule.get("set")))


def code_of(details, field):
    """The code in the details of a failure. One that is not a text counts as its JSON."""
    details = json.loads(details or "null")
    if not isinstance(details, dict) or field not in details:
        return None
    code = details[field]
    return code if isinstance(code, str) else json.dumps(code, ensure_ascii=False, separators=(",", ":"))


def changed(failed, members):
    """The job's data with the members that are set. Nothing if the rule sets none, or if the data is no object."""
    if not members:
        return {}
    data = data_of(failed)
    if data is None or isinstance(data, dict):
        return {"data": {**(data or {}), **members}}
    log.warn(f"data of {failed.id}: it is no object")
    return {}


def after_attempt(attempt, backoff):
    """The built-in backoff, in milliseconds."""
    base, most = backoff.get("base_seconds", 2), backoff.get("max_seconds", 3600)
    whole = millis(min(base * 2 ** min(attempt - 1, 40), most))
    if backoff.get("jitter", "full") == "none":
        return whole
    return max(random.randint(0, whole), min(500, whole))


def millis(seconds):
    return round(seconds * 1000)
