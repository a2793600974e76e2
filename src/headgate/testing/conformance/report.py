"""What the kit found: a verdict for each promise, for people and for programs.

Never: run a check.
"""

from __future__ import annotations

import sysconfig
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

Verdict = Literal["kept", "broken", "does not apply"]
_OURS = Path(__file__).parents[2]
_NOT_THE_AUTHORS = (
    *(str(_OURS / folder) for folder in ("testing", "readers", "task")), f"{sysconfig.get_path('stdlib')}/", "<",
)  # fmt: skip
_WIDTH = 110


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the contract between a connector and Headgate.

    Parameters
    ----------
    name
        Names it, in kebab-case.
    sentence
        What is promised.
    how
        What the kit does to find out.
    contract
        Where the contract says so: a page and its heading, or a FLIP and its section.
    """

    name: str
    sentence: str
    how: str
    contract: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one promise.

    Parameters
    ----------
    promise
        The promise.
    verdict
        ``"kept"``, ``"broken"`` or ``"does not apply"``.
    done
        What was done; for a broken one, the step at which it showed.
    seen
        What was seen instead of what was promised, or why the promise does not apply; None: it was kept.
    error
        What was raised, with its traceback; None: nothing was.
    """

    promise: Promise
    verdict: Verdict
    done: str
    seen: str | None = None
    error: Exception | None = None

    @property
    def where(self) -> str | None:
        """The line of the connector that raised, as ``file:line in function``; None: the kit itself found it."""
        return None if self.error is None else _line_that_raised(self.error)

    def __str__(self) -> str:
        lines = [f"{self.verdict.upper()}  {self.promise.name}"]
        facts = [("promised", self.promise.sentence), ("done", self.done), ("seen", self.seen), ("at", self.where)]
        for name, text in [*facts, ("contract", self.promise.contract)]:
            if text is not None:
                lines.append(textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<9} ", subsequent_indent=" " * 12))
        return "\n".join(lines)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all promises that were checked, in the kit's order.

    Parameters
    ----------
    source
        The source's name.
    results
        One for each promise. ``str(report)`` shows broken ones first.
    """

    source: str
    results: Sequence[Result]

    @property
    def broken(self) -> list[Result]:
        """The results of broken promises."""
        return [each for each in self.results if each.verdict == "broken"]

    @property
    def kept(self) -> bool:
        """Whether no promise is broken."""
        return not self.broken

    def require(self) -> None:
        """Raise an `AssertionError` with the report as its text if a promise is broken, from what was raised."""
        __tracebackhide__ = True  # of pytest: the text says where it was
        if self.broken:
            raise AssertionError(str(self)) from self.broken[0].error

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "source": self.source,
            "kept": self.kept,
            "results": [
                {
                    "promise": msgspec.to_builtins(each.promise),
                    "verdict": each.verdict,
                    "done": each.done,
                    "seen": each.seen,
                    "at": each.where,
                    "traceback": None if each.error is None else "".join(traceback.format_exception(each.error)),
                }
                for each in self.results
            ],
        }

    def __str__(self) -> str:
        of_verdict: dict[Verdict, list[Result]] = {"broken": [], "kept": [], "does not apply": []}
        for each in self.results:
            of_verdict[each.verdict].append(each)
        counts = [f"{len(results)} {verdict}" for verdict, results in of_verdict.items() if results]
        if len(of_verdict["does not apply"]) > 1:
            counts[-1] = f"{len(of_verdict['does not apply'])} do not apply"
        parts = [f"{self.source}: {len(self.results)} promises checked: {', '.join(counts)}."]
        parts += map(str, of_verdict["broken"])
        if of_verdict["kept"]:
            names = ", ".join(each.promise.name for each in of_verdict["kept"])
            parts.append(textwrap.fill(f"KEPT  {names}", _WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False))
        if of_verdict["does not apply"]:
            lines = [f"  {each.promise.name}: {each.seen}" for each in of_verdict["does not apply"]]
            parts.append("\n".join(["DOES NOT APPLY", *lines]))
        return "\n\n".join(parts)


def is_the_authors(filename: str) -> bool:
    """Return whether a file is part of a connector or of its client: not of the kit, the readers, or Python."""
    return "site-packages" in filename or not filename.startswith(_NOT_THE_AUTHORS)


def _line_that_raised(error: BaseException) -> str | None:
    """Return the innermost line outside of the kit and of the ready-made readers, in what raised it first."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if is_the_authors(frame.filename):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None
