"""Makes a pytest test of the kit: one line in a test module, a test for each promise.

Never: import pytest before it is asked to: the kit works without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pyarrow as pa

from headgate.testing.conformance.kit import PROMISES, check
from headgate.testing.conformance.report import Promise


def conformance_test(
    make_source: Callable[..., Any],
    *,
    schema: pa.Schema | None = None,
    add_rows: Callable[..., object] | None = None,
    unavailable: Callable[..., AbstractContextManager[object]] | None = None,
    only: Collection[str] = (),
) -> Callable[..., None]:
    """Return a test function, parametrized by promise. Where a promise does not apply, the test is skipped.

    Parameters
    ----------
    make_source, add_rows, unavailable
        As for `check`. Their parameters, if they have any, are fixtures: the test asks for them and passes them on. So
        a fixture can prepare the data.
    schema, only
        As for `check`.

    Examples
    --------
    In a test module, where ``path`` is a fixture::

        test_journal = conformance_test(lambda path: JournalSource({"path": path}))
    """
    import pytest

    fixtures = sorted({*_fixtures(make_source), *_fixtures(add_rows), *_fixtures(unavailable)})

    @pytest.mark.parametrize("promise", [each for each in PROMISES if not only or each.name in only], ids=_name)
    def test(promise: Promise, **values: Any) -> None:
        __tracebackhide__ = True

        def with_fixtures(function: Any) -> Any:
            return function and partial(function, **{name: values[name] for name in _fixtures(function)})

        report = check(
            with_fixtures(make_source),
            schema=schema,
            add_rows=with_fixtures(add_rows),
            unavailable=with_fixtures(unavailable),
            only=[promise.name],
        )
        report.require()
        (result,) = report.results
        if result.verdict == "does not apply":
            pytest.skip(f"{promise.name} does not apply: {result.seen}")

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("promise", *fixtures)]
    setattr(test, "__signature__", inspect.Signature(parameters))  # noqa: B010  # there pytest looks for fixtures
    named: Callable[..., None] = test
    return named


def _name(promise: Promise) -> str:
    return promise.name


def _fixtures(function: Callable[..., Any] | None) -> list[str]:
    """Return the names of the parameters without a default."""
    if function is None:
        return []
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
