"""Asserts that one thread makes all calls to an object, save for the methods that any thread may call.

Never: change what the object does.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadRule:
    """Which thread may call an object: the one that called it first.

    Parameters
    ----------
    what
        The object's name in errors.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.violations: list[str] = []
        self._owner: threading.Thread | None = None

    def note(self, method: str) -> None:
        """Take note of a call on the current thread.

        Raises
        ------
        AssertionError
            Another thread made the first call.
        """
        current = threading.current_thread()
        self._owner = self._owner or current
        if current is not self._owner:
            message = (
                f"{self.what}.{method} was called by thread {current.name!r}, earlier methods by {self._owner.name!r}. "
                "All of them but wake_up must be called by one thread."
            )
            self.violations.append(message)
            raise AssertionError(message)

    def check(self) -> None:
        """Assert that no call broke the rule, also where its error was swallowed."""
        assert not self.violations, self.violations[0]


def assert_single_threaded(
    target: T, *, free: Collection[str] = ("wake_up", "available"), rule: ThreadRule | None = None
) -> T:
    """Let every public method of ``target`` assert that it is called by one and the same thread.

    Parameters
    ----------
    target
        Any object with a ``__dict__``. It is changed in place and returned.
    free
        The methods that any thread may call.
    rule
        Takes note of the calls; look at its ``violations`` where errors may have been swallowed.

    Examples
    --------
    >>> class Reader:
    ...     def fetch(self):
    ...         return "rows"
    >>> reader = assert_single_threaded(Reader())
    >>> reader.fetch()
    'rows'
    """
    of_target = rule or ThreadRule(type(target).__name__)
    for name in dir(type(target)):
        if not name.startswith("_") and inspect.isfunction(getattr(type(target), name)) and name not in free:
            setattr(target, name, _checked(getattr(target, name), name, of_target))
    return target


def _checked(method: Callable[..., Any], name: str, rule: ThreadRule) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        rule.note(name)
        return method(*arguments, **keywords)

    return checked
