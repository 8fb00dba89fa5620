"""The Prometheus endpoint: a listener that serves the metrics over HTTP, and the health of its queries.

The gauges of a worker or splitter that no longer exists disappear: a stale number that looks fresh is worse than none.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anabranch.calls import made_as
from anabranch.errors import InvalidArgumentError, ListenerError
from anabranch.observe.health import Health, report
from anabranch.observe.listeners import Closeable, Watched
from anabranch.observe.metrics import FAILURES, METRICS, RUNNING, Labels, Metric, query_labels, samples
from anabranch.observe.progress import EpochProgress

LOG = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


@made_as("ab.Prometheus(port=9464)")
class Prometheus(Closeable):
    """A listener that serves the metrics as text at `url`, and the health of its queries at `health_url`.

    It listens on the loopback interface only, unless another `host` is given. Port 0 takes a free port. The server is a
    daemon thread, so it does not keep a finished program alive.
    """

    def __init__(self, port: int = 0, *, host: str = LOOPBACK) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise InvalidArgumentError(
                f"port {port!r} is not a port number",
                hint="use a number from 1 to 65535, or 0 for any free port",
            )
        self._lock = threading.Lock()
        # The samples of each metric, by label set. Counters stay; gauges are replaced with each epoch of their query.
        self._counters: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, dict[str, dict[Labels, float]]] = {}
        self._running: dict[str, bool] = {}
        self._names: dict[str, str | None] = {}
        self._health: dict[str, Callable[[], Health]] = {}
        self._host = host
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self.text, self.health))
        except OSError as error:
            raise ListenerError(
                f"cannot listen on port {port} of {host} ({error.strerror}): the metrics could not be read",
                hint="use another port, or 0 for any free one",
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
            # Prometheus can compute a rate only if the series exists before the first failure.
            self._count(FAILURES, query_labels(query, self._names.get(query)), 0)

    def on_progress(self, progress: EpochProgress) -> None:
        with self._lock:
            self._running[progress.query] = True
            self._names[progress.query] = progress.name
            gauges: dict[str, dict[Labels, float]] = {}
            for metric, labels, value in samples(progress):
                if metric.kind == "counter":
                    self._count(metric, labels, value)
                else:
                    gauges.setdefault(metric.name, {})[labels] = value
            self._gauges[progress.query] = gauges

    def on_terminated(self, query: str, error: str | None) -> None:
        with self._lock:
            self._running[query] = False
            self._gauges.pop(query, None)
            self._count(FAILURES, query_labels(query, self._names.get(query)), 0 if error is None else 1)
            ask = self._health.get(query)
        if ask is not None:
            last = ask()
            with self._lock:
                self._health[query] = lambda: last  # do not keep the query itself

    def text(self) -> str:
        """The exposition, format 0.0.4: metrics in the order of `METRICS`, samples in order of appearance."""
        with self._lock:
            lines = [line for metric in METRICS for line in self._lines(metric)]
        return "\n".join(lines) + "\n" if lines else ""

    def health(self) -> tuple[HTTPStatus, str]:
        """The response of the health path: 200, or 503 if a query is stalled or has failed; and JSON."""
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

    def _count(self, metric: Metric, labels: Labels, value: float) -> None:
        series = self._counters.setdefault(metric.name, {})
        series[labels] = series.get(labels, 0) + value

    def _lines(self, metric: Metric) -> Iterator[str]:
        series: dict[Labels, float]
        if metric is RUNNING:
            series = {query_labels(query, self._names.get(query)): float(on) for query, on in self._running.items()}
        elif metric.kind == "counter":
            series = self._counters.get(metric.name, {})
        else:
            series = {k: v for gauges in self._gauges.values() for k, v in gauges.get(metric.name, {}).items()}
        if series:
            yield f"# HELP {metric.name} {_escaped_help(metric.help)}"
            yield f"# TYPE {metric.name} {metric.kind}"
        for labels, value in series.items():
            named = ",".join(f'{name}="{_escaped_label(text)}"' for name, text in labels)
            yield f"{metric.name}{{{named}}} {_number(value)}"


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
