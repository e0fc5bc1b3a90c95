"""Retry strategies for tidegate, in Python. In `plugin.py`:

    from sdk.retry import RetryStrategy, after

    class Retry(RetryStrategy):
        about = "Tries again after five seconds."

        def on_failure(self, config, call, failed, last):
            return after(call, 5)

The class must have this name: the component exports it.
"""

from typing import Any, Optional

from wit_world import exports
from wit_world.exports import retry as contract

from .common import LocalTime, Plugin, begin, clock, data_of, failed, instant, log, metrics, number, string, text, whole, write_json
from .state import STATE, State, state_key

__all__ = [
    "Call",
    "LocalTime",
    "RetryStrategy",
    "State",
    "after",
    "clock",
    "data_of",
    "give_up",
    "log",
    "metrics",
    "retry_at",
    "state_key",
]

_KEEP = object()
# The longest timeout, in milliseconds.
_YEAR = 365 * 86_400_000


class Call:
    """The other inputs of a decision. `now` is in milliseconds since 1970. `state` needs a `state_version` of at least 1; after a
    change by another decision the call is repeated."""

    __slots__ = ("now", "queue", "state")

    state: State

    def __init__(self, queue: str, now: int):
        self.queue = queue
        self.now = now
        self.state = STATE


def _changed(value: Optional[int], *bounds: Any) -> Optional[int]:
    return None if value is None else whole(value, *bounds)


def retry_at(
    at: int,
    data: Any = _KEEP,
    priority: Optional[int] = None,
    weight: Optional[int] = None,
    attempts_left: Optional[int] = None,
    timeout: Optional[int] = None,
    target: Optional[str] = None,
):
    """Another attempt at `at`, or at once if `at` is past. The other arguments replace what the job has: `attempts_left` is how many
    attempts it still has, including the next one, and `timeout` is in milliseconds. `target` is a name in `retry_targets` of the job's type,
    or '' for the type's own target. None keeps it, except for data."""
    return contract.Verdict_Retry(
        contract.Plan(
            instant(max(0, at), "at"),
            None if data is _KEEP else write_json(data),
            _changed(priority, "priority", -(2**31), 2**31 - 1, "32 bits"),
            _changed(weight, "weight", 0, 2**32 - 1),
            _changed(attempts_left, "attempts_left", 1, 65535),
            _changed(timeout, "timeout", 1, _YEAR),
            None if target is None else string(target, "target"),
        )
    )


def after(call: Call, seconds: float, **changes: Any):
    """Another attempt this many seconds after the call. `changes` are those of `retry_at`."""
    return retry_at(call.now + round(number(seconds, "seconds") * 1000), **changes)


def give_up(message: Optional[str] = None):
    """No more attempts; the job ends `failed`, with this message if it is given."""
    return contract.Verdict_GiveUp(text(message))


class RetryStrategy(Plugin, exports.Retry):
    """The base of an author's `Retry`. It may have `check(config)`, and must have `on_failure`."""

    def __init_subclass__(cls, **given):
        super().__init_subclass__(**given)
        own = cls.__dict__.get("on_failure")
        if own is None:
            raise TypeError(f"{cls.__name__} must have on_failure(self, config, call, failed, last)")

        def on_failure(self, ctx, job, last):
            try:
                verdict = own(self, begin(ctx), Call(ctx.queue, ctx.now), job, last)
                if not isinstance(verdict, (contract.Verdict_Retry, contract.Verdict_GiveUp)):
                    raise TypeError(f"it returned {verdict!r}: make it by after(), retry_at() or give_up()")
                return verdict
            except Exception as wrong:
                raise failed(wrong) from None

        # The contract's function replaces the author's, under the same name.
        cls.on_failure = on_failure
