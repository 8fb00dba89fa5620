"""Names of the columns that Anabranch adds to those of the user: every `__ab_*` there is.

They are in the state and in the files of checkpoints, so their values never change.
"""

from __future__ import annotations

PREFIX = "__ab_"
"""What all of these names begin with."""

# --- rows -----------------------------------------------------------------------------------------------------------

EVENT = "__ab_event"
"""The timestamp that carries Spark's watermark, where the user's time column has another type."""
AXIS = "__ab_t"
"""A row's place on the axis of its windows: its time in microseconds, or its position."""
TIME = "__ab_time"
"""A row's time in the user's type, for aggregates that use it."""
POSITION = "__ab_position"
"""A row's position in the order of time: 0, 1, 2, ..."""
OPEN = "__ab_open"
"""Whether the count windows that begin at this row (or in this pane) are kept."""
TICK = "__ab_tick"
"""Whether a row only moves the watermark, in a stream that a test feeds."""
GONE = "__ab_gone"
"""Whether load shedding drops this row."""

# --- panes and windows ----------------------------------------------------------------------------------------------

PANE = "__ab_pane"
"""The id of a pane."""
PANES = "__ab_panes"
"""The panes of a batch: a list of structs (pane id, rows, states...)."""
BATCH = "__ab_batch"
"""The number of a batch of windows."""
ROWS = "__ab_rows"
"""How many rows a pane or a window has."""
SPEC = "__ab_spec"
"""Which of the query's window specifications: 0, 1, ..."""
FIRST = "__ab_first"
"""The id of the first window of a run, or of the one window in this row."""
LAST = "__ab_last"
"""The id of the last window of a run."""
OWN_WINDOW = "__ab_window"
"""Spark's own window, or the number of the window in which keys are assigned to workers; users see `window`."""
NODE = "__ab_node"
"""The node of the ring that evaluates a batch."""
TOTAL = "__ab_total"
"""The number of rows of all keys together."""
BRANCH = "__ab_branch"
"""The branch of an aggregation tree."""

# --- where rows go --------------------------------------------------------------------------------------------------

GROUP = "__ab_group"
"""The partition-group that a row goes to."""
ALL = "__ab_all"
"""Whether a row goes to all partition-groups."""
HASH = "__ab_hash"
"""The hash of a row's keys."""
WORKER = "__ab_worker"
"""The worker that a partitioner assigned a row to."""
SPLITTER = "__ab_splitter"
"""The splitter that a row came through."""
PART = "__ab_part"
"""The task that made a pane of its rows. Workers sort by it: then no exchange changes the order of a pane's pieces."""
TIMED = "__ab_timed"
"""How many rows of a pane have a time."""
MAX_T = "__ab_max_t"
"""The latest time in a pane."""
BLOCK = "__ab_block"
"""Rows as one packed block."""
REPORT = "__ab_report"
"""What a worker reports of its epoch, beside its results."""
SOURCE = "__ab_source"
"""The number of the source that a row came from, where several are read as one."""

# --- numbering rows of a batch --------------------------------------------------------------------------------------

BUCKET = "__ab_bucket"
"""The part of the time line that a row is numbered in."""
BEFORE = "__ab_before"
"""How many rows the buckets before this one have."""
RANK = "__ab_rank"
"""A row's position within its bucket."""
LOW = "__ab_low"
"""The earliest time of all rows."""
HIGH = "__ab_high"
"""The latest time of all rows."""

# --- numbered names -------------------------------------------------------------------------------------------------


def key_name(number: int) -> str:
    """The name under which a key travels, whatever characters its own name has."""
    return f"__ab_k{number}"


def state_name(number: int) -> str:
    """The state of an aggregate in a pane."""
    return f"__ab_s{number}"


def plain_name(number: int) -> str:
    """A column whose own name has a dot or a backquote, on its way to Python."""
    return f"__ab_c{number}"


def input_name(aggregate: int, number: int) -> str:
    """An input column of an aggregate."""
    return f"__ab_i{aggregate}_{number}"


def rough_name(number: int) -> str:
    """A sum in floating point, to tell whether the exact one has wrapped around."""
    return f"__ab_rough{number}"


def source_row_name(source: int) -> str:
    """A row of that source as a struct; null in the rows of other sources."""
    return f"__ab_row{source}"


# Of the streams that a join reads, by port.


def join_bucket_name(port: int) -> str:
    """The bucket of time in which a row of that stream waits for its partners."""
    return f"__ab_bucket{port}"


def join_copy_name(port: int) -> str:
    """A bucket of time that a row of that stream is copied to."""
    return f"__ab_copy{port}"


def join_time_name(port: int) -> str:
    """The time of a row of that stream, in microseconds."""
    return f"__ab_t{port}"


def join_event_name(port: int) -> str:
    """EVENT of that stream."""
    return f"__ab_event{port}"


def join_key_name(port: int, number: int) -> str:
    """A key of that stream."""
    return f"__ab_key{port}_{number}"
