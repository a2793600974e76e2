"""What runs in a slot: the machines of the slot and of a subtask, outputs, and watermarks per split.

Never: import a transport or Spark. Connector code called from here never needs a lock: one thread calls all of it.

Follows FLIP-27, "Reader Interface and Threading Model" and "SourceOutput and Watermarking".
"""

from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.reader_output import BatchOutput, Downstream, StreamingOutput, TaskOutput
from headgate.task.watermarks import SplitWatermarks

__all__ = [
    "MAX_WATERMARK_MS",
    "BatchOutput",
    "Downstream",
    "SplitWatermarks",
    "StreamingOutput",
    "TaskOutput",
]
