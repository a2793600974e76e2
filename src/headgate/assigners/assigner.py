"""What an assigner promises, and the order in which splits are looked at.

Never: keep anything between two calls: the owners are an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol


class SplitAssigner(Protocol):
    """Decides who reads new splits."""

    def assign(
        self, new: Iterable[tuple[str, str]], owners: Mapping[str, tuple[str, int]], parallelism: int
    ) -> dict[str, int]:
        """Return the subtask of each new split.

        Parameters
        ----------
        new
            The splits to assign, each once and none that has an owner: (group, split id). Their order does not matter.
        owners
            The splits that are assigned already, by id: (group, subtask). They stay where they are.
        parallelism
            How many subtasks there are.

        Returns
        -------
        A subtask from 0 to ``parallelism - 1`` by split id, for the new ones only. The same arguments give the same
        answer in every process.
        """
        ...


def natural_order(split: tuple[str, str]) -> tuple[str, list[str | int]]:
    """Return the sort key of a (group, split id) by which the numbers in an id count as numbers: 2 before 10."""
    group, split_id = split
    # Texts and numbers alternate, beginning with a text, so that two keys compare like with like.
    return group, [int(part) if number % 2 else part for number, part in enumerate(re.split("([0-9]+)", split_id))]
