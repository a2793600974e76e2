"""The versions that driver and executors must share: other code on an executor is an error, not a wrong result.

Never: compare anything that may differ, such as a patch release of Python.
"""

from __future__ import annotations

import platform
import socket

import msgspec

from headgate.errors import DeploymentError

__version__ = "0.5.0"
OLDEST_SPARK = (4, 0)
NEWEST_SPARK = (4, 3)
"""The versions of Spark that the tests run on, from the first to the last."""


class Versions(msgspec.Struct, frozen=True):
    """What driver and executors must have in common."""

    headgate: str
    python: str
    pyarrow: str

    @classmethod
    def here(cls) -> Versions:
        """Return the versions of this process."""
        import pyarrow as pa  # here: the command line asks for our own version without it

        return cls(__version__, ".".join(platform.python_version_tuple()[:2]), pa.__version__)


def check_versions(driver: Versions) -> None:
    """Raise `DeploymentError` if this task runs other code than the driver that planned it."""
    here = Versions.here()
    if here != driver:
        raise DeploymentError(
            f"This executor ({socket.gethostname()}) has headgate {here.headgate}, Python {here.python} and pyarrow "
            f"{here.pyarrow}; the driver has headgate {driver.headgate}, Python {driver.python} and pyarrow "
            f"{driver.pyarrow}. Ship the driver's environment to the executors: see docs/deploy.md.",
            driver=msgspec.to_builtins(driver),
            executor=msgspec.to_builtins(here),
        )
