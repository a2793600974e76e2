"""What a slot's process asks of the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
from headgate.runtime.process import OwnProcess
OwnProcess()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_it_may_open_as_many_files_as_the_system_allows() -> None:
    """Spilled state is in many."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
