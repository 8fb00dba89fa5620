"""How many workers a query gets: as many as the cluster runs tasks at once, whatever the shuffle partitions are."""

from __future__ import annotations

import os

import pytest

from anabranch.query.settings import QoS
from anabranch.runtime.driver.settings import Settings
from anabranch.spark.slots import configured_slots

EXECUTORS = {"spark.executor.instances": "4", "spark.executor.cores": "3"}


@pytest.mark.parametrize(
    ("conf", "slots"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[2]"}, 2),
        ({"spark.master": "local[2,8]"}, 2),
        ({"spark.master": "local[6]", "spark.task.cpus": "2"}, 3),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "local-cluster[2, 3, 1024]"}, 6),
        ({"spark.master": "spark://host:7077", **EXECUTORS}, 12),
        ({"spark.master": "yarn", **EXECUTORS, "spark.task.cpus": "2"}, 6),
        ({"spark.master": "yarn", **EXECUTORS, "spark.dynamicAllocation.enabled": "true"}, None),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.sql.shuffle.partitions": "200"}, None),
        ({}, None),
    ],
)
def test_what_settings_tell(conf: dict[str, str], slots: int | None) -> None:
    assert configured_slots(conf.get) == slots


def settings(workers: int | None, slots: int) -> Settings:
    return Settings(QoS(), None, workers, 10, None, "", slots=slots)


def test_on_a_stock_session_groups_can_still_be_moved() -> None:
    """60 groups of a join: with 200 shuffle partitions they were on 60 workers, one each, and none could move."""
    assert settings(None, slots=8).workers_of(60, moving=True) == 8
    assert settings(None, slots=100).workers_of(60, moving=True) == 15  # four groups each
    assert settings(None, slots=8).workers_of(3, moving=True) == 1


def test_groups_that_never_move_use_all_slots() -> None:
    assert settings(None, slots=8).workers_of(16) == 8
    assert settings(None, slots=100).workers_of(16) == 16
    assert settings(None, slots=8).workers_of(1) == 1


def test_workers_as_asked() -> None:
    asked = settings(3, slots=8)
    assert asked.most_workers == 3
    assert asked.workers_of(16) == asked.workers_of(4, moving=True) == 3
    assert asked.workers_of(2, moving=True) == 2
