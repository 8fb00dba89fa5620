"""The metrics that Prometheus gets, and how they are read from an epoch's progress.

Units are Prometheus' base units, seconds and bytes, in the names. There are two kinds:

- a **counter** sums over the epochs since this process started, and its name ends in `_total`;
- a **gauge** is the last epoch's value. A value that is None has no sample.

Labels: `query` everywhere, and `query_name` where the query has a name; then `operator`, then `worker`, `splitter` or
`setting`. The run is not a label, since every restart would then begin a new set of series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """One Prometheus metric: its name, kind and help text, and how to read it from a record."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: Callable[[Any], float | None]


def _watermark_seconds(operator: OperatorProgress) -> float | None:
    return None if operator.watermark is None else operator.watermark / 1e6


def _counter(name: str, help: str, value: str | Callable[[Any], float | None]) -> Metric:
    return Metric(name, "counter", help, attrgetter(value) if isinstance(value, str) else value)


def _gauge(name: str, help: str, value: str | Callable[[Any], float | None]) -> Metric:
    return Metric(name, "gauge", help, attrgetter(value) if isinstance(value, str) else value)


def _last_window(name: str) -> Callable[[OperatorProgress], float | None]:
    """A measure of the last window whose keys a policy placed."""

    def read(operator: OperatorProgress) -> float | None:
        value: float | None = getattr(operator.partitions[-1], name) if operator.partitions else None
        return value

    return read


_EPOCH = (
    _counter("anabranch_epochs_total", "Epochs published.", lambda _: 1),
    _counter("anabranch_replayed_epochs_total", "Epochs that were run again after a crash.", "replayed"),
    _counter("anabranch_restored_groups_total", "Groups restored from the epoch store.", "restored"),
    _counter("anabranch_rows_total", "Rows read from the sources.", "rows"),
    _counter("anabranch_busy_seconds_total", "Total duration of the epochs, in seconds.", "seconds"),
    _gauge("anabranch_epoch", "Number of the last epoch.", "epoch"),
    _gauge("anabranch_epoch_start_seconds", "Start of the last epoch, in seconds since 1970.", "started"),
    _gauge("anabranch_epoch_seconds", "Duration of the last epoch, in seconds.", "seconds"),
    _gauge("anabranch_trigger_seconds", "Interval of the trigger, in seconds.", "trigger_seconds"),
    _gauge(
        "anabranch_input_rows_per_second", "Input rows per second, over the interval of the last epoch.", "input_rate"
    ),
    _gauge("anabranch_processed_rows_per_second", "Rows per second processed by the last epoch.", "processed_rate"),
    _gauge("anabranch_backlog_rows", "Rows waiting at the sources.", "backlog"),
    _gauge(
        "anabranch_event_latency_seconds", "Age of the newest event when the last epoch was published.", "event_latency"
    ),
    _gauge(
        "anabranch_latency_seconds",
        "Time from the arrival of the oldest row of the last epoch to publishing.",
        "latency",
    ),
    _counter("anabranch_shed_rows_total", "Rows dropped by load shedding.", "shed"),
)
_OPERATOR = (
    _counter("anabranch_operator_rows_total", "Rows read by the operator.", "rows"),
    _counter("anabranch_operator_emitted_rows_total", "Rows delivered by the operator.", "emitted"),
    _counter("anabranch_operator_late_rows_total", "Rows that arrived behind the watermark.", "late"),
    _counter("anabranch_operator_bad_rows_total", "Rows that the query cannot process.", "bad"),
    _counter("anabranch_operator_ahead_rows_total", "Rows with an event time too far ahead of the clock.", "ahead"),
    _counter(
        "anabranch_operator_shed_rows_total", "Rows dropped by load shedding directly before the operator.", "shed"
    ),
    _counter("anabranch_operator_seconds_total", "Total duration of the operator, in seconds.", "seconds"),
    _counter("anabranch_operator_publish_seconds_total", "Seconds spent in the operator's sinks.", "publish_seconds"),
    _gauge(
        "anabranch_operator_watermark_seconds", "The operator's watermark, in seconds since 1970.", _watermark_seconds
    ),
    _gauge("anabranch_operator_state_bytes", "Bytes of state.", "state_bytes"),
    _gauge(
        "anabranch_operator_imbalance_ratio",
        "Rows on the fullest worker above the mean, as a share of the mean.",
        "imbalance",
    ),
    _gauge(
        "anabranch_operator_split_efficiency_ratio",
        "Splitters' share of the time spent on splitting, reading and merging.",
        "efficiency",
    ),
    _gauge(
        "anabranch_operator_window_keys",
        "Distinct keys in the last window that a key policy placed.",
        _last_window("keys"),
    ),
    _gauge(
        "anabranch_operator_tuple_imbalance",
        "Rows on the fullest worker above the mean: a number of rows, not a ratio.",
        _last_window("tuple_imbalance"),
    ),
    _gauge(
        "anabranch_operator_cardinality_imbalance",
        "Distinct keys on the fullest worker above the mean: a number of keys.",
        _last_window("cardinality_imbalance"),
    ),
    _gauge(
        "anabranch_operator_hybrid_imbalance",
        "Combined load of rows and keys on the fullest worker above the mean, scaled to 0..1.",
        _last_window("hybrid_imbalance"),
    ),
    _gauge(
        "anabranch_operator_aggregation_cost",
        "Partial results to combine: the distinct keys of each worker, summed.",
        _last_window("aggregation_cost"),
    ),
)
_DROP = (
    _counter("anabranch_drop_rows_total", "Rows that reached the drop point.", "rows"),
    _counter("anabranch_drop_kept_rows_total", "Rows that the drop point kept.", "kept"),
    _counter("anabranch_drop_shed_rows_total", "Rows that the drop point dropped.", "shed"),
    _counter("anabranch_drop_windows_total", "Windows that ended, delivered or dropped.", "windows"),
    _counter("anabranch_drop_dropped_windows_total", "Windows dropped by load shedding.", "dropped"),
    _gauge("anabranch_drop_share", "Share p of windows to drop.", "p"),
    _gauge(
        "anabranch_drop_delivered_ratio",
        "Share of windows delivered since the query first shed load.",
        "delivered_share",
    ),
)
_WORKER = (
    _counter("anabranch_worker_rows_total", "Rows given to the worker, including copies.", "rows"),
    _counter("anabranch_worker_busy_seconds_total", "Seconds that the worker was busy.", "seconds"),
    _counter("anabranch_worker_read_seconds_total", "Seconds spent unpacking blocks.", "read_seconds"),
    _counter("anabranch_worker_merge_seconds_total", "Seconds spent merging rows into time order.", "merge_seconds"),
    _counter("anabranch_worker_query_seconds_total", "Seconds spent in the operator itself.", "query_seconds"),
    _counter("anabranch_worker_rebuilt_groups_total", "Groups restored from the epoch store.", "rebuilt"),
    _gauge("anabranch_worker_groups", "Partition-groups that the worker holds.", "groups"),
    _gauge("anabranch_worker_buffered_rows", "Rows handed to the worker and not yet processed.", "buffered"),
    _gauge("anabranch_worker_buffer_occupancy_ratio", "Share of the worker's rows not joined in time.", "occupancy"),
    _gauge("anabranch_worker_state_bytes", "Bytes of state.", "state_bytes"),
)
_SPLITTER = (
    _counter("anabranch_splitter_rows_total", "Rows read by the splitter.", "rows"),
    _counter("anabranch_splitter_windows_total", "Physical windows (blocks of rows) processed.", "windows"),
    _counter("anabranch_splitter_in_bytes_total", "Bytes read.", "bytes_in"),
    _counter("anabranch_splitter_out_bytes_total", "Bytes sent on, including copies.", "bytes_out"),
    _counter("anabranch_splitter_routed_rows_total", "Rows sent to one substream.", "routed"),
    _counter("anabranch_splitter_broadcast_rows_total", "Rows sent to all substreams.", "broadcast"),
    _counter("anabranch_splitter_omitted_rows_total", "Rows sent to no substream.", "omitted"),
    _counter("anabranch_splitter_read_seconds_total", "Seconds spent unpacking blocks.", "read_seconds"),
    _counter("anabranch_splitter_split_seconds_total", "Seconds spent splitting rows.", "split_seconds"),
    _counter("anabranch_splitter_emit_seconds_total", "Seconds spent packing blocks.", "emit_seconds"),
)
RUNNING = _gauge("anabranch_query_running", "1 while the query runs, otherwise 0.", lambda _: None)
FAILURES = _counter("anabranch_query_failures_total", "Times that the query ended with an error.", lambda _: None)
_SETTING = _gauge("anabranch_operator_setting", "Numeric settings chosen by controllers.", lambda _: None)

METRICS: tuple[Metric, ...] = (RUNNING, FAILURES, *_EPOCH, *_OPERATOR, _SETTING, *_WORKER, *_SPLITTER, *_DROP)
"""All metrics of the endpoint, in its order."""


def query_labels(query: str, name: str | None) -> Labels:
    return (("query", query),) if name is None else (("query", query), ("query_name", name))


def samples(progress: EpochProgress) -> Iterator[tuple[Metric, Labels, float]]:
    """The samples of one epoch; values that are None are left out."""
    query = query_labels(progress.query, progress.name)
    yield from _read(_EPOCH, progress, query)
    for operator in progress.operators:
        labels: Labels = (*query, ("operator", operator.name))
        yield from _read(_OPERATOR, operator, labels)
        for setting, value in operator.decisions.items():
            if isinstance(value, int | float):
                yield _SETTING, (*labels, ("setting", setting)), value
        worker: WorkerMeasure
        for worker in operator.workers:
            yield from _read(_WORKER, worker, (*labels, ("worker", str(worker.worker))))
        splitter: SplitterMeasure
        for splitter in operator.splitters:
            yield from _read(_SPLITTER, splitter, (*labels, ("splitter", str(splitter.splitter))))
    for drop in progress.drops:
        yield from _read(_DROP, drop, (*query, ("point", drop.point)))


def _read(metrics: Iterable[Metric], record: object, labels: Labels) -> Iterator[tuple[Metric, Labels, float]]:
    for metric in metrics:
        value = metric.value(record)
        if value is not None:
            yield metric, labels, value
