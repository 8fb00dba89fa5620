"""How many tasks a session runs at once, by its settings and by a small job."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from anabranch.spark import slots


def test_a_session_tells_its_slots(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    assert slots.slots_of(session) == 2
    monkeypatch.setattr(slots, "configured_slots", lambda conf: None)
    assert slots.slots_of(session) == 2
