"""What a source's options say about event time: watermarks and alignment of streams, order of batch reads.

Never: look at anything but options and columns.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.expressions.expressions import index_of
from headgate.source import WatermarkAlignment, WatermarkStrategy
from headgate.source.options import Options


def strategy_of(options: Options, schema: pa.Schema) -> WatermarkStrategy | None:
    """Return the strategy that ``eventTimeColumn`` and ``scan.watermark.*`` make, or None without the column.

    For streams, the same in continuous queries and in ``spark.readStream``.

    Raises
    ------
    OptionError
        An alignment lacks its group, its drift or the column, or the column is none of the schema or no timestamp; or
        an order is asked for, which only a batch read has.
    """
    if options["eventTimeOrder"]:
        raise options.error(
            "eventTimeOrder",
            "is for batch reads (spark.read). Splits of a stream are kept at the same pace by alignment: set "
            "'scan.watermark.alignment.group' and 'scan.watermark.alignment.max-drift'.",
        )
    column = options["eventTimeColumn"]
    group = options["scan.watermark.alignment.group"]
    drift_ms = options["scan.watermark.alignment.max-drift"]
    if (group is None) != (drift_ms is None):
        name = "scan.watermark.alignment." + ("group" if group is None else "max-drift")
        raise options.error(name, "must be set too: an alignment has a group and a max-drift.")
    if column is None:
        if group is not None:
            raise options.error("scan.watermark.alignment.group", "needs 'eventTimeColumn' to be set.")
        return None
    field = _event_time_field(options, schema)
    alignment = None
    if group is not None:
        alignment = WatermarkAlignment(
            group=group,
            max_drift_ms=drift_ms,
            update_interval_ms=options["scan.watermark.alignment.update-interval"],
        )
    return WatermarkStrategy(
        event_time_column=field.name,
        idle_timeout_ms=options["scan.watermark.idle-timeout"],
        alignment=alignment,
    )


def ordered_by(options: Options, schema: pa.Schema) -> str | None:
    """Return the column by which the tasks of a batch read order their rows; None: ``eventTimeOrder`` is not set.

    Raises
    ------
    OptionError
        The column of event time is none of the schema or no timestamp.
    """
    if not options["eventTimeOrder"]:
        return None
    name: str = _event_time_field(options, schema).name
    return name


def _event_time_field(options: Options, schema: pa.Schema) -> pa.Field:
    field = schema.field(index_of(schema, options["eventTimeColumn"]))
    if not pa.types.is_timestamp(field.type):
        raise options.error("eventTimeColumn", f"names a column of type {field.type}; it must be a timestamp.")
    return field
