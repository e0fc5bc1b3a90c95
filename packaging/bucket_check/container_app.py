"""The fields and values of a container app, by the models of Azure's own library.

The library takes every field, so this walks the file along the types of the models.
"""

import enum
import functools
import types
import typing

from azure.mgmt.appcontainers import models

from . import want
from .files import APP_HOURS, CONTAINER_APPS, document, with_hours

# The names in the annotations of the models.
SCOPE = vars(models) | vars(typing) | {"_models": models}


@functools.cache
def fields(model):
    """The type of each field of a model, by the field's name in the file."""
    # The library fills its table of fields when a model is used.
    model({})
    kinds = typing.get_type_hints(model, SCOPE)
    return {field._rest_name: kinds[name] for name, field in model._attr_to_rest_field.items()}


def check_value(value, kind, path):
    """Fails where `value` is not of this type of the library."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)
    kinds = [one for one in kinds if one is not types.NoneType]
    # The type of a word from a list is a text, or the list.
    lists = [one for one in kinds if isinstance(one, type) and issubclass(one, enum.Enum)]
    kind = lists[0] if lists else kinds[0]
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if lists:
        words = [word.value for word in kind]
        want(value in words, f"{path} is {value!r} and not one of {words}")
    elif origin is list:
        want(isinstance(value, list), f"{path} is no list")
        for index, item in enumerate(value):
            check_value(item, inner[0], f"{path}[{index}]")
    elif origin is dict:
        want(isinstance(value, dict), f"{path} has no fields")
        for name, item in value.items():
            check_value(item, inner[1], f"{path}.{name}")
    elif hasattr(kind, "as_dict"):
        want(isinstance(value, dict), f"{path} has no fields")
        for name, item in value.items():
            want(name in fields(kind), f"{path} has no field {name}")
            check_value(item, fields(kind)[name], f"{path}.{name}")
    else:
        # A bool is no int here, and an int may be a float.
        fits = type(value) is kind or (kind is float and type(value) is int)
        want(fits, f"{path} is {value!r} and not {kind.__name__}")


def check(root):
    """The app is valid, with both of its scales."""
    check_value(document((root / CONTAINER_APPS).read_text()), models.ContainerApp, CONTAINER_APPS)
    check_value(with_hours(root), models.ContainerApp, APP_HOURS)
