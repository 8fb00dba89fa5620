"""Progress for the world outside: listeners, a file of JSON lines, an endpoint for Prometheus.

A **listener** hears that a query started, each epoch's progress, and that the query ended, like Spark's
`StreamingQueryListener`. It is called between two epochs on the driver, so it should return soon. What it raises is
logged and forgotten (`notify`): a full disk under a metrics file must not stop a stream. A listener with a method
`attach` is given the query itself first (`Attachable`), so that it can ask for its name and its health.

`METRICS` is the one list of what Prometheus gets. Units are Prometheus' own, seconds and bytes, in the names.
Two kinds:

- a **counter** sums over the epochs since this process started, and ends in `_total`;
- a **gauge** is the last epoch's value. A value that is None has no sample, and a worker or splitter that is gone takes
  its gauges along: an old number that looks fresh is worse than none.

Labels: `query` everywhere, and `query_name` where the query has a name; then `operator`, then `worker`, `splitter` or
`setting`. There is none for the run, which would start a new set of series at every restart.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError, ListenerError
from anabranch.observe.health import Health, report
from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure

LOG = logging.getLogger(__name__)


@runtime_checkable
class Listener(Protocol):
    """Hears what a query does. Calls for one query come one after the other; several queries may call at once."""

    def on_started(self, query: str, run: str) -> None: ...

    def on_progress(self, progress: EpochProgress) -> None: ...

    def on_terminated(self, query: str, error: str | None) -> None: ...


@runtime_checkable
class Watched(Protocol):
    """What a listener may ask a query at any time."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str | None: ...

    @property
    def health(self) -> Health: ...


@runtime_checkable
class Attachable(Protocol):
    """A listener that wants the query itself: called once, before `on_started`."""

    def attach(self, query: Watched) -> None: ...


def attach(listeners: Iterable[Listener], query: Watched) -> None:
    """Give the query to those listeners that want it."""
    for listener in listeners:
        if isinstance(listener, Attachable):
            _call(listener, "attach", query)


def notify(
    listeners: Iterable[Listener], method: Literal["on_started", "on_progress", "on_terminated"], *args: Any
) -> None:
    """Call one method of every listener. An error of one is logged, and neither the stream nor the others notice."""
    for listener in listeners:
        _call(listener, method, *args)


def _call(listener: object, method: str, *args: Any) -> None:
    try:
        getattr(listener, method)(*args)
    except Exception as error:
        name, traced = type(listener).__name__, LOG.isEnabledFor(logging.DEBUG)
        LOG.error("listener %s failed in %s, and the stream goes on: %r", name, method, error, exc_info=traced)


class _Closing(ABC):
    """`with` for what has a `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


@made_as('ab.JsonLines("progress.jsonl")')
class JsonLines(_Closing):
    """One line of JSON per epoch, appended and flushed; `EpochProgress.from_json(json.loads(line))` reads it back."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Read too: a crash may have cut the last line short, and the next must not be glued to it.
            self._file = self.path.open("ab+")
            if self._file.tell() > 0:
                self._file.seek(-1, 2)
                if self._file.read(1) != b"\n":
                    self._file.write(b"\n")
        except OSError as error:
            raise ListenerError(
                f"cannot append to {str(self.path)!r} ({error.strerror}), so no progress would be recorded",
                hint="name a file in a folder that this process may write to",
            ) from error

    def on_started(self, query: str, run: str) -> None:
        """Nothing to write: every line names its query and run."""

    def on_progress(self, progress: EpochProgress) -> None:
        with self._lock:
            self._file.write(progress.json.encode() + b"\n")
            self._file.flush()

    def on_terminated(self, query: str, error: str | None) -> None:
        """The file stays open: another query may share it."""

    def close(self) -> None:
        with self._lock:
            self._file.close()


@dataclass(frozen=True)
class Metric:
    """One Prometheus metric: its name, kind, help text and how it is read from a record of its scope."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: Callable[[Any], float | None]


def _watermark_seconds(operator: OperatorProgress) -> float | None:
    return None if operator.watermark is None else operator.watermark / 1e6


def _field(name: str) -> Callable[[Any], float | None]:
    def read(record: Any) -> float | None:
        value: float | None = getattr(record, name)
        return value

    return read


def _placed(name: str) -> Callable[[OperatorProgress], float | None]:
    """Of the last window whose keys a policy placed."""

    def read(operator: OperatorProgress) -> float | None:
        value: float | None = getattr(operator.partitions[-1], name) if operator.partitions else None
        return value

    return read


_EPOCH = (
    Metric("anabranch_epochs_total", "counter", "Epochs that were published.", lambda _: 1),
    Metric("anabranch_replayed_epochs_total", "counter", "Epochs run again after a crash.", _field("replayed")),
    Metric("anabranch_restored_groups_total", "counter", "Groups restored from the epoch store.", _field("restored")),
    Metric("anabranch_rows_total", "counter", "Rows read from the sources.", _field("rows")),
    Metric("anabranch_busy_seconds_total", "counter", "Seconds that epochs took.", _field("seconds")),
    Metric("anabranch_epoch", "gauge", "Number of the last epoch.", _field("epoch")),
    Metric(
        "anabranch_epoch_start_seconds", "gauge", "When the last epoch began, seconds since 1970.", _field("started")
    ),
    Metric("anabranch_epoch_seconds", "gauge", "Seconds that the last epoch took.", _field("seconds")),
    Metric("anabranch_trigger_seconds", "gauge", "Seconds between two triggers.", _field("trigger_seconds")),
    Metric("anabranch_input_rows_per_second", "gauge", "Rows per second that came in.", _field("input_rate")),
    Metric("anabranch_processed_rows_per_second", "gauge", "Rows per second processed.", _field("processed_rate")),
    Metric("anabranch_backlog_rows", "gauge", "Rows that wait at the sources.", _field("backlog")),
    Metric(
        "anabranch_event_latency_seconds", "gauge", "Newest event delivered to publishing.", _field("event_latency")
    ),
    Metric("anabranch_latency_seconds", "gauge", "Oldest row of the last epoch to publishing.", _field("latency")),
    Metric("anabranch_shed_rows_total", "counter", "Rows dropped under overload.", _field("shed")),
)
_OPERATOR = (
    Metric("anabranch_operator_rows_total", "counter", "Rows that the operator read.", _field("rows")),
    Metric("anabranch_operator_emitted_rows_total", "counter", "Rows that it delivered.", _field("emitted")),
    Metric("anabranch_operator_late_rows_total", "counter", "Rows behind the watermark.", _field("late")),
    Metric("anabranch_operator_bad_rows_total", "counter", "Rows that the query cannot take.", _field("bad")),
    Metric("anabranch_operator_ahead_rows_total", "counter", "Rows too far ahead of the clock.", _field("ahead")),
    Metric("anabranch_operator_shed_rows_total", "counter", "Rows dropped right before it.", _field("shed")),
    Metric("anabranch_operator_seconds_total", "counter", "Seconds that the operator took.", _field("seconds")),
    Metric("anabranch_operator_publish_seconds_total", "counter", "Seconds of its sinks.", _field("publish_seconds")),
    Metric("anabranch_operator_watermark_seconds", "gauge", "Watermark, seconds since 1970.", _watermark_seconds),
    Metric("anabranch_operator_state_bytes", "gauge", "Bytes of state.", _field("state_bytes")),
    Metric(
        "anabranch_operator_imbalance_ratio", "gauge", "Fullest worker above the mean, over it.", _field("imbalance")
    ),
    Metric("anabranch_operator_split_efficiency_ratio", "gauge", "Paper 5, equation (7).", _field("efficiency")),
    Metric("anabranch_operator_window_keys", "gauge", "Keys of the last window that was placed.", _placed("keys")),
    Metric("anabranch_operator_tuple_imbalance", "gauge", "Paper 3, equation (1).", _placed("tuple_imbalance")),
    Metric(
        "anabranch_operator_cardinality_imbalance", "gauge", "Paper 3, equation (6).", _placed("cardinality_imbalance")
    ),
    Metric("anabranch_operator_hybrid_imbalance", "gauge", "Paper 3, equation (10).", _placed("hybrid_imbalance")),
    Metric("anabranch_operator_aggregation_cost", "gauge", "Paper 3, equation (4).", _placed("aggregation_cost")),
)
_DROP = (
    Metric("anabranch_drop_rows_total", "counter", "Rows that came to a drop point.", _field("rows")),
    Metric("anabranch_drop_kept_rows_total", "counter", "Rows that passed it.", _field("kept")),
    Metric("anabranch_drop_shed_rows_total", "counter", "Rows dropped there.", _field("shed")),
    Metric("anabranch_drop_windows_total", "counter", "Windows that were over.", _field("windows")),
    Metric("anabranch_drop_dropped_windows_total", "counter", "Of these, not delivered.", _field("dropped")),
    Metric("anabranch_drop_share", "gauge", "The share p of windows to drop.", _field("p")),
    Metric("anabranch_drop_delivered_ratio", "gauge", "Windows delivered, of all so far.", _field("delivered_share")),
)
_WORKER = (
    Metric("anabranch_worker_rows_total", "counter", "Rows given to the worker, copies included.", _field("rows")),
    Metric("anabranch_worker_busy_seconds_total", "counter", "Busy seconds.", _field("seconds")),
    Metric("anabranch_worker_read_seconds_total", "counter", "Seconds unpacking blocks.", _field("read_seconds")),
    Metric("anabranch_worker_merge_seconds_total", "counter", "Seconds merging by time.", _field("merge_seconds")),
    Metric("anabranch_worker_query_seconds_total", "counter", "Seconds in the operator.", _field("query_seconds")),
    Metric("anabranch_worker_rebuilt_groups_total", "counter", "Groups restored from the store.", _field("rebuilt")),
    Metric("anabranch_worker_groups", "gauge", "Partition-groups held.", _field("groups")),
    Metric("anabranch_worker_buffered_rows", "gauge", "Rows handed over, not yet processed.", _field("buffered")),
    Metric(
        "anabranch_worker_buffer_occupancy_ratio", "gauge", "Share of rows not joined in time.", _field("occupancy")
    ),
    Metric("anabranch_worker_state_bytes", "gauge", "Bytes of state.", _field("state_bytes")),
)
_SPLITTER = (
    Metric("anabranch_splitter_rows_total", "counter", "Rows that the splitter read.", _field("rows")),
    Metric("anabranch_splitter_windows_total", "counter", "Physical windows, blocks of rows.", _field("windows")),
    Metric("anabranch_splitter_in_bytes_total", "counter", "Bytes read.", _field("bytes_in")),
    Metric("anabranch_splitter_out_bytes_total", "counter", "Bytes handed on, copies included.", _field("bytes_out")),
    Metric("anabranch_splitter_routed_rows_total", "counter", "Rows for one substream.", _field("routed")),
    Metric("anabranch_splitter_broadcast_rows_total", "counter", "Rows for all substreams.", _field("broadcast")),
    Metric("anabranch_splitter_omitted_rows_total", "counter", "Rows for no substream.", _field("omitted")),
    Metric("anabranch_splitter_read_seconds_total", "counter", "Seconds unpacking blocks.", _field("read_seconds")),
    Metric("anabranch_splitter_split_seconds_total", "counter", "Seconds parting rows.", _field("split_seconds")),
    Metric("anabranch_splitter_emit_seconds_total", "counter", "Seconds packing blocks.", _field("emit_seconds")),
)
_RUNNING = Metric("anabranch_query_running", "gauge", "1 while the query runs, else 0.", lambda _: None)
_FAILURES = Metric("anabranch_query_failures_total", "counter", "Ends of the query by an error.", lambda _: None)
_SETTING = Metric("anabranch_operator_setting", "gauge", "Numeric settings that controllers chose.", lambda _: None)

METRICS: tuple[Metric, ...] = (_RUNNING, _FAILURES, *_EPOCH, *_OPERATOR, _SETTING, *_WORKER, *_SPLITTER, *_DROP)
"""All that the endpoint can show, in its order."""

_Labels = tuple[tuple[str, str], ...]

LOOPBACK = "127.0.0.1"


@made_as("ab.Prometheus(port=9464)")
class Prometheus(_Closing):
    """A listener that serves the metrics as text at `url`, and the health of its queries at `health_url`.

    On the loopback interface only, unless another `host` is given. Port 0 takes a free one. The server is a daemon
    thread, so it does not keep a finished program alive.
    """

    def __init__(self, port: int = 0, *, host: str = LOOPBACK) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise InvalidArgumentError(
                f"port {port!r} is not a port number, so nothing could connect to it",
                hint="take a number from 1 to 65535, or 0 for any free port",
            )
        self._lock = threading.Lock()
        # Per metric its samples by label set. Counters stay, gauges are replaced with each epoch of their query.
        self._counters: dict[str, dict[_Labels, float]] = {}
        self._gauges: dict[str, dict[str, dict[_Labels, float]]] = {}
        self._running: dict[str, bool] = {}
        self._names: dict[str, str | None] = {}
        self._health: dict[str, Callable[[], Health]] = {}
        self._host = host
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self.text, self.health))
        except OSError as error:
            raise ListenerError(
                f"cannot listen on port {port} of {host} ({error.strerror}), so nobody could read the metrics",
                hint="take another port, or 0 for any free one",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="anabranch-prometheus", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}/metrics"

    @property
    def health_url(self) -> str:
        return f"http://{self._host}:{self.port}/health"

    def attach(self, query: Watched) -> None:
        with self._lock:
            self._names[query.id] = query.name
            self._health[query.id] = lambda: query.health

    def on_started(self, query: str, run: str) -> None:
        with self._lock:
            self._running[query] = True
            # A series that exists before the first failure has a rate.
            self._count(_FAILURES, _query_labels(query, self._names.get(query)), 0)

    def on_progress(self, progress: EpochProgress) -> None:
        with self._lock:
            self._running[progress.query] = True
            self._names[progress.query] = progress.name
            gauges: dict[str, dict[_Labels, float]] = {}
            for metric, labels, value in _samples(progress):
                if metric.kind == "counter":
                    self._count(metric, labels, value)
                else:
                    gauges.setdefault(metric.name, {})[labels] = value
            self._gauges[progress.query] = gauges

    def on_terminated(self, query: str, error: str | None) -> None:
        with self._lock:
            self._running[query] = False
            self._gauges.pop(query, None)
            self._count(_FAILURES, _query_labels(query, self._names.get(query)), 0 if error is None else 1)
            ask = self._health.get(query)
        if ask is not None:
            last = ask()
            with self._lock:
                self._health[query] = lambda: last  # the query itself need not be kept for it

    def text(self) -> str:
        """The exposition, format 0.0.4: metrics in the order of `METRICS`, samples in the order they first came."""
        with self._lock:
            lines = [line for metric in METRICS for line in self._lines(metric)]
        return "\n".join(lines) + "\n" if lines else ""

    def health(self) -> tuple[HTTPStatus, str]:
        """The answer of the health path: 200, or 503 where a query is stalled or has failed; and JSON."""
        with self._lock:
            known = [(query, self._names.get(query), ask) for query, ask in self._health.items()]
        status, body = report((query, name, ask()) for query, name, ask in known)
        return status, json.dumps(body) + "\n"

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _count(self, metric: Metric, labels: _Labels, value: float) -> None:
        series = self._counters.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + value

    def _lines(self, metric: Metric) -> Iterator[str]:
        samples: dict[_Labels, float]
        if metric is _RUNNING:
            samples = {_query_labels(query, self._names.get(query)): float(on) for query, on in self._running.items()}
        elif metric.kind == "counter":
            samples = self._counters.get(metric.name, {})
        else:
            samples = {k: v for gauges in self._gauges.values() for k, v in gauges.get(metric.name, {}).items()}
        if samples:
            yield f"# HELP {metric.name} {_escaped_help(metric.help)}"
            yield f"# TYPE {metric.name} {metric.kind}"
        for labels, value in samples.items():
            named = ",".join(f'{name}="{_escaped_label(text)}"' for name, text in labels)
            yield f"{metric.name}{{{named}}} {_number(value)}"


def _query_labels(query: str, name: str | None) -> _Labels:
    return (("query", query),) if name is None else (("query", query), ("query_name", name))


def _samples(progress: EpochProgress) -> Iterator[tuple[Metric, _Labels, float]]:
    """What one epoch adds, values that are None left out."""
    query = _query_labels(progress.query, progress.name)
    yield from _read(_EPOCH, progress, query)
    for operator in progress.operators:
        labels: _Labels = (*query, ("operator", operator.name))
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


def _read(metrics: Iterable[Metric], record: object, labels: _Labels) -> Iterator[tuple[Metric, _Labels, float]]:
    for metric in metrics:
        value = metric.value(record)
        if value is not None:
            yield metric, labels, value


def _escaped_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number.is_integer() else repr(number)


def _handler(text: Callable[[], str], health: Callable[[], tuple[HTTPStatus, str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            match self.path.split("?")[0]:
                case "/" | "/metrics":
                    status, body, kind = HTTPStatus.OK, text(), "text/plain; version=0.0.4; charset=utf-8"
                case "/health":
                    status, body = health()
                    kind = "application/json"
                case _:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            LOG.debug(format, *args)  # the default writes each scrape to stderr

    return Handler
