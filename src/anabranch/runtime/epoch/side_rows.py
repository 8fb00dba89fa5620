"""Rows that a query cannot use: late, without a time, or too far ahead. Each is kept, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from anabranch.io.folder import Folder
from anabranch.io.frames import unpacked
from anabranch.io.parquet import Target
from anabranch.query.graph import Step
from anabranch.query.origins import Source
from anabranch.runtime.epoch.census import SourceCensus
from anabranch.runtime.epoch.inputs import EpochInputs
from anabranch.runtime.tasks.reports import run_job
from anabranch.runtime.tasks.stages import Feed, side_job
from anabranch.spark.arrow import arrow_schema
from anabranch.spark.columns import floordiv
from anabranch.split.report import SplitterReport
from anabranch.text import moment
from anabranch.windows.ids import pane_of

REASON = "reason"


class SideRows:
    """The side output of one epoch."""

    def __init__(self, epoch: int, folder: Folder, inputs: EpochInputs, census: SourceCensus) -> None:
        self._epoch = epoch
        self._folder = folder
        self._inputs = inputs
        self._census = census

    def keep(self, step: Step, splitters: Sequence[SplitterReport]) -> int:
        """Keep the rows that an operator could not use. Returns how many were too far ahead.

        Such rows are rare, so they get a separate job.
        """
        too_far = 0
        for number, input_ in enumerate(step.node.inputs):
            if not any(splitter.late + splitter.bad for splitter in splitters if splitter.edge == number):
                continue
            feed = self._inputs.feed(step, number)
            rows = feed.rows if feed.packed is None else unpacked(feed.rows, feed.packed)
            ahead = None if feed.limit is None else f"ahead: the latest time allowed was {moment(feed.limit)}"
            outside = rows.withColumn(REASON, self._reason(step, number, feed, ahead))
            outside = outside.where(F.col(REASON).isNotNull())
            # Written straight to the final folder: an epoch that runs again writes the same files again.
            folder = self._folder.sub(f"{step.name}-{number}", f"epoch={self._epoch}")
            folder.create()
            kept = run_job(side_job(outside, REASON, Target(folder, arrow_schema(outside.schema)))).reasons
            if ahead is not None and isinstance(input_.branch.origin, Source):
                found = kept.get(ahead, 0)
                too_far += found
                self._census.add_ahead(input_.branch.origin, found)
        return too_far

    def _reason(self, step: Step, number: int, feed: Feed, ahead: str | None) -> Column:
        """Why a row cannot be used; null for one that can."""
        time, query = step.node.inputs[number].time, step.node.aggregate
        t = time.micros()
        reason = F.when(t.isNull(), time.unusable)
        if feed.limit is not None:
            reason = reason.when(t > feed.limit, F.lit(ahead))
        if feed.watermark is not None:
            end = t + 1
            if query is not None:
                panes = query.panes
                end = (pane_of(t, panes.size, panes.origin, floordiv) + 1) * panes.size + panes.origin
            reason = reason.when(end <= feed.watermark, F.lit(f"late: the watermark was at {moment(feed.watermark)}"))
        return reason

    def remove(self) -> None:
        """Remove the rows of this epoch, which runs again and can use some of them."""
        for name in self._folder.folders():
            self._folder.sub(name, f"epoch={self._epoch}").remove()
