"""`start`: run a query network in the epoch runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyarrow.fs import FileSystem

from anabranch.calls import called_as
from anabranch.control.base import Controller
from anabranch.errors import InvalidArgumentError, StreamingError
from anabranch.io.folder import Folder
from anabranch.io.sinks import FileSink, Sink
from anabranch.observe.listeners import Listener
from anabranch.query.deliveries import Delivery
from anabranch.query.graph import Network, arrange
from anabranch.query.options import check_options
from anabranch.query.settings import QoS, byte_count
from anabranch.query.triggers import Trigger, trigger_of
from anabranch.runtime.driver.ahead import AUTO, MaxAhead
from anabranch.runtime.driver.settings import Settings, most_memory
from anabranch.runtime.handle import EpochQuery
from anabranch.runtime.new_folders import NewFolders, local_path
from anabranch.runtime.runner import EpochRunner
from anabranch.runtime.shedding.explain import explain_drops
from anabranch.runtime.shedding.planner import planner_of
from anabranch.spark.quirks import disk_errors_translated
from anabranch.spark.slots import slots_of
from anabranch.spark.worker_python import check_workers, is_remote
from anabranch.store.checkpoint import Checkpoint
from anabranch.store.checkpoint_lock import CheckpointLock
from anabranch.store.ledger import open_checkpoint
from anabranch.store.live.own_folder import OwnFolder
from anabranch.windows import Duration, micros

SNAPSHOT_EVERY = 10


@called_as('ab.start(query.to(ab.FileSink("results/")), checkpoint="checkpoint/")')
def start(
    *deliveries: Delivery,
    checkpoint: str | Path,
    trigger: Trigger | None = None,
    qos: QoS | None = None,
    workers: int | None = None,
    snapshot_every: int = SNAPSHOT_EVERY,
    idle: Duration | None = None,
    listeners: Sequence[Listener] = (),
    controllers: Sequence[Controller] = (),
    name: str | None = None,
    store: str | Path | tuple[FileSystem, str] | None = None,
    live: str | Path | None = None,
    memory_limit: int | str | None = None,
    report: Sink | None = None,
    max_ahead: Duration | None = AUTO,
) -> EpochQuery:
    """Run a query network and return a handle to the running query.

        query = ab.start(busy.to(ab.FileSink("busy/")), alerts.to(ab.FileSink("alerts/")), checkpoint="ckpt/")

    Args:
        deliveries: which results go to which sink; each made by `query.to(sink)`.
        checkpoint: the folder for offsets, decisions and state. A restart with the same folder resumes the query;
            a different query is refused.
        trigger: an interval ("1 second", or a timedelta), or "available-now" to process what is there and end. By
            default the next epoch starts when the last one ends.
        qos: the bounds that the controllers keep.
        workers: how many tasks each operator runs in. By default as many as the cluster runs at once.
        snapshot_every: how many epochs lie between two snapshots of a group. In between, only its input is logged.
        idle: how long a source may have no rows before it stops holding the watermark back. By default an idle source
            holds the watermark back indefinitely.
        listeners: objects that are called after every epoch: `JsonLines`, `Prometheus`, or your own.
        controllers: controllers of your own (see `anabranch.controllers`). One that owns a setting replaces the
            built-in controller of that setting.
        name: the query's name, also in Spark's own status.
        store: where decisions and state go, if not into the checkpoint folder: any path or URI that pyarrow can open,
            or a pyarrow file system and a path in it.
        live: a local folder for live state on the workers' machines. By default a folder of this user's own in the
            system's temporary folder.
        memory_limit: how much live state a worker may hold, in bytes or as text ("4 GB"), before the query ends with
            an error. By default three quarters of the machine's memory; a local session divides that by its workers.
        report: a sink that gets a row for every range of windows that was dropped, with the reason. The checkpoint
            folder keeps the same rows in `side/drops`.
        max_ahead: how far a row may be ahead of the clock, or of the latest row so far. A row beyond that does not move
            the watermark; the checkpoint folder keeps it in `side`, with the reason. "auto" means one day, unless the
            first rows show that the data has its own clock. None means no bound.
    """
    for delivery in deliveries:
        if not isinstance(delivery, Delivery):
            raise InvalidArgumentError(
                f"{delivery!r} is not a result with a sink", hint="write ab.start(query.to(sink), checkpoint=...)"
            )
    if not deliveries:
        raise InvalidArgumentError(
            "start() needs at least one result with a sink", hint="write ab.start(query.to(sink), ...)"
        )
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidArgumentError(
            f"name={name!r} is not a query name", hint='write name="busy-cells", or leave it out'
        )
    for listener in listeners:
        if not isinstance(listener, Listener):
            raise InvalidArgumentError(
                f"{listener!r} is not a listener",
                hint="a listener has the methods on_started, on_progress and on_terminated, as ab.JsonLines(...) has",
            )
    if not isinstance(snapshot_every, int) or snapshot_every < 1:
        raise InvalidArgumentError(
            f"snapshot_every={snapshot_every!r} is not a number of epochs", hint="give an int of at least 1"
        )
    network = arrange(deliveries)
    when = trigger_of(trigger)
    check_options(deliveries, network, qos or QoS(), when)
    session = network.sources[0].frame.sparkSession
    if is_remote(session):
        raise StreamingError(
            "start() does not work on a Spark Connect session: the epoch runtime needs a driver in this process",
            hint='use to_df(), or a classic session: SparkSession.builder.master("spark://host:7077"), or local[*]',
        )
    _check_controllers(controllers, network)
    if workers is not None and workers < 1:
        raise InvalidArgumentError(f"workers={workers!r} is too small", hint="give at least 1")
    slots = slots_of(session)
    limit = most_memory(session, workers or slots) if memory_limit is None else byte_count(memory_limit, "memory_limit")
    idle_seconds = None if idle is None else micros(idle, "idle") / 1e6
    bound = MaxAhead.of(max_ahead)
    own = Folder.at(store if store is not None else checkpoint)
    check_workers(session)
    new = NewFolders(_checkpoint_paths(own, checkpoint), _result_paths(network, report))
    # Spark keeps its part in the checkpoint folder, whatever `store` says.
    both = [own] if store is None or "://" in str(checkpoint) else [own, Folder.at(checkpoint)]
    with CheckpointLock(name, *both) as lock:
        unique = open_checkpoint(own, network.fingerprint, network.describe())
        with new.removed_on_failure():
            folder = OwnFolder(None if live is None else str(Path(live).absolute()), (unique,))
            settings = Settings(
                qos or QoS(),
                when,
                workers,
                snapshot_every,
                idle_seconds,
                folder,
                limit,
                report,
                bound,
                slots,
                tuple(controllers),
            )
            kept = Checkpoint(own, unique, _spark_folder(checkpoint))
            query = EpochQuery(EpochRunner(network, settings, kept, session, lock), name, listeners)
            with disk_errors_translated(kept.spark):
                started = query._writer(when).start()
        query._started(started)
        lock.belongs_to(lambda: query.isActive)
    return query


@called_as('ab.drop_plan(query.to(sink), qos=ab.QoS(max_latency="10 s", max_gap=5))')
def drop_plan(*deliveries: Delivery, qos: QoS, trigger: Trigger | None = None) -> str:
    """Say where `start` with this QoS could drop windows, how, and why not elsewhere. Runs nothing."""
    network = arrange(deliveries)
    when = trigger_of(trigger)
    check_options(deliveries, network, qos, when)
    settings = Settings(qos, when, 1, SNAPSHOT_EVERY, None, OwnFolder(None))
    return "\n".join(explain_drops(planner_of(network, settings), qos))


def _check_controllers(controllers: Sequence[Controller], network: Network) -> None:
    names = [step.name for step in network.steps]
    for controller in controllers:
        if not isinstance(controller, Controller):
            raise InvalidArgumentError(
                f"{controller!r} is not a controller",
                hint="a controller has name, operator, settings and decide(history, current); see docs/controllers.md",
            )
        if controller.operator not in names:
            raise InvalidArgumentError(
                f"the controller {controller.name!r} is for {controller.operator!r}, but the query has no such "
                "operator: it would decide nothing",
                hint=f"the operators are {', '.join(names)}",
            )


def _spark_folder(checkpoint: str | Path) -> str:
    text = str(checkpoint)
    return f"{text.rstrip('/')}/spark" if "://" in text else str(Path(text).absolute() / "spark")


def _checkpoint_paths(own: Folder, checkpoint: str | Path) -> list[Path]:
    """The local folders that only this query uses: the store, and Spark's part of the checkpoint."""
    spark = _spark_folder(checkpoint)
    paths = [local_path(own), None if "://" in spark else Path(spark).parent]
    return [path for path in paths if path is not None]


def _result_paths(network: Network, report: Sink | None) -> list[Path]:
    sinks = [*(sink for step in network.steps for sink in step.sinks.values()), report]
    paths = [local_path(sink.folder) for sink in sinks if isinstance(sink, FileSink)]
    return [path for path in paths if path is not None]
