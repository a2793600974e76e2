"""The queries of Nexmark as PySpark programs.

Never: say by which engine a program runs: each takes DataFrames, of `spark.read` or of `spark.readStream`.

The SQL of nexmark/nexmark is what they follow. What is written otherwise says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

DELAY = "4 seconds"
LEFT_OUT = {
    "q12": "its windows are of processing time: no two runs have the same answer",
}


@dataclass(frozen=True)
class Tables:
    """The three streams, with their watermark, or the three tables.

    Parameters
    ----------
    person, auction, bid
        The rows.
    """

    person: DataFrame
    auction: DataFrame
    bid: DataFrame


Program = Callable[[Tables], DataFrame]


@dataclass(frozen=True)
class Query:
    """One query.

    Parameters
    ----------
    name
        As Nexmark numbers them.
    program
        What it computes.
    mode
        Structured Streaming's output mode, and that in which the continuous query is timed.
    partition_by
        The columns by which files are partitioned; the others go nowhere when they are timed.
    """

    name: str
    program: Program
    mode: Literal["append", "update"] = "append"
    partition_by: list[str] = field(default_factory=list)


def q0(of: Tables) -> DataFrame:
    """Pass through."""
    return of.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(of: Tables) -> DataFrame:
    """Convert currencies."""
    return of.bid.selectExpr("auction", "bidder", "0.908 * price AS price", "dateTime", "extra")


def q2(of: Tables) -> DataFrame:
    """Select some auctions."""
    return of.bid.where("auction % 123 = 0").select("auction", "price")


def q3(of: Tables) -> DataFrame:
    """Who sells in some states, in one category."""
    of_category = of.auction.where("category = 10").select("id", "seller")
    there = of.person.where("state IN ('OR', 'ID', 'CA')").select(F.col("id").alias("who"), "name", "city", "state")
    return of_category.join(there, F.col("seller") == F.col("who")).select("name", "city", "state", "id")


def _during(of: Tables) -> DataFrame:
    """Return each bid with its auction, while that is open."""
    opened = of.auction.select(
        F.col("id"), "category", "seller", "expires", F.col("dateTime").alias("begins"),
    )  # fmt: skip
    bids = of.bid.select("auction", "bidder", "price", F.col("dateTime").alias("at"))
    is_open = (F.col("at") >= F.col("begins")) & (F.col("at") <= F.col("expires"))
    return bids.join(opened, (F.col("auction") == F.col("id")) & is_open)


def q4(of: Tables) -> DataFrame:
    """The average of the highest bids of each category."""
    highest = _during(of).groupBy("id", "category").agg(F.max("price").alias("final"))
    return highest.groupBy("category").agg(F.avg("final").alias("average"))


def q5(of: Tables) -> DataFrame:
    """The auctions with most bids in windows of ten seconds.

    Nexmark joins the counts with their greatest; here a second aggregation keeps both. Each window ends in other two
    seconds, by which these are grouped.
    """
    counts = of.bid.groupBy(F.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(
        F.count(F.lit(1)).alias("num")
    )
    gathered = counts.groupBy(F.window(F.window_time("window"), "2 seconds")).agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    best = F.explode(F.filter("all", lambda each: each["num"] == F.col("most")))
    return gathered.select("window", best.alias("best")).select("best.auction", "best.num", "window.end")


def q6(of: Tables) -> DataFrame:
    """The average price of each seller's last ten auctions."""
    final = _during(of).groupBy("id", "seller", "expires").agg(F.max("price").alias("final"))
    last_ten = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-10, 0)
    return final.select("seller", F.avg("final").over(last_ten).alias("average"))


def q7(of: Tables) -> DataFrame:
    """The highest bid of each ten seconds.

    Nexmark joins the bids with the greatest price, and has all of several that are equal; here the last of them.
    """
    best = F.max(F.struct("price", "dateTime", "auction", "bidder")).alias("best")
    return of.bid.groupBy(F.window("dateTime", "10 seconds")).agg(best).select("best.*")


def q8(of: Tables) -> DataFrame:
    """Who is new and sells at once: within the same ten seconds."""
    new = of.person.groupBy(F.window("dateTime", "10 seconds").alias("came"), "id", "name").count()
    selling = of.auction.groupBy(F.window("dateTime", "10 seconds").alias("sold"), "seller").count()
    both = (F.col("id") == F.col("seller")) & (F.col("came") == F.col("sold"))
    return new.drop("count").join(selling.drop("count"), both).select("id", "name", "came.start")


def q9(of: Tables) -> DataFrame:
    """The winning bid of each auction."""
    order = Window.partitionBy("id").orderBy(F.desc("price"), "at")
    ranked = _during(of).withColumn("rank", F.row_number().over(order))
    return ranked.where("rank = 1").select("id", "category", "seller", "bidder", "price", "at")


def q10(of: Tables) -> DataFrame:
    """Store bids in files by day and minute."""
    texts = [F.date_format("dateTime", "yyyy-MM-dd").alias("dt"), F.date_format("dateTime", "HH:mm").alias("hm")]
    return of.bid.select("auction", "bidder", "price", "dateTime", "extra", *texts)


def q11(of: Tables) -> DataFrame:
    """How many bids each person has in a session."""
    sessions = of.bid.groupBy(F.session_window("dateTime", "10 seconds").alias("session"), "bidder")
    return sessions.agg(F.count(F.lit(1)).alias("bids")).select("bidder", "bids", "session.start", "session.end")


def q13(of: Tables) -> DataFrame:
    """Join with a table that does not change."""
    side = of.bid.sparkSession.range(10_000).selectExpr("id AS key", "concat('value ', id) AS value")
    return of.bid.join(side, F.col("auction") % 10_000 == F.col("key")).select(
        "auction", "bidder", "price", "dateTime", "value"
    )


@F.pandas_udf(LongType())  # type: ignore[call-overload]
def count_c(texts: pd.Series) -> pd.Series:
    """Count a character: Nexmark's is a function in Java."""
    return texts.str.count("c")


def q14(of: Tables) -> DataFrame:
    """Calculate, with a function of the user's."""
    hour = F.hour("dateTime")
    is_day, is_night = (hour >= 8) & (hour <= 18), (hour <= 6) | (hour >= 20)
    kind = F.when(is_day, "dayTime").when(is_night, "nightTime").otherwise("otherTime")
    price = F.expr("0.908 * price")
    return of.bid.where((price > 1_000_000) & (price < 50_000_000)).select(
        "auction", "bidder", price.alias("price"), kind.alias("bidTimeType"), "dateTime", "extra",
        count_c("extra").alias("c_counts"),
    )  # fmt: skip


def _day() -> Column:
    return F.date_format("dateTime", "yyyy-MM-dd").alias("day")


def _by_rank() -> list[Column]:
    middle = "price >= 10000 AND price < 1000000"
    return [
        F.count(F.lit(1)).alias("total_bids"),
        F.count_if(F.expr("price < 10000")).alias("rank1_bids"),
        F.count_if(F.expr(middle)).alias("rank2_bids"),
        F.count_if(F.expr("price >= 1000000")).alias("rank3_bids"),
    ]


def q15(of: Tables) -> DataFrame:
    """Statistics of each day. Nexmark's counts of different bidders are left out: Structured Streaming has none."""
    return of.bid.groupBy(_day()).agg(*_by_rank())


def q16(of: Tables) -> DataFrame:
    """Statistics of each channel and day; counts of different bidders are left out as in q15."""
    return of.bid.groupBy("channel", _day()).agg(F.max(F.date_format("dateTime", "HH:mm")).alias("minute"), *_by_rank())


def q17(of: Tables) -> DataFrame:
    """Statistics of each auction and day."""
    prices = [F.min("price"), F.max("price"), F.avg("price"), F.sum("price")]
    named = [each.alias(name) for each, name in zip(prices, ("least", "most", "average", "total"), strict=True)]
    return of.bid.groupBy("auction", _day()).agg(*_by_rank(), *named)


def q18(of: Tables) -> DataFrame:
    """The last bid of each bidder for each auction. Nexmark ranks them; here it is the greatest by its time."""
    last = F.max(F.struct("dateTime", "price", "channel", "url", "extra")).alias("last")
    return of.bid.groupBy("bidder", "auction").agg(last).select("bidder", "auction", "last.*")


def q19(of: Tables) -> DataFrame:
    """The ten highest bids of each auction."""
    order = Window.partitionBy("auction").orderBy(F.desc("price"), "dateTime")
    return of.bid.withColumn("rank", F.row_number().over(order)).where("rank <= 10")


def q20(of: Tables) -> DataFrame:
    """Each bid with its auction, of one category."""
    of_category = of.auction.where("category = 10").select("id", "itemName", "description", "seller", "category")
    return of.bid.join(of_category, F.col("auction") == F.col("id")).select(
        "auction", "bidder", "price", "channel", "itemName", "seller", "category"
    )


def q21(of: Tables) -> DataFrame:
    """The number of each bid's channel."""
    known = F.lower("channel")
    number = (
        F.when(known == "apple", "0").when(known == "google", "1").when(known == "facebook", "2")
        .when(known == "baidu", "3").otherwise(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2))
    )  # fmt: skip
    is_known = F.col("url").rlike("(&|^)channel_id=([^&]*)") | known.isin("apple", "google", "facebook", "baidu")
    return of.bid.where(is_known).select("auction", "bidder", "price", "channel", number.alias("channel_id"))


def q22(of: Tables) -> DataFrame:
    """The folders of each bid's URL."""
    parts = [F.split_part("url", F.lit("/"), F.lit(3 + each)).alias(f"dir{each}") for each in (1, 2, 3)]
    return of.bid.select("auction", "bidder", "price", "channel", *parts)


QUERIES = (
    Query("q0", q0), Query("q1", q1), Query("q2", q2), Query("q3", q3), Query("q4", q4), Query("q5", q5),
    Query("q6", q6), Query("q7", q7), Query("q8", q8), Query("q9", q9),
    Query("q10", q10, partition_by=["dt", "hm"]), Query("q11", q11), Query("q13", q13), Query("q14", q14),
    Query("q15", q15, "update"), Query("q16", q16, "update"), Query("q17", q17, "update"), Query("q18", q18, "update"),
    Query("q19", q19), Query("q20", q20), Query("q21", q21), Query("q22", q22),
)  # fmt: skip
