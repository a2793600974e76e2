"""Options of a source: their names, kinds and defaults, as data; parsing with errors that name the fix.

Never: look anything up in a session or the environment. Names are matched without regard to case, because Spark
passes them in lower case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headgate.errors import OptionError

Parser = Callable[[str], Any]


class OptionSpec(msgspec.Struct, frozen=True):
    """One option of a source.

    Parameters
    ----------
    name
        As users write it. One ``*`` stands for any text without a dot at its ends: ``fields.*.kind``, ``kafka.*``.
    parse
        Makes the value of a text, or raises ValueError whose message says what is allowed.
    default
        The value when it is not set.
    meaning
        One line for the documentation.
    changeable
        Whether a restarted streaming query may have another value than before.
    status
        ``supported``; ``no-op``: accepted, has no effect here; ``rejected``: known from Spark, an error here.
    why
        For a no-op or a rejected option: why, and what to write instead.
    """

    name: str
    parse: Parser
    default: Any = None
    meaning: str = ""
    changeable: bool = True
    status: Literal["supported", "no-op", "rejected"] = "supported"
    why: str = ""


def text(value: str) -> str:
    """Any text."""
    return value


def boolean(value: str) -> bool:
    """Parse ``true`` or ``false``."""
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def integer(minimum: int, maximum: int | None = None) -> Parser:
    """Parse a whole number within bounds; underscores may group its digits."""

    def parse(value: str) -> int:
        allowed = f"a whole number from {minimum}" + (f" to {maximum}" if maximum is not None else "")
        try:
            number = int(value.strip())
        except ValueError:
            raise ValueError(allowed) from None
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(allowed)
        return number

    return parse


def number(minimum: float, maximum: float) -> Parser:
    """Parse a decimal number within bounds."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            parsed = float("nan")
        if not minimum <= parsed <= maximum:
            raise ValueError(f"a number from {minimum} to {maximum}")
        return parsed

    return parse


_SIZE = re.compile(r"\s*(\d+)\s*([kmgtp]?)(?:i?b)?\s*", re.IGNORECASE)


def size_bytes(value: str) -> int:
    """Parse a size as Spark writes it (``64m``, ``128MiB``, plain bytes); 1k is 1024 bytes."""
    match = _SIZE.fullmatch(value)
    if match is None or int(match[1]) == 0:
        raise ValueError("a size above zero like '64m', '1g' or a number of bytes")
    return int(match[1]) << (10 * " kmgtp".index(match[2].lower() or " "))


_UNITS_MS = {
    "millisecond": 1, "ms": 1, "second": 1000, "s": 1000, "minute": 60_000, "min": 60_000, "m": 60_000,
    "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000, "week": 604_800_000, "w": 604_800_000,
}  # fmt: skip
_INTERVAL_PART = re.compile(r"(\d+)\s*([a-z]+)")


def duration_ms(value: str) -> int:
    """Parse an interval as Spark writes it (``10 seconds``, ``1 hour 30 minutes``, ``7d``) into milliseconds."""
    rest = value.strip().lower().removeprefix("interval").strip()
    parts = _INTERVAL_PART.findall(rest)
    total = 0
    for amount, unit in parts:
        unit_ms = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
        if unit_ms is None:
            parts = []
            break
        total += int(amount) * unit_ms
    if not parts or _INTERVAL_PART.sub("", rest).strip():
        raise ValueError("an interval like '10 seconds' or '7 days'")
    return total


def choice(*allowed: str) -> Parser:
    """Parse one of a few words, without regard to case; the value has the spelling given here."""
    by_lower = {word.lower(): word for word in allowed}

    def parse(value: str) -> str:
        if value.strip().lower() not in by_lower:
            raise ValueError("one of " + ", ".join(allowed))
        return by_lower[value.strip().lower()]

    return parse


COMMON_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("maxRowsPerTrigger", integer(1), None, "most rows in a micro-batch"),
    OptionSpec("stateLocation", text, None, "folder for what is too large for Spark's offset log"),
    OptionSpec("eventTimeColumn", text, None, "the column that holds event time"),
    OptionSpec("eventTimeOrder", boolean, False, "batch: a task gives its rows in the order of their event time"),
    OptionSpec("scan.watermark.idle-timeout", duration_ms, None, "silence after which a split holds nobody back"),
    OptionSpec("scan.watermark.alignment.group", text, None, "sources of a group are aligned in event time"),
    OptionSpec("scan.watermark.alignment.max-drift", duration_ms, None, "how far a split may run ahead"),
    OptionSpec("scan.watermark.alignment.update-interval", duration_ms, 1000, "how often readers report at most"),
)
"""The options that every source has."""


class Options(Mapping[str, Any]):
    """The parsed options of one source: a value for every specified name, defaults included.

    Examples
    --------
    >>> specs = [OptionSpec("maxFiles", integer(1), 10), OptionSpec("fields.*.kind", text)]
    >>> options = Options.parse("demo", specs, {"MAXFILES": "3", "fields.a.kind": "random"})
    >>> options["maxFiles"], options.matching("fields.*.kind")
    (3, {'a': 'random'})
    """

    def __init__(
        self, source: str, values: Mapping[str, Any], given: Mapping[str, str], fixed: Mapping[str, Any]
    ) -> None:
        self.source = source
        self._values = dict(values)
        self._given = dict(given)
        self.fixed = dict(fixed)
        """The values that a restarted query must have again, by option name."""

    @classmethod
    def parse(cls, source: str, specs: Sequence[OptionSpec], raw: Mapping[str, str]) -> Options:
        """Match, validate and convert what the user set.

        Raises
        ------
        OptionError
            An option is unknown (the near ones are listed), rejected (with what to do), or has a bad value.
        """
        specs = (*specs, *COMMON_OPTIONS)
        values: dict[str, Any] = {spec.name: ({} if "*" in spec.name else spec.default) for spec in specs}
        given: dict[str, str] = {}
        for name, value in raw.items():
            spec, star = _find(specs, name)
            if spec is None:
                known = [spec.name for spec in specs if spec.status != "rejected"]
                by_lower = {each.lower(): each for each in known}
                near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
                hint = (
                    "Did you mean " + " or ".join(repr(by_lower[each]) for each in near) + "?"
                    if near
                    else "The options are: " + ", ".join(sorted(known, key=str.lower)) + "."
                )
                raise OptionError(f"{source} has no option {name!r}. {hint}", source=source, option=name, value=None)
            if spec.status == "rejected":
                raise OptionError(
                    f"{source} does not support the option {spec.name!r}: {spec.why}",
                    source=source, option=spec.name, value=None,
                )  # fmt: skip
            try:
                parsed = spec.parse(value)
            except ValueError as error:
                raise OptionError(
                    f"{source}: the option {spec.name!r} is {value!r}; it must be {error}.",
                    source=source, option=spec.name, value=value,
                ) from None  # fmt: skip
            given[name.lower()] = value
            if star is None:
                values[spec.name] = parsed
            else:
                values[spec.name][star] = parsed
        if values["eventTimeOrder"] and values["eventTimeColumn"] is None:
            raise OptionError(
                f"{source}: the option 'eventTimeOrder' needs 'eventTimeColumn': the column by which rows are ordered.",
                source=source, option="eventTimeOrder", value=True,
            )  # fmt: skip
        fixed = {spec.name: values[spec.name] for spec in specs if not spec.changeable}
        return cls(source, values, given, fixed)

    def replaced(self, name: str, value: Any) -> Options:
        """Return the same options with another value of one."""
        return Options(self.source, self._values | {name: value}, self._given, self.fixed)

    def matching(self, pattern: str) -> dict[str, Any]:
        """Return the values of a specified pattern by what its ``*`` stood for, as the user wrote that."""
        return dict(self._values[pattern])

    def is_set(self, name: str) -> bool:
        """Return whether the user set the option, whatever its value."""
        return name.lower() in self._given

    def error(self, name: str, message: str) -> OptionError:
        """Return an `OptionError` about an option of this source, to be raised by the caller."""
        return OptionError(
            f"{self.source}: the option {name!r} {message}",
            source=self.source, option=name, value=self._given.get(name.lower()),
        )  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _find(specs: Sequence[OptionSpec], name: str) -> tuple[OptionSpec | None, str | None]:
    """Return the spec for a name and what its star stands for; exact names win over patterns."""
    for spec in specs:
        if spec.name.lower() == name.lower():
            return spec, None
    for spec in specs:
        before, star, after = spec.name.lower().partition("*")
        lower = name.lower()
        if star and lower.startswith(before) and lower.endswith(after):
            middle = name[len(before) : len(name) - len(after)]
            if middle:
                return spec, middle
    return None, None
