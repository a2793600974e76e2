"""The order of a run that has these tests: see `tests.distribution`."""

from __future__ import annotations

import pytest

from tests.distribution import in_order


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let begin first what takes long."""
    items[:] = in_order(items)
