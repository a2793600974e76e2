"""Durable bytes: JSON with a version in it, for splits, enumerator states and what else outlives a process.

Never: change what an existing version means. A new shape gets a new version, an upgrade from each older one, and
golden bytes under ``tests/golden``; an unknown version is refused, never guessed.

Follows FLIP-27, "Core Public Interfaces" (``SimpleVersionedSerializer``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from headgate.errors import CorruptStateError, UnsupportedVersionError

T = TypeVar("T")

_VERSION_KEY = "v"
_first_use = threading.Lock()
"""msgspec finds out what a struct is made of when it is decoded first, and crashes where two threads do so at once."""


class VersionedSerializer(Generic[T]):
    """Writes and reads values of one type as JSON objects that carry their version under ``"v"``.

    Parameters
    ----------
    value_type
        A msgspec struct type. None of its fields may be named ``v``.
    version
        The version that is written.
    what
        What the bytes are, in words, for error messages: ``"a split of headgate.files"``.
    upgrades
        For each older version that is still read: a function from its JSON object to that of the next version.

    Examples
    --------
    >>> class Page(msgspec.Struct, frozen=True):
    ...     number: int
    >>> pages = VersionedSerializer(Page, version=1, what="a page")
    >>> pages.serialize(Page(7))
    b'{"number":7,"v":1}'
    >>> pages.deserialize(b'{"number":7,"v":1}')
    Page(number=7)
    """

    def __init__(
        self,
        value_type: type[T],
        *,
        version: int,
        what: str,
        upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
    ) -> None:
        self.value_type = value_type
        self.version = version
        self.what = what
        self.upgrades = dict(upgrades or {})
        self._is_known = False

    def to_json(self, value: T) -> dict[str, Any]:
        """Return ``value`` as a JSON object (plain dicts, lists, strings and numbers) with its version."""
        fields: dict[str, Any] = msgspec.to_builtins(value, order="sorted")
        return {**fields, _VERSION_KEY: self.version}

    def from_json(self, data: Any) -> T:
        """Return the value of a JSON object that `to_json` made.

        Raises
        ------
        UnsupportedVersionError
            The version is not known here; the message names both versions.
        CorruptStateError
            It is not a valid object of the class; the message names the field that is wrong.
        """
        if not isinstance(data, dict) or type(data.get(_VERSION_KEY)) is not int:  # a boolean is an int, too
            raise CorruptStateError(
                f"{self.what} cannot be read: expected a JSON object with a version, found {str(data)[:200]!r}.",
                what=self.what,
            )
        fields = dict(data)
        found = version = fields.pop(_VERSION_KEY)
        while version != self.version:
            upgrade = self.upgrades.get(version)
            if upgrade is None:
                raise UnsupportedVersionError(
                    f"{self.what} has version {found}, this Headgate reads up to {self.version}. "
                    "Restart with the Headgate version that wrote it, or a newer one.",
                    what=self.what,
                    expected=self.version,
                    found=found,
                )
            try:
                fields = upgrade(fields)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise CorruptStateError(
                    f"{self.what} of version {found} cannot be read: upgrading it from version {version} failed with "
                    f"{type(error).__name__}: {error}.",
                    what=self.what,
                    found=str(fields)[:1000],
                ) from error
            version += 1
        if not self._is_known:
            with _first_use:
                msgspec.json.Decoder(self.value_type)
            self._is_known = True
        try:
            return msgspec.convert(fields, self.value_type)
        except msgspec.ValidationError as error:
            raise CorruptStateError(
                f"{self.what} cannot be read: {error}.", what=self.what, found=str(fields)[:1000]
            ) from error

    def serialize(self, value: T) -> bytes:
        """Return ``value`` as canonical JSON bytes: sorted keys, so that equal values give equal bytes."""
        return msgspec.json.encode(self.to_json(value), order="sorted")

    def deserialize(self, data: bytes) -> T:
        """Return the value of bytes that `serialize` made; raises like `from_json`."""
        try:
            decoded = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptStateError(
                f"{self.what} is not valid JSON: {error}.", what=self.what, found=data[:200]
            ) from error
        return self.from_json(decoded)
