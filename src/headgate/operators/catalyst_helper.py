"""The helper JVM of an operator: which one it is follows from its context.

Never: connect to it, or start it.
"""

from __future__ import annotations

from headgate.catalyst.helper_jvm import HelperJvm
from headgate.protocol.operator_context import OperatorContext


def helper_of(context: OperatorContext) -> HelperJvm:
    """Return the helper that all slots of the application on this host share, if their queries ask for the same."""
    return HelperJvm(
        context.catalyst_memory_bytes,
        context.catalyst_java_options,
        context.application,
        on_evaluated=context.helper_use.add,
    )
