"""Checkpoints on disks: complete or not there, whenever the process dies; damage is named; one owner."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import fs as pa_fs

from headgate.checkpoint import file_store
from headgate.checkpoint.coordinator import StoredCheckpoints
from headgate.checkpoint.file_store import FileStore
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.ownership import Ownership
from headgate.checkpoint.storage import INLINE_BYTES, CheckpointStorage
from headgate.errors import CorruptStateError, OptionError, StoredStateError
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import FileState, InlineState, OperatorState, StateHandle, SubtaskState

from .test_manifest import VERSION_1

BIG = b"x" * (INLINE_BYTES + 1)
