"""The health of a query: idle is not stalled, stalled is not running, failed is not stopped."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from anabranch.observe.health import Health, Vitals, judge, report


@pytest.mark.parametrize(
    ("vitals", "state"),
    [
        (Vitals(), "starting"),
        (Vitals(idle=True), "idle"),
        (Vitals(epoch=3, usual=1.0, idle=True, busy=40.0), "idle"),
        (Vitals(epoch=3, usual=1.0), "running"),
        (Vitals(epoch=3, usual=1.0, running=59.0), "running"),  # a short epoch may take a minute
        (Vitals(epoch=3, usual=1.0, running=61.0), "stalled"),
        (Vitals(epoch=3, usual=30.0, running=299.0), "running"),
        (Vitals(epoch=3, usual=30.0, running=301.0), "stalled"),  # ten times as long as usual
        (Vitals(running=299.0), "running"),  # the first restores state
        (Vitals(running=301.0), "stalled"),
        (Vitals(epoch=3, usual=1.0, idle=True, busy=301.0), "stalled"),  # Spark asks a source that does not answer
        (Vitals(epoch=3, usual=1.0, ended=True), "stopped"),
        (Vitals(epoch=3, usual=1.0, ended=True, error="no space left"), "failed"),
    ],
)
def test_states(vitals: Vitals, state: str) -> None:
    found = judge(vitals)
    assert found.state == state
    assert found.epoch == vitals.epoch
    assert found.ok == (state not in ("stalled", "failed"))


def test_the_reason_says_what_spark_does() -> None:
    stuck = Vitals(epoch=1, usual=1.0, busy=400.0, busy_with="Getting offsets from KafkaV2[topic]")
    assert judge(stuck).why == "no epoch for 400 s; Spark is busy with: Getting offsets from KafkaV2[topic]"
    assert judge(Vitals(ended=True, error="the disk is full")).why == "the disk is full"


def test_the_worst_query_decides_the_answer() -> None:
    idle, failed = Health("idle", "no rows wait", 4), Health("failed", "the disk is full", 2)
    assert report([]) == (HTTPStatus.OK, {"status": "starting", "queries": []})
    assert report([("a", None, idle)])[0] == HTTPStatus.OK
    status, body = report([("a", None, idle), ("b", "busy", failed)])
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    assert body["status"] == "failed"
    assert body["queries"][1] == {
        "query": "b", "name": "busy", "state": "failed", "why": "the disk is full", "epoch": 2,
    }  # fmt: skip
