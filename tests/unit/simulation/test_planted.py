"""Planted bugs: a class or function takes the place of another one wherever production names it, and goes again."""

from __future__ import annotations

from headgate.checkpoint import channel_assignment
from headgate.checkpoint.channel_assignment import assign_channels
from headgate.coordinator.job import regions
from headgate.simulation.planted import planted
from headgate.task.exchange import input_gate
from headgate.task.exchange.input_gate import InputGate


class Bug(InputGate):
    """A gate."""


def test_what_is_planted_is_named_by_production_until_it_is_over() -> None:
    def other() -> None:
        """Stand for a function."""

    with planted({InputGate: Bug, assign_channels: other}):
        assert input_gate.InputGate is Bug
        assert regions.assign_channels is channel_assignment.assign_channels is other
    assert input_gate.InputGate is InputGate
    assert regions.assign_channels is channel_assignment.assign_channels is assign_channels


def test_without_bugs_nothing_is_planted() -> None:
    with planted({}):
        assert input_gate.InputGate is InputGate
