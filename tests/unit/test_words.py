"""The project speaks the field's language: private words of its first drafts do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WORDS = {
    "behind": "after, downstream of, lags",
    "conform": "cast_to_schema",
    "door": "entry point, or the engine's name",
    "errand": "serial executor",
    "letter": "mail (in a mailbox), message (on a connection), character (of a text)",
    "meeting": "group, endpoint",
    "rendezvous": "group membership",
    "said": "reported, sent, defined",
    "seat": "member",
    "tell": "notify, report, distinguish",
    "telling": "notifying, reporting",
    "told": "notified, reported, received, broadcast to",
    "untold": "unreported",
}
"""Whole words, or parts of identifiers such as ``_on_letter`` and ``LetterCame``, and what to write instead."""

PHRASES = {
    r"\bhand(s|ed|ing)?[ _-](\w+ )?over\b": "enqueue, deliver, pass",
    r"\bhand-?over|HandOver": "element queue",
    r"\bcomes? back by (itself|themselves)\b": "recovers automatically",
    r"\bstands? twice\b": "duplicate key",
    r"\bis no (interval|planner)\b": "is not a valid interval, is not a planner",
    r"\basserts? no (time|duration)": "never asserts durations",
    r"\bwho has no room\b": "a full channel back-pressures",
    r"\bThere: ": "Supported: ",
    r"\.own\(|\bdef own\(": "filter_owned",
}

EXCEPTIONS = {
    r"\b\w*[a-z]Behind(Latest)?\b|\bMillisBehindLatest\b": "public names of metrics, as Spark's and Kinesis' own",
    r'"behind" in name\.lower\(\)': "finds those metrics",
    r"\bbehind_stops\b": "a field of stored offsets",
    r"\.tell\(\)|\bdef tell\(self\) -> int": "the position in a file, as Python names it",
}
"""What must have such a name, as regular expressions, and why."""

FOLDERS = ("src", "tests", "bench", "docs", "demo", "examples", "fuzz", "conformance", "local", "deploy")
NOT_HERE = ("CHANGELOG.md", "tests/unit/test_words.py", "tests/golden/")
"""The history and stored bytes stay as they are."""

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FORBIDDEN = {form: word for word in WORDS for form in (word, f"{word}s")}


def _texts() -> list[Path]:
    texts = [each for folder in FOLDERS for kind in ("py", "md", "txt") for each in (ROOT / folder).rglob(f"*.{kind}")]
    texts += [each for each in ROOT.iterdir() if each.suffix in (".md", ".toml", ".txt") or each.name == "run"]
    return [each for each in texts if not each.relative_to(ROOT).as_posix().startswith(NOT_HERE)]


def _found(text: str) -> list[str]:
    """Return what is to be written differently, with what to write."""
    for allowed in EXCEPTIONS:
        text = re.sub(allowed, "", text)
    words = {_FORBIDDEN[part] for part in map(str.lower, _PART.findall(text)) if part in _FORBIDDEN}
    found = [(word, WORDS[word]) for word in sorted(words)]
    found += [(match[0], instead) for phrase, instead in PHRASES.items() if (match := re.search(phrase, text))]
    return [f"{what!r}: write {instead}" for what, instead in found]


def test_no_file_has_a_private_word() -> None:
    wrong = []
    for path in _texts():
        name = path.relative_to(ROOT).as_posix()
        wrong += [f"{name}: the file's name: {each}" for each in _found(name)]
        text = path.read_text(encoding="utf-8")
        if _found(text):
            for number, line in enumerate(text.splitlines(), 1):
                wrong += [f"{name}:{number}: {each}" for each in _found(line)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "a letter came",
        "LetterCame",
        "_on_letter",
        "letters",
        "TOLD_MS",
        "it is told of it",
        "handed them over",
        "HandOverQueue",
    ],
)
def test_words_are_found_whole_and_in_identifiers(text: str) -> None:
    assert _found(text)


@pytest.mark.parametrize(
    "text", ["rowsBehind", "millisBehindLatest", "satellite", "conformance", "letterless", "file.tell()"]
)
def test_other_words_are_not(text: str) -> None:
    assert not _found(text)
