"""What a user says of a function of ``applyInPandasWithState``.

Never: call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class GroupFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says of a function of ``applyInPandasWithState``.

    Parameters
    ----------
    function
        The function.
    state
        The columns of its state, as Spark's JSON.
    timeout
        ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``.
    output_mode
        ``append`` or ``update``: the query has the same.
    has_watermark
        Whether its rows have an event time.
    """

    function: Callable[..., Any]
    state: str
    timeout: str
    output_mode: str
    has_watermark: bool
