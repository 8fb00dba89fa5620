"""`start`: run a query network in the epoch runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyarrow.fs import FileSystem

from anabranch.errors import InvalidArgumentError
from anabranch.io.sinks import Sink
from anabranch.runtime.deliveries import Delivery
from anabranch.runtime.epochs import EpochRunner
from anabranch.runtime.explain_drops import explain_drops
from anabranch.runtime.exporters import Listener
from anabranch.runtime.files import Folder
from anabranch.runtime.ledger import open_checkpoint
from anabranch.runtime.plan import arrange
from anabranch.runtime.query import EpochQuery
from anabranch.runtime.settings import AVAILABLE_NOW, QoS, Settings, byte_count, most_memory
from anabranch.runtime.shedding import shedder_of
from anabranch.runtime.standing import Checkpoint
from anabranch.windows import Duration, micros

SNAPSHOT_EVERY = 10


def start(
    *deliveries: Delivery,
    checkpoint: str | Path,
    trigger: str | None = None,
    qos: QoS | None = None,
    workers: int | None = None,
    snapshot_every: int = SNAPSHOT_EVERY,
    idle: Duration | None = None,
    listeners: Sequence[Listener] = (),
    name: str | None = None,
    store: str | Path | tuple[FileSystem, str] | None = None,
    live: str | Path | None = None,
    memory_limit: int | str | None = None,
    report: Sink | None = None,
) -> EpochQuery:
    """Run a query network, and return the handle of the running query.

        query = ab.start(busy.to(ab.FileSink("busy/")), alerts.to(ab.FileSink("alerts/")), checkpoint="ckpt/")

    Args:
        deliveries: which results go where; made by `.to(sink)`.
        checkpoint: folder for offsets, decisions and state. A restart with the same folder goes on where the query
            stood; another query is refused.
        trigger: an interval ("1 second"), or "available-now" for what is there and then end; without one, epoch follows
            epoch.
        qos: bounds that the controllers keep.
        workers: partitions of the exchange; the session's shuffle partitions unless said.
        snapshot_every: epochs between two snapshots of a group; in between only its input is logged.
        idle: after so long without a row a source no longer holds the watermark back. Without it, it does for ever.
        listeners: hear of every epoch (`JsonLines`, `Prometheus`, or your own).
        name: of the query, in Spark's own status too.
        store: where decisions and state go, if not into the checkpoint folder: any path or URI that pyarrow can open,
            or a pyarrow file system and a path in it.
        live: local folder for the live state; a temporary one, the same for all runs of this checkpoint, unless given.
        memory_limit: how much live state a worker may hold, in bytes or as text ("4 GB"), before the query ends with an
            error that says what to do. Unless given: three quarters of the machine's memory, shared by all workers of a
            local session; on a cluster nobody knows how many workers a machine has.
        report: takes a row for every range of windows that was dropped, with the reason; where `qos` allows that. They
            are kept in the checkpoint folder (`side/drops`) anyway.
    """
    for each in deliveries:
        if not isinstance(each, Delivery):
            raise InvalidArgumentError(
                f"{each!r} is not a result with a sink", hint="write ab.start(query.to(sink), checkpoint=...)"
            )
    if not deliveries:
        raise InvalidArgumentError("start() with nothing to deliver", hint="write ab.start(query.to(sink), ...)")
    if not isinstance(snapshot_every, int) or snapshot_every < 1:
        raise InvalidArgumentError(f"snapshot_every={snapshot_every!r}", hint="a number of epochs, at least 1")
    network = arrange(deliveries)
    session = network.sources[0].frame.sparkSession
    described = network.describe()
    own = Folder.at(store if store is not None else checkpoint)
    unique = open_checkpoint(own, network.fingerprint, described)
    if workers is None:
        workers = int(session.conf.get("spark.sql.shuffle.partitions") or 2)
    if workers < 1:
        raise InvalidArgumentError(f"workers={workers!r}", hint="at least 1")
    folder = Path(live) if live is not None else Path(tempfile.gettempdir(), "anabranch-live")
    settings = Settings(
        qos or QoS(),
        trigger,
        workers,
        snapshot_every,
        None if idle is None else micros(idle, "idle") / 1e6,
        str(folder / unique),
        most_memory(session, workers) if memory_limit is None else byte_count(memory_limit, "memory_limit"),
        report,
    )
    runner = EpochRunner(network, settings, Checkpoint(own, unique), session)
    query = EpochQuery(runner, name, listeners)
    writer = runner.frame.writeStream.foreachBatch(query._epoch)
    writer = writer.option("checkpointLocation", _spark_folder(checkpoint))
    if name is not None:
        writer = writer.queryName(name)
    if trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif trigger is not None:
        writer = writer.trigger(processingTime=f"{micros(trigger, 'trigger') // 1000} milliseconds")
    query._started(writer.start())
    return query


def drop_plan(*deliveries: Delivery, qos: QoS, trigger: str | None = None) -> str:
    """Where `start` with this QoS could drop windows, how, and why not elsewhere; nothing runs."""
    network = arrange(deliveries)
    settings = Settings(qos, trigger, 1, SNAPSHOT_EVERY, None, "")
    return "\n".join(explain_drops(shedder_of(network, settings), qos))


def _spark_folder(checkpoint: str | Path) -> str:
    text = str(checkpoint)
    return f"{text.rstrip('/')}/spark" if "://" in text else str(Path(text).absolute() / "spark")
