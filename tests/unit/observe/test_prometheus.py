"""The Prometheus endpoint: its text, its health path, and its table of metrics."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.errors import InvalidArgumentError, ListenerError
from anabranch.observe.health import Health, State
from anabranch.observe.listeners import Listener
from anabranch.observe.metrics import METRICS
from anabranch.observe.progress import EpochProgress, OperatorProgress, SplitterMeasure, WorkerMeasure
from anabranch.observe.prometheus import Prometheus

SAMPLE = re.compile(r'[a-z_]+\{([a-z_]+="([^"\\\n]|\\[\\"n])*",?)*\} (\d+(\.\d+)?(e[+-]?\d+)?)')


def epoch(number: int, workers: int = 2, query: str = "q") -> EpochProgress:
    measured = tuple(WorkerMeasure(i, 10, 0.25, groups=3) for i in range(workers))
    operator = OperatorProgress(
        "a", 20, workers=measured, splitters=(SplitterMeasure(0, 20, 1),), decisions={"batch": 4, "why:batch": "x"}
    )
    return EpochProgress(query, "r", number, 0.0, 0.5, rows=20, operators=(operator,))


def test_prometheus_endpoint() -> None:
    with Prometheus() as exporter:
        assert isinstance(exporter, Listener)
        exporter.on_started("q", "r")
        exporter.on_progress(epoch(1, workers=2))
        exporter.on_progress(epoch(2, workers=1))
        with urllib.request.urlopen(exporter.url, timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(exporter.url + "/nothing", timeout=5)
        with pytest.raises(ListenerError):
            Prometheus(exporter.port)
    lines = text.splitlines()
    assert 'anabranch_rows_total{query="q"} 40' in lines
    assert 'anabranch_worker_busy_seconds_total{query="q",operator="a",worker="1"} 0.25' in lines
    assert 'anabranch_worker_groups{query="q",operator="a",worker="0"} 3' in lines
    assert not any(line.startswith("anabranch_worker_groups") and 'worker="1"' in line for line in lines)  # it is gone
    assert 'anabranch_operator_setting{query="q",operator="a",setting="batch"} 4' in lines
    assert "anabranch_backlog_rows" not in text  # unknown is not 0
    for line in lines:
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line
    declared = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))


def test_prometheus_after_the_end() -> None:
    with Prometheus() as exporter:
        exporter.on_progress(epoch(1))
        exporter.on_terminated("q", "it broke")
        assert 'anabranch_query_running{query="q"} 0' in exporter.text()
        assert 'anabranch_query_failures_total{query="q"} 1' in exporter.text()
        assert "anabranch_epoch_seconds" not in exporter.text()
        exporter.close()


def test_the_name_of_the_query_is_a_label_from_the_start() -> None:
    with Prometheus() as exporter:
        exporter.attach(Query("idle"))
        exporter.on_started("q", "r")
        exporter.on_progress(replace(epoch(1), name="busy roads"))
        text = exporter.text()
    assert 'anabranch_query_running{query="q",query_name="busy roads"} 1' in text
    assert 'anabranch_worker_groups{query="q",query_name="busy roads",operator="a",worker="0"} 3' in text
    assert '{query="q"}' not in text  # no second set of series


def test_the_health_path_answers_for_an_orchestrator() -> None:
    with Prometheus() as exporter:
        query = Query("idle")
        exporter.attach(query)
        with urllib.request.urlopen(exporter.health_url, timeout=5) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert json.load(answer)["queries"][0]["state"] == "idle"
        query.state = "stalled"
        with pytest.raises(urllib.error.HTTPError) as unwell:
            urllib.request.urlopen(exporter.health_url, timeout=5)
        assert unwell.value.code == 503
        assert json.loads(unwell.value.read())["status"] == "stalled"
        unwell.value.close()
        query.state = "failed"
        exporter.on_terminated("q", "it broke")
        query.state = "idle"  # the end stays: the query itself is not asked any more
        assert exporter.health()[0] == 503


class Query:
    """What a listener sees of a query."""

    id, name = "q", "busy roads"

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def health(self) -> Health:
        return Health(self.state, "because")


def test_labels_are_escaped() -> None:
    with Prometheus() as exporter:
        exporter.on_started('a"b\\c\nd', "r")
        assert 'anabranch_query_running{query="a\\"b\\\\c\\nd"} 1' in exporter.text()


@pytest.mark.parametrize("port", [-1, 70_000, True])
def test_ports_that_cannot_be(port: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Prometheus(port)


def test_names_are_prometheus_names_and_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert f"| `{metric.name}` | {metric.kind} | {metric.help} |" in page
