"""Whether a policy places the keys of a query, which one, and why; `plan.partitioned` builds the plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import functions as F

from anabranch.errors import InvalidArgumentError
from anabranch.keys.census import HEAVY_KEYS, MOST_WINDOWS
from anabranch.keys.hashing import key_hash
from anabranch.keys.partitioner import HeavyKeys
from anabranch.keys.policy import Partitioning
from anabranch.keys.selection import WindowKeys, select
from anabranch.names import HASH, OWN_WINDOW
from anabranch.plan.prices import Statistics
from anabranch.query.strategy import Strategy
from anabranch.query.windowed import Query
from anabranch.spark.columns import floordiv, quoted
from anabranch.windows.ids import Stretch, pane_of


@dataclass(frozen=True)
class Placement:
    """How the keys of a query are placed. `in_python`: workers evaluate in Python, over blocks."""

    partitioning: Partitioning
    workers: int
    splitters: int | None
    in_python: bool
    why: str
    heavy: HeavyKeys = field(default_factory=HeavyKeys)

    def whole(self, query: Query) -> bool:
        """Whether every key's panes of a window are on one worker.

        AM and cAM keep a key on its worker for one stretch; windows that overlap can extend beyond it.
        """
        if not self.partitioning.keeps_keys_whole(self.splitters):
            return False
        aligned = len(query.panes.windows) == 1 and query.panes.windows[0].tumbling
        # Spark may add an exchange before it groups, and then the panes of a key are in several places.
        return aligned or (self.in_python and self.partitioning.policy in ("fld", "heavy"))

    def describe(self, query: Query) -> str:
        where = "evaluated in Python, over blocks" if self.in_python else "evaluated by Spark"
        then = "keys stay whole, nothing to combine" if self.whole(query) else "partial results are combined by key"
        return f"{self.partitioning.label} over {self.workers} workers, {where}; {then}: {self.why}"


def not_placed(query: Query) -> str | None:
    """Why `auto` chooses no policy for a query and leaves the keys to Spark; None if it chooses one."""
    reason = query.unplaceable
    if reason is not None:
        return reason
    if not query.python:
        return "its aggregates are Spark's, which combines before the exchange: a task sends a row per key and pane"
    if query.python_states is None:
        return "not every aggregate has a state that can be sent (user_aggregate(..., state=...))"
    return None


def placement(query: Query, statistics: Statistics, strategy: Strategy | None = None) -> Placement | None:
    """How the keys of a bounded DataFrame are placed; None if Spark does it. `strategy`: what the user asked for."""
    asked = query.partition
    partitioning, why, workers = asked.partitioning, "as requested", workers_of(query)
    if partitioning is None:
        if not_placed(query) is not None or (strategy is not None and strategy.kind != "pane"):
            return None
        selected = select(statistics.keys, splitters=asked.splitters)
        partitioning, why = selected.partitioning, selected.why
    else:
        check_placeable(query)
        if strategy is not None and strategy.kind != "pane":
            raise InvalidArgumentError(
                f"strategy {strategy.kind!r} cannot be combined with partition={partitioning.policy!r}, which "
                "evaluates keys pane by pane",
                hint="leave using(...) out, or partition=...",
            )
    heavy = statistics.heavy(workers)
    return Placement(partitioning, workers, asked.splitters, query.python_states is not None, why, heavy)


def check_used(query: Query) -> None:
    """Refuse workers and splitters for a query whose keys no policy places: they would have no effect."""
    asked = query.partition
    reason = not_placed(query)
    if asked.partitioning is None and (asked.workers or asked.splitters) and reason is not None:
        raise InvalidArgumentError(
            f"workers= and splitters= of by(...) have no effect, since no policy places the keys: {reason}",
            hint='leave them out, or give a policy: by(..., partition="cam", workers=8)',
        )


def check_placeable(query: Query) -> None:
    """Refuse an explicit policy for keys that cannot be placed: it would change the result, or have no effect."""
    reason = query.unplaceable
    if query.partition.partitioning is not None and reason is not None:
        raise InvalidArgumentError(
            f"partition={query.partition.partitioning.policy!r} cannot be used: {reason}",
            hint='leave partition at "auto", which leaves such keys to Spark',
        )


def needs_key_sample(query: Query) -> bool:
    """Whether a sample of the keys is useful: for the choice of a policy, or for the table of heavy keys."""
    asked = query.partition.partitioning
    return not_placed(query) is None if asked is None else asked.policy == "heavy"


def sampled_keys(query: Query, parts: int) -> tuple[WindowKeys | None, tuple[tuple[int, int], ...]]:
    """Keys and tuples per worker in at least one of `parts` windows of the partitioner, and the heaviest keys there.

    Runs a Spark job.
    """
    stretch = stretch_of(query)
    window = pane_of(query.time.micros(), stretch.size, stretch.origin, floordiv).alias(OWN_WINDOW)
    hashed = key_hash([quoted(key) for key in query.keys]).alias(HASH)
    rows = query.source.where(query.time.usable).select(window, hashed)
    some = rows.where(F.pmod(F.xxhash64(OWN_WINDOW), F.lit(parts)) == 0)
    key_counts = some.groupBy(OWN_WINDOW, HASH).count()
    windows = key_counts.groupBy(OWN_WINDOW).agg(F.count(F.lit(1)), F.sum("count")).limit(MOST_WINDOWS).collect()
    if not windows and parts > 1:  # there are few windows, and none is in the sample
        return sampled_keys(query, 1)
    heaviest = key_counts.groupBy(HASH).agg(F.sum("count").alias("n")).orderBy(F.desc("n"), HASH).limit(HEAVY_KEYS)
    workers = workers_of(query)
    window_keys = WindowKeys([row[1] for row in windows], [row[2] / workers for row in windows]) if windows else None
    return window_keys, tuple((row[0], row[1]) for row in heaviest.collect())


def workers_of(query: Query) -> int:
    """The number of workers: as given, or the session's shuffle partitions."""
    if query.partition.workers is not None:
        return query.partition.workers
    return int(query.source.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)


def stretch_of(query: Query) -> Stretch:
    """How long counts are kept: for one window; if there are several, the longest."""
    return Stretch(max(window.size for window in query.panes.windows), query.panes.origin)
