"""Retry strategies for tidegate, in Python. In `plugin.py`:

    from sdk.retry import RetryStrategy, after

    class Retry(RetryStrategy):
        about = "Tries again after five seconds."

        def on_failure(self, config, call, failed):
            return after(call, 5)

The class must have this name: the component exports it.
"""

import json
from dataclasses import dataclass
from typing import Any, Optional

from wit_world import exports
from wit_world.exports import retry as contract

from .common import Plugin, attribute, begin, data_of, guarded, instant, text

__all__ = ["Call", "RetryStrategy", "after", "attribute", "data_of", "give_up", "retry_at"]

_KEEP = object()


@dataclass
class Call:
    """The other inputs of a decision. `now` is in milliseconds since 1970."""

    queue: str
    now: int


def retry_at(at: int, data: Any = _KEEP, priority: Optional[int] = None):
    """Another attempt at `at`, or at once if `at` is past; data and priority replace the job's."""
    new_data = None if data is _KEEP else json.dumps(data, separators=(",", ":"))
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31):
        raise ValueError(f"priority must be a whole number of 32 bits, not {priority!r}")
    return contract.Verdict_Retry(contract.Plan(instant(max(0, at), "at"), new_data, priority))


def after(call: Call, seconds: float, data: Any = _KEEP, priority: Optional[int] = None):
    """Another attempt this many seconds after the call; data and priority replace the job's."""
    return retry_at(call.now + round(seconds * 1000), data, priority)


def give_up(message: Optional[str] = None):
    """No more attempts; the job ends `failed`, with this message if it is given."""
    return contract.Verdict_GiveUp(text(message))


class RetryStrategy(Plugin, exports.Retry):
    """The base of an author's `Retry`. It may have `check(config)`, and must have `on_failure`."""

    def __init_subclass__(cls, **given):
        super().__init_subclass__(**given)
        own = cls.__dict__.get("on_failure")
        if own is None:
            raise TypeError(f"{cls.__name__} must have on_failure(self, config, call, failed)")

        @guarded
        def on_failure(self, ctx, failed):
            verdict = own(self, begin(ctx), Call(ctx.queue, ctx.now), failed)
            if not isinstance(verdict, (contract.Verdict_Retry, contract.Verdict_GiveUp)):
                raise TypeError(f"it returned {verdict!r}: make it by after(), retry_at() or give_up()")
            return verdict

        # The contract's function replaces the author's, under the same name.
        cls.on_failure = on_failure
