"""The results of one epoch: the operators stage them, and the sinks publish them when all operators have run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from anabranch.errors import AnabranchError, OperatorError
from anabranch.io.folder import Folder
from anabranch.io.frames import read_files
from anabranch.io.parquet import Target, Written
from anabranch.io.sinks.base import Published, Sink
from anabranch.query.graph import Step
from anabranch.query.nodes import Node
from anabranch.query.origins import Output
from anabranch.store.checkpoint import Checkpoint


class Publisher:
    """Holds the results of an epoch until they are published."""

    def __init__(self, epoch: int, checkpoint: Checkpoint, session: SparkSession) -> None:
        self._epoch = epoch
        self._checkpoint = checkpoint
        self._session = session
        self._staged: dict[tuple[int, str], Published] = {}

    def targets(self, step: Step, schemas: Mapping[str, pa.Schema]) -> dict[str, Target]:
        """Where an operator writes its outputs: empty folders."""
        return {name: self._target(step, name, schemas[name]) for name in step.node.outputs}

    def _target(self, step: Step, name: str, schema: pa.Schema) -> Target:
        sink = step.sinks.get(name)
        default = self._flow(step, name)
        folder = default if sink is None else sink.staging(self._epoch, default)
        folder.remove()  # what a crashed attempt left
        folder.create()
        kept = sink is None or sink.keeps or name in step.feeds
        return Target(folder, schema, kept)

    def stage(self, step: Step, name: str, target: Target, written: Sequence[Written]) -> None:
        """Record that an operator has written an output."""
        files = tuple(sorted(file for each in written for file in each.files))
        rows = sum(each.rows for each in written)
        self._staged[id(step.node), name] = Published(
            self._epoch, self._checkpoint.query, target.folder, files, target.schema, self._session, rows
        )

    def staged(self, node: Node, name: str) -> Published:
        """What an operator wrote to an output."""
        return self._staged[id(node), name]

    def frame(self, origin: Output) -> DataFrame:
        """An output as a DataFrame, for operators that read it."""
        staged = self.staged(origin.node, origin.name)
        return read_files(self._session, staged.folder, staged.files, staged.schema)

    def publish(self, step: Step) -> float:
        """Give an operator's outputs to its sinks. Returns the seconds that this took."""
        began = time.perf_counter()
        for name, sink in step.sinks.items():
            self._publish(step, name, sink)
        return time.perf_counter() - began

    def _publish(self, step: Step, name: str, sink: Sink) -> None:
        try:
            sink.publish(self.staged(step.node, name))
        except AnabranchError:
            raise
        except Exception as error:  # a sink is the user's code, and may raise anything
            cause = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise OperatorError(
                f"the {type(sink).__name__} of {step.name} failed to publish epoch {self._epoch}: {cause}",
                hint="fix the cause and start again from the same checkpoint: the sink then gets the whole epoch",
            ) from error

    def close(self, steps: Sequence[Step]) -> None:
        """Remove files that only this epoch needed."""
        for step in steps:
            for name in step.node.outputs:
                self._flow(step, name).remove()

    def _flow(self, step: Step, name: str) -> Folder:
        return self._checkpoint.flow.sub(f"{step.name}.{name}", f"epoch={self._epoch}")
