"""With B = 1, windows leave in the order of their ends from epoch to epoch, whatever groups come and go."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from anabranch.names import FIRST, LAST, SPEC
from anabranch.operators.state import MemoryState
from anabranch.operators.time_windows import WindowOperator
from anabranch.windows import Panes, Window
from tests.unit.operators.test_time_windows import Row, panes_of, settings, windows_strategy

groups_strategy = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(-30, 60), max_size=5), max_size=4
)  # the times of an epoch's rows, by group


def ends_of_epochs(
    windows: Panes, epochs: list[Mapping[str, list[int]]], delay: int, batch: int = 1
) -> list[list[int]]:
    """The ends of the windows that all groups bring out, epoch by epoch. A group begins with its first row."""
    groups: dict[str, WindowOperator] = {}
    found: list[list[int]] = []
    watermark: int | None = None
    for epoch in epochs:
        ends: list[int] = []
        on_time: dict[str, list[Row]] = {}
        for name, times in epoch.items():
            # Late are the rows whose pane the watermark has passed.
            kept = [t for t in times if watermark is None or pane_end(windows, t) > watermark]
            on_time[name] = [(t, name, 0) for t in kept]
        latest = max((t for times in epoch.values() for t in times), default=None)
        if latest is not None:
            watermark = latest - delay if watermark is None else max(watermark, latest - delay)
        for name, rows in on_time.items():
            if rows and name not in groups:
                groups[name] = WindowOperator(settings(windows))
                groups[name].open(MemoryState())
        for name, operator in groups.items():
            operator.decisions = {"batch": batch}
            block = panes_of(on_time.get(name, []), windows)
            emitted = [] if block is None else list(operator.process(block))
            emitted += [] if watermark is None else list(operator.on_watermark(watermark))
            for row in (row for part in emitted for row in part.to_pylist()):
                window = windows.windows[row[SPEC]]
                ends += [window.origin + j * window.slide + window.size for j in range(row[FIRST], row[LAST] + 1)]
        found.append(ends)
    return found


def pane_end(windows: Panes, t: int) -> int:
    return ((t - windows.origin) // windows.size + 1) * windows.size + windows.origin


@given(windows_strategy, st.lists(groups_strategy, max_size=8), st.integers(0, 8))
def test_no_window_leaves_after_a_later_one(windows: Panes, epochs: list[Mapping[str, list[int]]], delay: int) -> None:
    before: int | None = None
    for ends in ends_of_epochs(windows, epochs, delay):
        if ends:
            assert before is None or min(ends) > before
            before = max(ends)


def test_batches_would_break_the_order_and_stay_behind() -> None:
    """Why B is 1 wherever an order is asked for, and where a query ends with its input."""
    windows = Panes((Window(10, 10),))
    # Group b is new in the second epoch, and waits for nothing.
    epochs = [{"a": [0, 12]}, {"b": [21, 33]}, {"b": [41]}]
    assert ends_of_epochs(windows, epochs, delay=0) == [[10], [20, 30], [40]]
    assert ends_of_epochs(windows, epochs, delay=0, batch=4) == [[10], [30], [20, 40]]
    # Without the last epoch, the window that ends at 20 is complete, and stays behind.
    assert ends_of_epochs(windows, epochs[:2], delay=0, batch=4) == [[10], [30]]
