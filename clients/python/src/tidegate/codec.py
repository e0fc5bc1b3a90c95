"""Typed data of jobs: pydantic models, dataclasses, and any JSON value.

A type is read by the first of these that it has: ``model_validate`` (pydantic), a dataclass's
fields, or nothing, then the value stays as it came. Nothing here imports pydantic.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from datetime import date, datetime, timezone
from typing import Any


def encode(value: Any) -> Any:
    """Return ``value`` as a JSON value: models and dataclasses as objects, at any depth."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def decode(kind: Any, value: Any) -> Any:
    """Return the JSON ``value`` as a ``kind``.

    Raises the error of the model, or ``TypeError`` if the value lacks fields of a dataclass or has
    others.
    """
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"the data of {kind.__name__} must be an object, not {value!r:.100}")
        hints = typing.get_type_hints(kind)
        known = {field.name for field in dataclasses.fields(kind) if field.init}
        if unknown := sorted(set(value) - known):
            raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
        return kind(**{name: decode(hints.get(name), item) for name, item in value.items()})
    return value


def instant(value: datetime | str) -> str:
    """Return an instant as the API writes it. A ``datetime`` needs a time zone."""
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError("an instant needs a time zone, such as datetime.now(timezone.utc)")
    return value.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_instant(text: str) -> datetime:
    """Return an instant of the API as a ``datetime`` in UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
