"""Options as data: names without case, values that are parsed once, errors that name the fix."""

from __future__ import annotations

import pickle

import pytest

from headgate.errors import OptionError
from headgate.source import Options, OptionSpec
from headgate.source.options import (
    Parser,
    boolean,
    choice,
    duration_ms,
    integer,
    number,
    size_bytes,
    text,
)

SPECS = (
    OptionSpec("maxFiles", integer(1, 100), 10, "how many"),
    OptionSpec("mode", choice("FAILFAST", "PERMISSIVE"), "PERMISSIVE"),
    OptionSpec("fields.*.kind", choice("random", "sequence")),
    OptionSpec("kafka.*", text),
    OptionSpec("kafka.group.id", text, "g"),
    OptionSpec("samplingRatio", text, status="rejected", why="give a schema."),
)


def parse(**raw: str) -> Options:
    return Options.parse("demo", SPECS, raw)


@pytest.mark.parametrize("name", ["maxFiles", "maxfiles", "MAXFILES"])
def test_names_have_no_case(name: str) -> None:
    assert parse(**{name: "3"})["maxFiles"] == 3


def test_defaults_fill_in_and_are_not_set() -> None:
    options = parse(mode="failfast")

    assert options["maxFiles"] == 10
    assert not options.is_set("maxFiles")
    assert options.is_set("MODE")
    assert options["mode"] == "FAILFAST"


def test_a_pattern_collects_what_the_user_wrote_for_its_star() -> None:
    options = parse(**{"fields.userId.kind": "random", "FIELDS.b.KIND": "sequence"})

    assert options.matching("fields.*.kind") == {"userId": "random", "b": "sequence"}


def test_an_exact_name_wins_over_a_pattern() -> None:
    options = parse(**{"kafka.group.id": "mine", "kafka.acks": "all"})

    assert options["kafka.group.id"] == "mine"
    assert options.matching("kafka.*") == {"acks": "all"}


def test_what_every_source_has_is_there() -> None:
    assert parse(maxRowsPerTrigger="7")["maxRowsPerTrigger"] == 7


def test_an_order_in_event_time_needs_the_column_of_event_time() -> None:
    assert parse(eventTimeOrder="TRUE", eventTimeColumn="at")["eventTimeOrder"] is True
    assert parse(eventTimeOrder="false")["eventTimeOrder"] is False
    with pytest.raises(OptionError, match="demo: the option 'eventTimeOrder' needs 'eventTimeColumn'") as raised:
        parse(eventtimeorder="true")
    assert raised.value.option == "eventTimeOrder"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("maxFile", "1", "demo has no option 'maxFile'. Did you mean 'maxFiles'"),
        ("zzz", "1", "demo has no option 'zzz'. The options are: .*maxFiles"),
        ("samplingRatio", "1", "does not support the option 'samplingRatio': give a schema."),
        ("maxFiles", "0", "'maxFiles' is '0'; it must be a whole number from 1 to 100"),
        ("maxFiles", "many", "'maxFiles' is 'many'; it must be a whole number"),
        ("mode", "SLOPPY", "'mode' is 'SLOPPY'; it must be one of FAILFAST, PERMISSIVE"),
        ("fields..kind", "random", "demo has no option 'fields..kind'"),
        ("fields.a.kind", "x", "'fields.*.kind' is 'x'; it must be one of random, sequence"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it_and_what_is_allowed(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("fields.*.kind", r"fields\.\*\.kind")) as raised:
        parse(**{name: value})

    assert isinstance(raised.value, ValueError)
    assert raised.value.source == "demo"


def test_rejected_options_are_not_offered() -> None:
    with pytest.raises(OptionError) as raised:
        parse(samplingRati="1")

    assert "samplingRatio" not in str(raised.value)


def test_an_error_about_an_option_carries_the_users_value() -> None:
    error = parse(MAXFILES="7").error("maxFiles", "does not go with 'mode'.")

    assert (error.option, error.value) == ("maxFiles", "7")
    assert str(error) == "demo: the option 'maxFiles' does not go with 'mode'."


def test_options_can_be_sent_to_readers() -> None:
    options = parse(maxFiles="3")

    assert dict(pickle.loads(pickle.dumps(options))) == dict(options)


@pytest.mark.parametrize(
    ("parser", "value", "parsed"),
    [
        (boolean, " True ", True),
        (boolean, "false", False),
        (integer(0), "1_000", 1000),
        (integer(-5), " -5 ", -5),
        (number(0, 1), "0.25", 0.25),
        (number(0, 1), "1", 1.0),
        (size_bytes, "128", 128),
        (size_bytes, "64m", 64 * 2**20),
        (size_bytes, "128MiB", 128 * 2**20),
        (size_bytes, "1 GB", 2**30),
        (size_bytes, "2k", 2048),
        (size_bytes, "7b", 7),
        (duration_ms, "10 seconds", 10_000),
        (duration_ms, "1 hour 30 minutes", 5_400_000),
        (duration_ms, "7d", 7 * 86_400_000),
        (duration_ms, "interval 1 day", 86_400_000),
        (duration_ms, "500ms", 500),
        (duration_ms, "2 weeks", 14 * 86_400_000),
    ],
)
def test_values_are_read_as_spark_writes_them(parser: Parser, value: str, parsed: object) -> None:
    assert parser(value) == parsed


@pytest.mark.parametrize(
    ("parser", "value"),
    [
        (boolean, "yes"),
        (boolean, ""),
        (integer(0), "1.5"),
        (integer(0), ""),
        (integer(0, 9), "10"),
        (number(0, 1), "nan"),
        (number(0, 1), "1.1"),
        (number(0, 1), "one"),
        (size_bytes, "0"),
        (size_bytes, "64x"),
        (size_bytes, "-1"),
        (size_bytes, ""),
        (duration_ms, "10"),
        (duration_ms, "ten seconds"),
        (duration_ms, "10 parsecs"),
        (duration_ms, "10 seconds ago"),
        (duration_ms, ""),
        (choice("a", "b"), "c"),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(parser: Parser, value: str) -> None:
    with pytest.raises(ValueError, match=r"true or false|number|size|interval|one of"):
        parser(value)
