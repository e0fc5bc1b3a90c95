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
# Settings of job types that the server accepts and never shows.
WRITE_ONLY = frozenset(("signing_secret", "callback_signing_secret", "password"))
# Words in the names of a target's headers that the server does not show either.
SECRET_WORDS = ("authorization", "cookie", "secret", "token", "password", "key")
SECRET = "***"
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
    """The setting; of a secret, its path, such as ``target.signing_secret``."""
    current: Any
    """What the server has; None is its default or nothing, and ``***`` a secret."""
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
        compared = without_secrets(settings) if kind == "job type" else settings
        differences = differences_of(DEFAULTS[kind], compared, current)
        if secrets and (compared != settings or current.get("secrets")):
            differences += _changed_secrets(client, path(KINDS[kind], name), settings, current)
        action = "change" if differences else "keep"
        steps.append(Step(action, kind, name, differences, settings, answer.headers.get("etag")))
    return Plan(client, steps)


def _changed_secrets(
    client: Client, target: str, settings: Mapping[str, Any], current: Mapping[str, Any]
) -> list[Difference]:
    """Return the secrets that the settings would change: only the server can compare them."""
    preview = client.request("PUT", target, settings, query={"dry_run": True})
    found = []
    for field in preview.get("changed_secrets", ()):
        before, after = (
            SECRET if field in view.get("secrets", ()) else None for view in (current, preview)
        )
        found.append(Difference(field, before, after))
    return found


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job type as the server shows them."""
    shown = {name: value for name, value in settings.items() if name not in WRITE_ONLY}
    if not isinstance(shown.get("target"), Mapping):
        return shown
    target = {name: value for name, value in shown["target"].items() if name not in WRITE_ONLY}
    if isinstance(basic := target.get("basic_auth"), Mapping):
        target["basic_auth"] = {k: value for k, value in basic.items() if k not in WRITE_ONLY}
    if isinstance(headers := target.get("headers"), Mapping):
        target["headers"] = {k: value for k, value in headers.items() if not _is_secret_header(k)}
    return {**shown, "target": target}


def _is_secret_header(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)


def differences_of(
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    current: Mapping[str, Any],
) -> list[Difference]:
    """Return the settings in which ``current`` differs from the declared ones and defaults."""
    differences = []
    for field in sorted({*defaults, *settings}):
        wanted = settings.get(field)
        if field == "paused" and wanted is None:
            # A PUT without it leaves a schedule paused or not.
            continue
        wanted = defaults.get(field) if wanted is None else wanted
        if not _covers(current.get(field), wanted):
            differences.append(Difference(field, current.get(field), wanted))
    return differences


def _covers(actual: Any, wanted: Any) -> bool:
    """Whether ``actual`` is ``wanted`` with nothing but defaults in addition."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        if not all(_covers(actual.get(name), value) for name, value in wanted.items()):
            return False
        return all(_is_default(name, actual[name]) for name in actual if name not in wanted)
    if _is_empty(wanted):
        return _is_empty(actual)
    if isinstance(wanted, list) and isinstance(actual, list):
        pairs = zip(actual, wanted, strict=False)
        return len(actual) == len(wanted) and all(_covers(one, other) for one, other in pairs)
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
    if value == SECRET or (field in WRITE_ONLY and value is not None):
        return SECRET
    return repr(_masked(value))


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: SECRET if name in WRITE_ONLY | {"headers"} else _masked(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_masked(item) for item in value]
    return value
