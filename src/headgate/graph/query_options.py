"""The options of a continuous query, as data, and which of those given to ``writeStream`` they are.

Never: look anything up in a session: who parses them hands in what is there as ``spark.headgate.*``.

The names are those of FLIP-547 and FLIP-217 where they name one, and Flink's where they do not.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping

from headgate.coordinator.autoscaler.options import AutoscalerOptions
from headgate.coordinator.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartOptions
from headgate.errors import OptionError
from headgate.source.options import Options, OptionSpec, boolean, choice, duration_ms, integer, number, size_bytes, text

_NAME = "A continuous query"
_UNALIGNED = "execution.checkpointing.unaligned"
_RECOVER_DOWNSTREAM = f"{_UNALIGNED}.recover-output-on-downstream.enabled"
_DURING_RECOVERY = f"{_UNALIGNED}.during-recovery.enabled"


def _duration_or_zero_ms(value: str) -> int:
    """Parse an interval, or 0."""
    return 0 if value.strip() == "0" else duration_ms(value)


def _attempts(value: str) -> int | str:
    """Parse a number of restarts, or ``infinite``."""
    return "infinite" if value.strip().lower() == "infinite" else int(integer(0)(value))


def _network(value: str) -> str:
    """Parse a network in CIDR notation."""
    try:
        return str(ipaddress.ip_network(value.strip()))
    except ValueError:
        raise ValueError("a network like '10.8.0.0/16'") from None


QUERY_OPTION_SPECS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "slots", choice("spark", "threads"), "spark",
        "whether slots are tasks of a Spark job, or threads of the driver's process (master local, tests, notebooks)",
    ),
    OptionSpec("checkpointLocation", text, None, "where the checkpoints are: a folder of this query only"),
    OptionSpec("allowNonRestoredState", boolean, False, "whether state that no operator claims may be dropped"),
    OptionSpec("ignoreCorruptCheckpoints", boolean, False, "whether the checkpoint before a corrupt one is used"),
    OptionSpec("max-parallelism", integer(1, 32768), 128, "most slots the query may ever have", changeable=False),
    OptionSpec(
        "autoscaler", choice("off", "lag"), "off",
        "whether the query is rescaled automatically, by its lag and by how busy it is",
    ),
    OptionSpec("parallelism.min", integer(1, 32768), 1, "fewest slots that the autoscaler chooses"),
    OptionSpec("parallelism.max", integer(1, 32768), None, "most slots that the autoscaler chooses"),
    OptionSpec(
        "autoscaler.target.utilization", number(0.01, 1), 0.7, "share of the time for which the query is to be busy"
    ),
    OptionSpec(
        "autoscaler.target.utilization.boundary", number(0, 1), 0.2,
        "how far it may be busy for more or less than that",
    ),
    OptionSpec(
        "autoscaler.catch-up.duration", _duration_or_zero_ms, 300_000, "time in which a lag is to be gone",
    ),
    OptionSpec("autoscaler.metrics.window", duration_ms, 180_000, "time over which figures are averaged"),
    OptionSpec(
        "autoscaler.stabilization.interval", _duration_or_zero_ms, 60_000,
        "time after a start, a rescale or a restart whose figures do not count",
    ),
    OptionSpec(
        "autoscaler.scale-down.interval", _duration_or_zero_ms, 600_000,
        "time for which fewer slots must be enough before there are fewer",
    ),
    OptionSpec(
        "autoscaler.scale-down.max-factor", number(0.01, 1), 0.6, "largest share of the slots that is taken at a time"
    ),
    OptionSpec(f"{_UNALIGNED}.enabled", boolean, True, "whether barriers overtake rows"),
    OptionSpec(
        "execution.checkpointing.aligned-checkpoint-timeout", _duration_or_zero_ms, 0,
        "how long barriers keep their place before they overtake",
    ),
    OptionSpec(_RECOVER_DOWNSTREAM, boolean, True, "whether rows in flight are recovered by their receivers"),
    OptionSpec(_DURING_RECOVERY, boolean, None, "whether checkpoints complete while rows are being recovered"),
    OptionSpec("execution.checkpointing.timeout", duration_ms, 600_000, "time after which a checkpoint is given up"),
    OptionSpec("execution.checkpointing.num-retained", integer(1), 1, "how many completed checkpoints are kept"),
    OptionSpec("execution.checkpointing.tolerable-failed-checkpoints", integer(0), 0, "how many in a row may fail"),
    OptionSpec(
        "restart-strategy", choice("exponential-delay", "fixed-delay", "none"), "exponential-delay",
        "when and how often what failed is restarted",
    ),
    OptionSpec("restart-strategy.attempts", _attempts, None, "restarts before the query fails: a number or infinite"),
    OptionSpec("restart-strategy.delay", _duration_or_zero_ms, None, "fixed-delay: delay of each restart"),
    OptionSpec("restart-strategy.initial-backoff", _duration_or_zero_ms, None, "exponential-delay: the first delay"),
    OptionSpec("restart-strategy.max-backoff", duration_ms, None, "exponential-delay: the longest delay"),
    OptionSpec("restart-strategy.backoff-multiplier", number(1, 100), None, "exponential-delay: how delays grow"),
    OptionSpec("restart-strategy.jitter-factor", number(0, 1), None, "exponential-delay: how much delays vary"),
    OptionSpec(
        "restart-strategy.reset-backoff-threshold", duration_ms, None,
        "exponential-delay: time without a failure after which delays start over",
    ),
    OptionSpec(
        "execution.state-recovery.from-local", boolean, True,
        "whether slots copy keyed state to a local disk, if the location is on none, and read it there",
    ),
    OptionSpec("failover-strategy", choice("region", "full"), "region", "what is restarted with a subtask that failed"),
    OptionSpec(
        "pipeline.watermark-alignment.allow-unaligned-source-splits", boolean, False,
        "whether a source that cannot pause splits may be aligned",
    ),
    OptionSpec("state.memory", size_bytes, 256 << 20, "state that an operator keeps in memory in each subtask"),
    OptionSpec("static.memory", size_bytes, 256 << 20, "what the static side of a join may have, collected"),
    OptionSpec("catalyst.memory", size_bytes, 512 << 20, "heap of the Java that evaluates expressions, per host"),
    OptionSpec("catalyst.extraJavaOptions", text, "", "further options of that Java"),
    OptionSpec("exchange.memory", size_bytes, 32 << 20, "rows on their way in an exchange, in each subtask"),
    OptionSpec("exchange.buffer-timeout", _duration_or_zero_ms, 5, "how long rows of an idle subtask wait to be sent"),
    OptionSpec(
        "table.optimizer.agg-phase-strategy", choice("AUTO", "TWO_PHASE", "ONE_PHASE"), "ONE_PHASE",
        "whether rows of windows and groups are aggregated before they go to another subtask, too",
    ),
    OptionSpec("heartbeat.timeout", duration_ms, 10_000, "silence after which a slot that has begun is lost"),
    OptionSpec("task.stuck.timeout", duration_ms, 30_000, "time in one call after which a worker is ended"),
    OptionSpec("transport.host", text, None, "the address of the driver's endpoint; default: loopback in local mode"),
    OptionSpec("transport.port", integer(0, 65535), 0, "its port; 0: any that is free"),
    OptionSpec(
        "transport.slots.network", _network, None,
        "where slots listen for one another (CIDR); default: at the address that they reach the driver from",
    ),
    OptionSpec("transport.tls.enabled", boolean, False, "whether slots and driver talk TLS"),
    OptionSpec("transport.tls.cert", text, None, "PEM file with the certificate chain of the endpoints"),
    OptionSpec("transport.tls.key", text, None, "PEM file with its private key"),
    OptionSpec("transport.tls.ca", text, None, "PEM file of trusted certificates; default: the chain"),
    OptionSpec(
        "metrics.prometheus.port", integer(1, 65535), None,
        "a port for Prometheus at all addresses of the driver's host, beside that of the dashboard",
    ),
    OptionSpec("metrics.opentelemetry.enabled", boolean, False, "whether metrics are sent with OpenTelemetry"),
    OptionSpec(
        "log.structuredLogging.enabled", boolean, False,
        "whether Headgate logs JSON to standard error, in the driver and in slots",
    ),
    OptionSpec("dashboard.enabled", boolean, True, "whether the driver serves the page of this query"),
    OptionSpec("dashboard.host", text, "127.0.0.1", "the address at which it does"),
    OptionSpec("dashboard.port", integer(0, 65535), 0, "its port; 0: any that is free"),
    OptionSpec("badRecords", text, "fail", "fail, skip, or the format of a sink for them"),
    OptionSpec("badRecords.*", text, None, "the options of that sink"),
    OptionSpec("lateRows", text, None, "the format of a sink for rows that came after the watermark"),
    OptionSpec("lateRows.*", text, None, "the options of that sink"),
)  # fmt: skip
"""The options of ``writeStream`` that are the query's and not its sink's."""


def split_options(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return which of the options given to ``writeStream`` are the query's, and which are the sink's.

    Raises
    ------
    OptionError
        One is neither, as far as one can see: it is a slip of the pen away from an option of the query's.
    """
    query: dict[str, str] = {}
    sink: dict[str, str] = {}
    names = {spec.name.lower(): spec.name for spec in QUERY_OPTION_SPECS}
    for name, value in given.items():
        if is_query_option(name):
            query[name] = value
            continue
        # A sink takes what it likes, a user's own data source anything at all: only what is very near is a mistake.
        near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.88)
        if near:
            meant = " or ".join(repr(names[each]) for each in near)
            raise OptionError(
                f"{_NAME} has no option {name!r}. Did you mean {meant}?", option=name, value=None, near=tuple(near)
            )
        sink[name] = value
    return query, sink


def is_query_option(name: str) -> bool:
    """Return whether an option of this name is the query's."""
    lower = name.lower()
    return lower.startswith(("badrecords.", "laterows.")) or any(
        lower == spec.name.lower() for spec in QUERY_OPTION_SPECS
    )


def parse_query_options(given: Mapping[str, str], defaults: Mapping[str, str]) -> Options:
    """Return the query's options: what was given to the query, else the session's defaults, else our own.

    Raises
    ------
    OptionError
        A value is not what it must be, or contradicts another.
    """
    lower = {name.lower() for name in given}
    session = {name: value for name, value in defaults.items() if is_query_option(name) and name.lower() not in lower}
    options = Options.parse(_NAME, QUERY_OPTION_SPECS, {**session, **given})
    if options[_DURING_RECOVERY] and not options[_RECOVER_DOWNSTREAM]:
        raise options.error(
            _DURING_RECOVERY,
            f"is true and {_RECOVER_DOWNSTREAM!r} is false: for a checkpoint during recovery, receivers must recover "
            "the rows in flight. Set both to true, or this one to false.",
        )
    restart_options(options)
    autoscaler_options(options)
    return options


def checkpoints_during_recovery(options: Options) -> bool:
    """Return whether checkpoints complete while rows that were under way are being recovered."""
    return bool(options[_RECOVER_DOWNSTREAM] if options[_DURING_RECOVERY] is None else options[_DURING_RECOVERY])


def alignment_timeout_ms(options: Options) -> int | None:
    """Return how long barriers keep their place among the rows, in milliseconds; None: for ever."""
    timeout_ms: int = options["execution.checkpointing.aligned-checkpoint-timeout"]
    return timeout_ms if options[f"{_UNALIGNED}.enabled"] else None


def autoscaler_options(options: Options) -> AutoscalerOptions | None:
    """Return how the autoscaler is to work; None: it is off.

    Raises
    ------
    OptionError
        The numbers of slots contradict one another, or an option of the autoscaler is set and that is not mentioned.
    """
    if options["autoscaler"] == "off":
        for spec in QUERY_OPTION_SPECS:
            of_it = spec.name.startswith(("autoscaler.", "parallelism."))
            if of_it and options.is_set(spec.name) and not options.is_set("autoscaler"):
                raise options.error(spec.name, "has no meaning without the option 'autoscaler'. Set that to lag.")
        return None
    most = options["max-parallelism"] if options["parallelism.max"] is None else options["parallelism.max"]
    if most > options["max-parallelism"]:
        raise options.error(
            "parallelism.max", f"is {most}; it must be at most max-parallelism, which is {options['max-parallelism']}."
        )
    if options["parallelism.min"] > most:
        raise options.error("parallelism.min", f"is {options['parallelism.min']}, more than the maximum, {most}.")
    return AutoscalerOptions(
        min_parallelism=options["parallelism.min"],
        max_parallelism=most,
        target_utilization=options["autoscaler.target.utilization"],
        boundary=options["autoscaler.target.utilization.boundary"],
        catch_up_ms=options["autoscaler.catch-up.duration"],
        window_ms=options["autoscaler.metrics.window"],
        stabilization_ms=options["autoscaler.stabilization.interval"],
        scale_down_interval_ms=options["autoscaler.scale-down.interval"],
        scale_down_max_factor=options["autoscaler.scale-down.max-factor"],
    )


def restart_options(options: Options) -> RestartOptions:
    """Return the restart strategy that the query's options name.

    Raises
    ------
    OptionError
        An option is set that is another strategy's.
    """
    kind = options["restart-strategy"]
    allowed = {
        "exponential-delay": (
            "attempts", "initial-backoff", "max-backoff", "backoff-multiplier", "jitter-factor",
            "reset-backoff-threshold",
        ),
        "fixed-delay": ("attempts", "delay"),
        "none": (),
    }[kind]  # fmt: skip
    for spec in QUERY_OPTION_SPECS:
        prefix, _, name = spec.name.partition(".")
        if prefix == "restart-strategy" and name and name not in allowed and options.is_set(spec.name):
            raise options.error(spec.name, f"has no meaning for the restart strategy {kind!r}. Leave it out.")
    given = {name: options[f"restart-strategy.{name}"] for name in allowed}
    fields = {
        "attempts": "attempts", "delay": "delay_ms", "initial-backoff": "initial_backoff_ms",
        "max-backoff": "max_backoff_ms", "backoff-multiplier": "backoff_multiplier", "jitter-factor": "jitter_factor",
        "reset-backoff-threshold": "reset_backoff_threshold_ms",
    }  # fmt: skip
    values = {
        fields[name]: None if value == "infinite" else value for name, value in given.items() if value is not None
    }
    made = {"exponential-delay": ExponentialDelay, "fixed-delay": FixedDelay, "none": NoRestart}[kind]
    return made(**values)  # type: ignore[no-any-return]
