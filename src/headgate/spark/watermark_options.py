"""What a source's options say about event time, the same for the continuous door and for ``spark.readStream``.

Never: look at anything but options and columns.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.operators.expressions import index_of
from headgate.source import WatermarkAlignment, WatermarkStrategy
from headgate.source.options import Options


def strategy_of(options: Options, schema: pa.Schema) -> WatermarkStrategy | None:
    """Return the strategy that ``eventTimeColumn`` and ``scan.watermark.*`` make, or None without the column.

    Raises
    ------
    OptionError
        An alignment lacks its group, its drift or the column, or the column is none of the schema or no timestamp.
    """
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
    field = schema.field(index_of(schema, column))
    if not pa.types.is_timestamp(field.type):
        raise options.error("eventTimeColumn", f"names a column of type {field.type}; it must be a timestamp.")
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
