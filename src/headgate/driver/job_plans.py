"""Makes the plan of a query's job of its definition.

Never: hold what changes while it runs.
"""

from __future__ import annotations

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.graph.stage_graph import BAD_RECORDS_UID, LATE_ROWS_UID, QueryDefinition


def job_plan(definition: QueryDefinition, query_id: str, run: int) -> JobPlan:
    """Return what the job master knows of a query."""
    return JobPlan(
        sources={
            uid: SourcePlan(
                name=source.source.name,
                reassigns_on_recovery=source.reassigns_on_recovery,
                fixed=source.source.options.fixed,
                keeps_subtask=source.watermark_strategy is not None,
                alignment=None if source.watermark_strategy is None else source.watermark_strategy.alignment,
            )
            for uid, source in definition.sources.items()
        },
        stages=_stages(definition),
        exchanges={
            uid: ExchangePlan(
                kind=exchange.exchange_kind,
                producer_stage=definition.graph.stage_of(uid),
                consumer_stage=definition.graph.consumer_stage(uid),
                targets=exchange.targets,
            )
            for uid, exchange in definition.graph.exchanges.items()
        },
        signatures=definition.graph.signatures,
        state_schemas=definition.graph.state_schemas,
        named=definition.graph.named,
        parallelism=definition.parallelism,
        max_parallelism=definition.options["max-parallelism"],
        query_id=query_id,
        run=run,
    )


def _stages(definition: QueryDefinition) -> tuple[tuple[str, ...], ...]:
    """Return the uids of what may have state, by stage; the sinks beside the query's own among them."""
    stages = [list(stage.uids) for stage in definition.graph.stages]
    if definition.bad_records_sink is not None:
        for stage in stages:
            stage.append(BAD_RECORDS_UID)
    if definition.late_rows is not None:
        stages[definition.graph.stage_of(definition.late_rows.uid)].append(LATE_ROWS_UID)
    return tuple(map(tuple, stages))
