"""The fuzzers can be started: nothing else runs them all in the first tier."""

from __future__ import annotations

import importlib

import pytest

from fuzz.__main__ import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_fuzzer_says_what_its_options_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"fuzz.{name}").main(["--help"])
    assert ended.value.code == 0
    assert f"./run fuzz {name}" in capsys.readouterr().out
