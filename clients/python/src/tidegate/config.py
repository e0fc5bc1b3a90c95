"""Configuration as code: queues, types, schedules and triggers, declared and then applied.

::

    config = Config()
    config.queue("mail", concurrency=3)
    config.job_type("letter", queue="mail", max_attempts=6)
    print(client.plan(config))
    client.apply(config)

A declaration is the whole configuration of its resource: a setting that it leaves out has its
default. Resources that are not declared are left alone; nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._http import path
from .codec import encode
from .defaults import DEFAULTS
from .errors import NotFound

if TYPE_CHECKING:
    from .client import Client

# In the order in which they are applied: types name queues, schedules name types.
KINDS = {
    "queue": "queues",
    "job type": "job-types",
    "schedule": "schedules",
    "trigger": "triggers",
}
# Settings that the server accepts and never shows.
WRITE_ONLY = frozenset(("signing_secret", "callback_signing_secret", "password"))
# Inside of a setting, what the server adds to an object that leaves it out.
INNER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "base_seconds": (2,),
    "complete": ("on_delivery", "on_result"),
    "encoding": ("json",),
    "invocation": ("wait",),
    "jitter": ("full",),
    "max_seconds": (3600,),
    "strategy": ("exponential",),
    "tz": ("UTC",),
}


class Config:
    """Declarations of resources, in any order."""

    def __init__(self) -> None:
        self.declared: dict[tuple[str, str], dict[str, Any]] = {}
        """The settings by kind and name."""

    def _declare(self, kind: str, name: str, settings: Mapping[str, Any]) -> None:
        if (kind, name) in self.declared and self.declared[kind, name] != settings:
            raise ValueError(f"the {kind} {name} is declared twice, with different settings")
        self.declared[kind, name] = encode(settings)

    def queue(self, name: str, **settings: Any) -> None:
        """Declare a queue; the settings are those of ``PUT /v1/queues/{queue}``."""
        self._declare("queue", name, settings)

    def job_type(self, name: str, **settings: Any) -> None:
        """Declare a job type; the settings are those of ``PUT /v1/job-types/{type}``."""
        self._declare("job type", name, settings)

    def schedule(self, name: str, **settings: Any) -> None:
        """Declare a schedule; the settings are those of ``PUT /v1/schedules/{schedule}``."""
        self._declare("schedule", name, settings)

    def trigger(self, name: str, **settings: Any) -> None:
        """Declare a trigger; the settings are those of ``PUT /v1/triggers/{trigger}``."""
        self._declare("trigger", name, settings)


class Difference(NamedTuple):
    """A setting that differs."""

    field: str
    current: Any
    """What the server has; None is its default or nothing."""
    wanted: Any


class Step(NamedTuple):
    """What a plan does with one resource."""

    action: str
    """``create``, ``change`` or ``keep``."""
    kind: str
    name: str
    differences: list[Difference]
    settings: dict[str, Any]
    etag: str | None

    def __str__(self) -> str:
        sign = {"create": "+", "change": "~", "keep": "="}[self.action]
        lines = [f"{sign} {self.kind} {self.name}"]
        for field, current, wanted in self.differences:
            old = "" if self.action == "create" else f"{_shown(field, current)} -> "
            lines.append(f"    {field}: {old}{_shown(field, wanted)}")
        return "\n".join(lines)


class Plan:
    """The steps that lead from the server's configuration to the declared one."""

    def __init__(self, client: Client, steps: list[Step]) -> None:
        self._client = client
        self.steps = steps

    def __bool__(self) -> bool:
        return any(step.action != "keep" for step in self.steps)

    def __str__(self) -> str:
        changes = [str(step) for step in self.steps if step.action != "keep"]
        return "\n".join(changes) or "nothing to change"

    def apply(self) -> None:
        """Do the steps.

        Raises :class:`~tidegate.errors.PreconditionFailed` if a resource has changed since the
        plan was made. The steps before it are done then; a new plan has the rest.
        """
        for step in self.steps:
            if step.action != "keep":
                headers = {"if-match": step.etag} if step.etag else None
                target = path(KINDS[step.kind], step.name)
                # A repeat with `If-Match` could be refused after its first delivery succeeded.
                self._client.request(
                    "PUT", target, step.settings, headers=headers, repeatable=not step.etag
                )


def make_plan(client: Client, config: Config, *, secrets: bool) -> Plan:
    """Return the plan for ``config``; see :meth:`tidegate.Client.plan`."""
    steps = []
    order = list(KINDS)
    for (kind, name), settings in sorted(
        config.declared.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
    ):
        try:
            answer = client._send("GET", path(KINDS[kind], name))
        except NotFound:
            wanted = [Difference(field, None, value) for field, value in sorted(settings.items())]
            steps.append(Step("create", kind, name, wanted, settings, None))
            continue
        current = answer.json()
        if kind == "schedule":
            # A PUT without it would resume a schedule that an operator has paused.
            wanted_settings = {"paused": current.get("paused", False), **settings}
        else:
            wanted_settings = settings
        differences = differences_of(DEFAULTS[kind], wanted_settings, current, secrets=secrets)
        action = "change" if differences else "keep"
        steps.append(
            Step(action, kind, name, differences, wanted_settings, answer.headers.get("etag"))
        )
    return Plan(client, steps)


def differences_of(
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    current: Mapping[str, Any],
    *,
    secrets: bool,
) -> list[Difference]:
    """Return the settings in which ``current`` differs from the declared ones and defaults."""
    differences = []
    for field in sorted({*defaults, *settings}):
        wanted = settings.get(field)
        if field in WRITE_ONLY:
            is_same = wanted is None or not secrets
        elif field == "paused" and wanted is None:
            is_same = True
        else:
            wanted = defaults.get(field) if wanted is None else wanted
            is_same = _covers(current.get(field), wanted, secrets=secrets)
        if not is_same:
            differences.append(Difference(field, current.get(field), wanted))
    return differences


def _covers(actual: Any, wanted: Any, *, secrets: bool) -> bool:
    """Whether ``actual`` is ``wanted`` with nothing but defaults in addition."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        for name, value in wanted.items():
            if name in WRITE_ONLY:
                if secrets:
                    return False
            elif not _covers(actual.get(name), value, secrets=secrets):
                return False
        return all(_is_default(name, actual[name]) for name in actual if name not in wanted)
    if _is_empty(wanted):
        return _is_empty(actual)
    if isinstance(wanted, list) and isinstance(actual, list):
        pairs = zip(actual, wanted, strict=False)
        return len(actual) == len(wanted) and all(
            _covers(one, other, secrets=secrets) for one, other in pairs
        )
    if isinstance(wanted, bool) or isinstance(actual, bool):
        return actual is wanted
    return bool(actual == wanted)


def _is_default(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_default(inner, item) for inner, item in value.items())
    return _is_empty(value) or value in INNER_DEFAULTS.get(name, ())


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", []) or value == {}


def _shown(field: str, value: Any) -> str:
    return "***" if field in WRITE_ONLY else repr(_without_secrets(value))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: "***" if name in WRITE_ONLY | {"headers"} else _without_secrets(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
