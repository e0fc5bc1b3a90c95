"""Throttlers for tidegate, in Python. In `plugin.py`:

    from sdk.throttler import Throttler, run

    class Throttle(Throttler):
        about = "Runs whatever may run."

        def decide(self, config, round, candidates):
            return [run() for job in candidates]

The class must have this name: the component exports it.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Union

from wit_world import exports
from wit_world.exports import throttle as contract
from wit_world.imports import running as host_running
from wit_world.imports import waiting as host_waiting

from .candidates import candidates as by_column
from .common import (
    LocalTime,
    Plugin,
    attribute,
    begin,
    clock,
    data_of,
    failed,
    instant,
    log,
    metrics,
    string,
    text,
    whole,
)
from .state import STATE, State, state_key

__all__ = [
    "Answer",
    "Decision",
    "LocalTime",
    "Round",
    "Running",
    "State",
    "Throttler",
    "clock",
    "data_of",
    "drop",
    "hold",
    "hold_until",
    "log",
    "metrics",
    "reschedule",
    "run",
    "state_key",
]

contract.Ended.attribute = attribute
host_running.RunningJob.attribute = attribute


class Decision(NamedTuple):
    """Made by run, hold, hold_until, reschedule and drop."""

    action: Any
    reason: Optional[str]


_RUN = Decision(contract.Action_Run(), None)
_HOLD = contract.Action_Hold(None)
_DROP = contract.Action_Drop()


def run() -> Decision:
    """The job starts now."""
    return _RUN


def hold(reason: Optional[str] = None) -> Decision:
    """The job waits, and is offered again at the next change of the queue."""
    return Decision(_HOLD, text(reason))


def hold_until(until: int, reason: Optional[str] = None) -> Decision:
    """The job waits, and is offered again at the next change of the queue, at the latest at `until`."""
    return Decision(contract.Action_Hold(instant(until, "until")), text(reason))


def reschedule(at: int, reason: Optional[str] = None) -> Decision:
    """The job is due at `at`: after now, and within 366 days."""
    return Decision(contract.Action_Reschedule(instant(at, "at")), text(reason))


def drop(reason: Optional[str] = None) -> Decision:
    """The job ends `dropped`."""
    return Decision(_DROP, text(reason))


class Answer:
    """Decisions, and whether jobs further back in the queue may run too. A list alone means `more=True`."""

    __slots__ = ("decisions", "more")

    def __init__(self, decisions: List[Decision], more: bool = True):
        self.decisions = decisions
        self.more = more


_JOB_TYPE = host_running.Dimension_JobType()
_PRIORITY = host_running.Dimension_Priority()


def _dimension(by: str, name: Optional[str]):
    if by == "job-type":
        return _JOB_TYPE
    if by == "priority":
        return _PRIORITY
    if by == "attribute" and isinstance(name, str):
        return host_running.Dimension_Attribute(name)
    raise ValueError(f"the running set is divided by 'job-type', 'priority' or 'attribute' and its name, not by {by!r}")


class Running:
    """The running jobs, without the candidates of this call."""

    __slots__ = ()

    def count(self) -> int:
        return host_running.count()

    def weight(self) -> int:
        return host_running.weight()

    def groups(self, by: str, name: Optional[str] = None):
        """Each value with its count and weight: by 'job-type', 'priority', or 'attribute' and its name."""
        return host_running.groups(_dimension(by, name))

    def in_group(self, by: str, value: str, name: Optional[str] = None):
        """The count and weight of one value of a dimension; 0 if no job has it."""
        return host_running.in_group(_dimension(by, name), str(value))

    def weights(self, by: str, name: Optional[str] = None) -> Dict[str, int]:
        """The running weight by the values of a dimension."""
        return {group.value: group.weight for group in self.groups(by, name)}

    def page(self, offset: int, limit: int):
        """The jobs themselves, the earliest granted first; at most 1000. Needs `needs_running_jobs`."""
        return host_running.page(whole(offset, "offset", 0, 2**32 - 1), whole(limit, "limit", 0, 2**32 - 1))


class Waiting:
    """What waits in the queue: estimates by the attributes in `waiting_by`. A group of each candidate is there."""

    __slots__ = ()

    def groups(self, by: str):
        """Each value of an attribute with its count, weight, oldest_due_at and at_least, sorted by value."""
        return host_waiting.groups(string(by, "by"))

    def others(self):
        """The jobs of all partitions that are in no group, because there are too many; None if there are none."""
        return host_waiting.others()

    def counted_at(self) -> Optional[int]:
        """When the queue was counted; None if that has not happened yet."""
        return host_waiting.counted_at()


_RUNNING, _WAITING = Running(), Waiting()


class Round:
    """The other inputs of a decision. Instants are milliseconds since 1970."""

    __slots__ = ("concurrency", "ended", "now", "queue", "room", "running", "state", "waiting")

    queue: str
    now: int
    concurrency: Optional[int]
    """The concurrency of the queue, if it has one."""
    room: int
    """How many jobs workers can take now."""
    ended: list
    """The attempts that ended since the last answer that counted, if `needs_ended` is true."""
    running: Running
    waiting: Waiting
    state: State

    def __init__(self, ctx: Any, given: Any):
        self.queue, self.now = ctx.queue, ctx.now
        self.concurrency, self.room, self.ended = given.concurrency, given.room, given.ended
        self.running, self.waiting, self.state = _RUNNING, _WAITING, STATE


_MADE = {Decision}


def _checked(answer: Union[Answer, List[Decision]], count: int) -> contract.Answer:
    if isinstance(answer, list):
        answer = Answer(answer)
    if not isinstance(answer, Answer):
        raise TypeError(f"decide must return a list of decisions or an Answer, not {answer!r}")
    if len(answer.decisions) != count:
        raise ValueError(f"decide returned {len(answer.decisions)} decisions on {count} candidates")
    if not _MADE.issuperset(map(type, answer.decisions)):
        index, wrong = next((index, made) for index, made in enumerate(answer.decisions) if type(made) is not Decision)
        raise TypeError(f"decision {index} is {wrong!r}: make it by run(), hold(), hold_until(), reschedule() or drop()")
    return contract.Answer(answer.decisions, bool(answer.more))


class Throttler(Plugin, exports.Throttle):
    """The base of an author's `Throttle`. It may have `check(config)`, and must have `decide`."""

    def __init_subclass__(cls, **given):
        super().__init_subclass__(**given)
        own = cls.__dict__.get("decide")
        if own is None:
            raise TypeError(f"{cls.__name__} must have decide(self, config, round, candidates)")

        def decide(self, ctx, round, candidates):
            try:
                # The host passes records only if the plugin needs earlier attempts.
                jobs = candidates or by_column()
                # The author may change the list.
                count = len(jobs)
                return _checked(own(self, begin(ctx), Round(ctx, round), jobs), count)
            except Exception as wrong:
                raise failed(wrong) from None

        # The contract's function replaces the author's, under the same name.
        cls.decide = decide
