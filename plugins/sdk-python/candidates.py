"""The candidates of a throttler, by column: the first read of a field gets it from the host for all
candidates. So a field that the author does not read costs nothing.
"""

from typing import Any, Dict, List, Optional

from wit_world.imports import candidates as host

from .common import string

_COLUMNS = {
    "id": lambda: host.texts(host.TextColumn.ID),
    "job_type": lambda: host.texts(host.TextColumn.JOB_TYPE),
    "priority": host.priorities,
    "weight": lambda: host.numbers(host.NumberColumn.WEIGHT),
    "attempt": lambda: host.numbers(host.NumberColumn.ATTEMPT),
    "attempts": lambda: host.numbers(host.NumberColumn.ATTEMPTS),
    "created_at": lambda: host.instants(host.InstantColumn.CREATED_AT),
    "run_at": lambda: host.instants(host.InstantColumn.RUN_AT),
    "expires_at": lambda: host.instants(host.InstantColumn.EXPIRES_AT),
    "deadline_at": lambda: host.instants(host.InstantColumn.DEADLINE_AT),
    "target_host": lambda: host.texts(host.TextColumn.TARGET_HOST),
    "replay_of": lambda: host.texts(host.TextColumn.REPLAY_OF),
    "correlation_key": lambda: host.texts(host.TextColumn.CORRELATION_KEY),
}

# Those of the call: an instance lives for one call.
_jobs: List["Candidate"] = []
# The values of attributes, by name.
_values_of: Dict[str, List[Optional[str]]] = {}


class Candidate:
    """A job that is due. It has the fields of the contract's `job`."""

    # With `needs_earlier`, the host passes records instead.
    earlier = ()

    def __init__(self, place: int):
        self._place = place

    def __getattr__(self, field: str) -> Any:
        # Python calls this only for a field that the object does not have yet.
        if field == "attributes":
            self.attributes = host.attributes(self._place)
            return self.attributes
        read = _COLUMNS.get(field)
        if read is None:
            raise AttributeError(f"a job has no field {field!r}")
        values = read()
        for job, value in zip(_jobs, values):
            setattr(job, field, value)
        return values[self._place]

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in (*_COLUMNS, "attributes"))
        return f"Job({', '.join(fields)})"

    def attribute(self, name: str) -> Optional[str]:
        """The value of an attribute; None if the job has none of that name."""
        values = _values_of.get(name)
        if values is None:
            values = _values_of[name] = host.attribute_values(string(name, "name"))
        return values[self._place]


def candidates() -> List[Candidate]:
    """The candidates of the call, in their order."""
    _jobs.extend(map(Candidate, range(host.count())))
    return _jobs.copy()
