"""The state of a plugin in one queue: `round.state` of a throttler, `call.state` of a retry strategy."""

from typing import Any, List, Optional

from componentize_py_types import Err
from wit_world.imports import state as host_state

from .common import instant, read_json, string, write_json

_REFUSED = {
    host_state.StateError.INVALID_KEY: "the key must have 1 to 128 bytes",
    host_state.StateError.VALUE_TOO_LONG: "the value has more than 16 KiB",
    host_state.StateError.FULL: "the state would have more than 256 KiB",
}


def state_key(kind: str, value: str) -> str:
    """The key for one value of an attribute: `kind:value`. A value of more than 100 bytes is replaced by its hash of 64 bits, because a
    key has at most 128 bytes. `kind` has at most 20 bytes."""
    text = value.encode()
    if len(text) <= 100:
        return f"{kind}:{value}"
    # FNV-1a, as in the Rust SDK.
    hash = 0xCBF29CE484222325
    for byte in text:
        hash = ((hash ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{kind}#{hash:016x}"


class State:
    """The state of the plugin in one queue. Changes are kept with the call's decisions, if it succeeds. At most 256 KiB in all keys and
    values, where each key counts 32 bytes more. From `expires_at` on (milliseconds since 1970), a value counts as deleted."""

    __slots__ = ()

    def get(self, key: str) -> Optional[str]:
        """The text of a key; None if there is none."""
        return host_state.get(string(key, "key"))

    def set(self, key: str, value: str, expires_at: Optional[int] = None) -> None:
        """Sets a text. Raises `ValueError` with the bound that it exceeds."""
        until = None if expires_at is None else instant(expires_at, "expires_at")
        try:
            host_state.set(string(key, "key"), string(value, "value"), until)
        except Err as refused:
            raise ValueError(f"state {key!r}: {_REFUSED[refused.value]}") from None

    def load(self, key: str) -> Any:
        """The JSON value of a key; None if there is none."""
        kept = self.get(key)
        return None if kept is None else read_json(kept)

    def save(self, key: str, value: Any, expires_at: Optional[int] = None) -> None:
        """Sets a JSON value. Raises `ValueError` with the bound that it exceeds."""
        self.set(key, write_json(value), expires_at)

    def delete(self, key: str) -> None:
        host_state.delete(string(key, "key"))

    def keys(self, prefix: str = "") -> List[str]:
        """The keys that begin with `prefix`, by default all, sorted."""
        return host_state.keys(string(prefix, "prefix"))


STATE = State()
