"""What a connector author implements and uses. Contracts only: nothing here runs anything.

Read in this order: `Source`, `Split`, `SplitEnumerator`, `SplitReader` (or `SourceReader`); `SimpleSource` for the
twenty-line case.
"""

from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.events import ReaderInfo, SourceEvent
from headgate.source.metrics import Counter, MetricGroup, SplitMetricGroup
from headgate.source.options import Options, OptionSpec
from headgate.source.reader import (
    InputStatus,
    ReaderOutput,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
)
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import (
    PlanLimits,
    PlannedRange,
    Source,
    SupportsBoundedPlans,
    SupportsEventTimeSeek,
    SupportsLag,
    SupportsSplitReassignmentOnRecovery,
    SupportsTaskGroups,
)
from headgate.source.split import Remaining, Split
from headgate.source.split_reader import FetchedBatch, Signal, SplitReader
from headgate.source.watermark import WatermarkAlignment, WatermarkStrategy

__all__ = [
    "Boundedness",
    "Counter",
    "FetchedBatch",
    "InputStatus",
    "MetricGroup",
    "OptionSpec",
    "Options",
    "PlanLimits",
    "PlannedRange",
    "ReaderInfo",
    "ReaderOutput",
    "Remaining",
    "Signal",
    "Source",
    "SourceEvent",
    "SourceOutput",
    "SourceReader",
    "SourceReaderContext",
    "Split",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitMetricGroup",
    "SplitReader",
    "SupportsBoundedPlans",
    "SupportsEventTimeSeek",
    "SupportsLag",
    "SupportsSplitReassignmentOnRecovery",
    "SupportsTaskGroups",
    "VersionedSerializer",
    "WatermarkAlignment",
    "WatermarkStrategy",
]
