"""Throttlers for tidegate, in Python. In `plugin.py`:

    from sdk.throttler import Throttler, run

    class Throttle(Throttler):
        about = "Runs whatever may run."

        def decide(self, config, round, candidates):
            return [run() for job in candidates]

The class must have this name: the component exports it.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports import throttle as contract
from wit_world.imports import running as host_running
from wit_world.imports import state as host_state

from .common import Plugin, attribute, begin, data_of, guarded, instant, text

__all__ = ["Answer", "Round", "Running", "State", "Throttler", "attribute", "data_of", "drop", "hold", "hold_until", "reschedule", "run"]

Decision = contract.Decision


def run() -> Decision:
    """The job starts now."""
    return Decision(contract.Action_Run(), None)


def hold(reason: Optional[str] = None) -> Decision:
    """The job waits, and is offered again at the next change of the queue."""
    return Decision(contract.Action_Hold(None), text(reason))


def hold_until(until: int, reason: Optional[str] = None) -> Decision:
    """The job waits, and is offered again at the next change of the queue, at the latest at `until`."""
    return Decision(contract.Action_Hold(instant(until, "until")), text(reason))


def reschedule(at: int, reason: Optional[str] = None) -> Decision:
    """The job is due at `at`: after now, and within 366 days."""
    return Decision(contract.Action_Reschedule(instant(at, "at")), text(reason))


def drop(reason: Optional[str] = None) -> Decision:
    """The job ends `dropped`."""
    return Decision(contract.Action_Drop(), text(reason))


@dataclass
class Answer:
    """Decisions, and whether jobs further back in the queue may run too. A list alone means `more=True`."""

    decisions: List[Decision]
    more: bool = True


def _dimension(by: str, name: Optional[str]):
    if by == "job-type":
        return host_running.Dimension_JobType()
    if by == "priority":
        return host_running.Dimension_Priority()
    if by == "attribute" and name is not None:
        return host_running.Dimension_Attribute(name)
    raise ValueError(f"the running set is divided by 'job-type', 'priority' or 'attribute' and its name, not by {by!r}")


class Running:
    """The running jobs, without the candidates of this call."""

    def count(self) -> int:
        return host_running.count()

    def weight(self) -> int:
        return host_running.weight()

    def groups(self, by: str, name: Optional[str] = None):
        """Every value with its count and weight: by 'job-type', 'priority', or 'attribute' and its name."""
        return host_running.groups(_dimension(by, name))

    def in_group(self, by: str, value: str, name: Optional[str] = None):
        """The count and weight of one value of a dimension; 0 if no job has it."""
        return host_running.in_group(_dimension(by, name), value)

    def weights(self, by: str, name: Optional[str] = None) -> Dict[str, int]:
        """The running weight by the values of a dimension."""
        return {group.value: group.weight for group in self.groups(by, name)}

    def page(self, offset: int, limit: int):
        """The jobs themselves, the earliest granted first; at most 1000."""
        return host_running.page(offset, limit)


class State:
    """Kept with the call's decisions, if it succeeds."""

    def load(self, key: str) -> Any:
        kept = host_state.get(key)
        return None if kept is None else json.loads(kept)

    def save(self, key: str, value: Any) -> None:
        try:
            host_state.set(key, json.dumps(value, separators=(",", ":")))
        except Err as refused:
            why = "its key has more than 128 bytes" if refused.value == host_state.StateError.KEY_TOO_LONG else "the state is full"
            raise ValueError(f"{key!r} cannot be kept: {why}") from None

    def delete(self, key: str) -> None:
        host_state.delete(key)

    def keys(self) -> List[str]:
        return host_state.keys()


@dataclass
class Round:
    """The other inputs of a decision. Instants are milliseconds since 1970."""

    queue: str
    now: int
    concurrency: Optional[int]
    """The concurrency of the queue, if it has one."""
    room: int
    """Workers can take this many jobs now."""
    ended: list
    """Attempts that ended since the last call that succeeded, if `needs_ended` is true."""
    running: Running = field(default_factory=Running)
    state: State = field(default_factory=State)


def _checked(answer: Union[Answer, List[Decision]], count: int) -> contract.Answer:
    if isinstance(answer, list):
        answer = Answer(answer)
    if not isinstance(answer, Answer):
        raise TypeError(f"decide must return a list of decisions or an Answer, not {answer!r}")
    if len(answer.decisions) != count:
        raise ValueError(f"decide returned {len(answer.decisions)} decisions on {count} candidates")
    for index, decision in enumerate(answer.decisions):
        if not isinstance(decision, Decision):
            raise TypeError(f"decision {index} is {decision!r}: make it by run(), hold(), hold_until(), reschedule() or drop()")
    return contract.Answer(answer.decisions, bool(answer.more))


class Throttler(Plugin, exports.Throttle):
    """The base of an author's `Throttle`. It may have `check(config)`, and must have `decide`."""

    def __init_subclass__(cls, **given):
        super().__init_subclass__(**given)
        own = cls.__dict__.get("decide")
        if own is None:
            raise TypeError(f"{cls.__name__} must have decide(self, config, round, candidates)")

        @guarded
        def decide(self, ctx, round, candidates):
            config = begin(ctx)
            given = Round(ctx.queue, ctx.now, round.concurrency, round.room, round.ended)
            return _checked(own(self, config, given, candidates), len(candidates))

        # The contract's function replaces the author's, under the same name.
        cls.decide = decide
