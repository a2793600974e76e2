"""The public functions: names that PySpark has as well, and arguments that mean the same."""

from __future__ import annotations

import inspect

import pytest

from headgate import functions
from headgate.errors import OptionError
from headgate.functions import col, lit


def test_all_functions_are_documented_and_listed() -> None:
    found = {
        name
        for name, each in vars(functions).items()
        if inspect.isfunction(each) and each.__module__ == functions.__name__ and not name.startswith("_")
    }
    assert found | {"Column"} == set(functions.__all__)
    assert all(getattr(functions, name).__doc__ for name in functions.__all__)


def test_their_arguments_have_pyspark_s_names() -> None:
    spark_functions = pytest.importorskip("pyspark.sql.functions")
    for name in functions.__all__:
        theirs = getattr(spark_functions, name, None)
        if name == "Column" or theirs is None:
            continue
        ours = list(inspect.signature(getattr(functions, name)).parameters)
        assert ours == list(inspect.signature(theirs).parameters)[: len(ours)], name


def test_a_text_is_the_name_of_a_column() -> None:
    assert repr(functions.upper("name")) == "Column<upper(name)>"
    assert repr(functions.concat("a", lit("-"))) == "Column<concat(a, -)>"


def test_a_constant_must_be_declared_as_one() -> None:
    assert repr(col("s").contains(lit("x"))) == repr(col("s").contains("x"))
    assert repr(functions.contains("s", lit("x"))) == "Column<contains(s, x)>"
    with pytest.raises(OptionError, match="must be a constant"):
        functions.contains("s", "x")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be a constant"):
        functions.startswith("s", col("x"))


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="A column or its name is needed"):
        functions.upper(5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no unit 'fortnight'"):
        functions.date_trunc("fortnight", "at")
    with pytest.raises(OptionError, match="must be a constant, the same for all rows"):
        functions.repeat("s", col("n"))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a field of a struct has a name"):
        col("a")[0]  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be one character"):
        functions.lpad("s", 3, "ab")
    with pytest.raises(OptionError, match="no simple type 'array<int>'"):
        col("a").cast("array<int>")
    with pytest.raises(OptionError, match=r"follows functions.when"):
        col("a").otherwise(1)


def test_aggregates_have_spark_s_names() -> None:
    """Of their columns, as long as they have no alias."""
    made = {
        "count(1)": functions.count(),
        "count(n)": functions.count("n"),
        "sum((n * 2))": functions.sum(col("n") * 2),
        "first(n)": functions.first("n", True),
        "approx_count_distinct(n)": functions.approx_count_distinct("n", 0.01),
        "collect_list(n)": functions.collect_list("n"),
    }
    for name, aggregate in made.items():
        assert aggregate.name_in_output == name
        assert aggregate.alias("x").name_in_output == "x"
    assert repr(functions.avg("n").alias("x")) == "Aggregate<avg(n) AS x>"
    assert [functions.count(each) for each in ("*", lit(1))] == [functions.count()] * 2
    assert functions.count(lit(None)) != functions.count()


def test_windows_that_cannot_be() -> None:
    """Spark refuses them, too."""
    for arguments in (("10 seconds", "0 seconds"), ("10 seconds", "11 seconds"), ("0 seconds",)):
        with pytest.raises(OptionError, match="the slide is"):
            functions.window("at", *arguments)
    with pytest.raises(OptionError, match="must be below the slide"):
        functions.window("at", "10 seconds", None, "10 seconds")
    with pytest.raises(OptionError, match="the gap is '0 seconds'"):
        functions.session_window("at", "0 seconds")
    for make in (functions.window, functions.session_window):
        with pytest.raises(OptionError, match="'often' is not a valid interval"):
            make("at", "often")
    with pytest.raises(OptionError, match=r"from 0.0011 to 0.39"):
        functions.approx_count_distinct("n", 0.5)
