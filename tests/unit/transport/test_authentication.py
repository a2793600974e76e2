"""Who is let in: exactly those who have this query's secret, once."""

from __future__ import annotations

import pytest

from headgate.transport.authentication import refusal

SECRET = "right"


@pytest.mark.parametrize("name", ["authorization", "Authorization"])
@pytest.mark.parametrize("value", ["Bearer right", b"Bearer right"])
def test_the_secret_opens(name: str, value: str | bytes) -> None:
    assert refusal(SECRET, {name: [value]}) is None


@pytest.mark.parametrize("headers", [{}, {"authorization": []}, {"x-authorization": ["Bearer right"]}])
def test_no_secret(headers: dict[str, list[str]]) -> None:
    assert refusal(SECRET, headers) == "its secret is missing"


@pytest.mark.parametrize(
    "values",
    [
        ["Bearer wrong"], ["Bearer "], [""], ["right"], ["Bearer right "], ["bearer right"], [b"\xff\xfe"],
        ["Bearer rïght"], ["Bearer right", "Bearer right"], ["Bearer wrong", "Bearer right"],
    ],
)  # fmt: skip
def test_another_secret(values: list[str | bytes]) -> None:
    assert refusal(SECRET, {"authorization": values}) == "its secret is not that of this query"
