"""The broker that all processes of a test run share, with a server that is nothing but a name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from tests.shared_broker import serve, shared


def test_who_comes_after_the_last_user_gets_one_that_runs(tmp_path: Path) -> None:
    names = iter(range(1000))
    running: set[str] = set()
    most = 0

    @contextlib.contextmanager
    def broker() -> Iterator[SimpleNamespace]:
        nonlocal most
        name = str(next(names))
        running.add(name)
        most = max(most, len(running))
        yield SimpleNamespace(plain=name)
        running.remove(name)

    def start() -> None:
        threading.Thread(target=serve, args=(tmp_path, broker, ["plain"])).start()

    def use(_: int) -> None:
        for _ in range(25):
            with shared(tmp_path, start) as addresses:
                assert addresses["plain"] in running

    use(0)
    with ThreadPoolExecutor(4) as users:
        list(users.map(use, range(4)))
    assert most == 1, "two ran at once"
