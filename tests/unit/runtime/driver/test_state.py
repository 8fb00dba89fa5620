"""What the driver keeps of an operator between epochs: which blocks a rebuild may need, and what waits for its turn."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from anabranch.io.folder import Folder
from anabranch.query.graph import Network
from anabranch.runtime.driver.state import DriverState, OperatorState
from anabranch.store.ledger import Ledger
from anabranch.store.records import EpochDecision, EpochOutcome, OperatorOutcome


def after(state: OperatorState) -> OperatorState:
    """The state as a restart finds it, but for what it reads from earlier records."""
    found = OperatorState.of(OperatorOutcome.from_json(json.loads(json.dumps(state.record(()).to_json()))))
    found.latest, found.recent_watermarks = dict(state.latest), dict(state.recent_watermarks)
    return found


def test_blocks_are_kept_as_long_as_a_row_of_them_may_be_in_a_window() -> None:
    # epoch       0    1    2    3
    # latest     10   30   20    -
    # horizon     5   12   25   31
    state = OperatorState()
    for epoch, latest, horizon, since in ((0, 10, 5, 0), (1, 30, 12, 1), (2, 20, 25, 1), (3, None, 31, 4)):
        state.wait(epoch, [0], {}, None)
        state.forget_log(epoch, latest, horizon)
        state = after(state)
        assert state.since == since


def test_a_group_that_waits_holds_back_what_was_delivered_and_its_blocks() -> None:
    state = OperatorState()
    state.wait(0, [0, 1], {}, 100)
    assert state.delivered == 100
    state.wait(1, [0], {1: 7}, 200)
    state.forget_log(1, 150, 10_000)
    assert (state.waiting, state.delivered, state.since) == ({1: (0, 7)}, 100, 1)
    state = after(state)
    state.wait(2, [0], {1: 0}, 300)
    assert (state.waiting, state.delivered) == ({1: (0, 7)}, 100)
    state.wait(3, [0, 1], {}, 400)
    assert (state.waiting, state.delivered, state.recent_watermarks) == ({}, 400, {3: 400})


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 50), st.integers(0, 10)), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_no_block_is_forgotten_that_is_needed(epochs: list[tuple[int | None, int]], slots: int, window: int) -> None:
    """Group g runs in epochs that are g modulo the slots; a rebuild of it must find all rows that it may still join."""
    state, watermark, reached, times = OperatorState(), 0, dict.fromkeys(range(slots), -1), []
    marks: dict[int, int] = {-1: 0}
    for epoch, (latest, step) in enumerate(epochs):
        watermark += step
        latest = None if latest is None else watermark - step + latest  # never behind the watermark before
        times.append(latest)
        marks[epoch] = watermark
        turn = epoch % slots
        reached[turn] = epoch
        state.wait(epoch, [turn], {group: 1 for group in range(slots) if group != turn}, watermark)
        horizon = None if state.delivered is None else state.delivered - window
        state.forget_log(epoch, latest, horizon)
        for at in reached.values():
            # Its state shows the end of `at`: rows whose window had not passed by then, and all that came since.
            needed = [e for e, t in enumerate(times) if t is not None and (e > at or t >= marks[at] - window)]
            assert not needed or (state.since or 0) <= min(needed)


def test_tokens_are_known_of_all_epochs_that_a_group_was_last_run_in(tmp_path: Path) -> None:
    """By them a worker knows the live state of its groups again, also after a restart."""
    ledger = Ledger(Folder.at(tmp_path), "q")
    network = cast(Network, SimpleNamespace(sources=[None], steps=[]))
    state, driver = OperatorState(), DriverState(None, [None], {}, set(), [0.0])
    driver.operators["join-1"] = state
    for epoch, waiting in enumerate(({}, {1: 3}, {1: 2}, {})):
        if epoch:  # the first was planned by a release without tokens
            ledger.write_decision(epoch, EpochDecision(token=f"token {epoch}"))
            driver.tokens[epoch] = f"token {epoch}"
        else:
            ledger.write_decision(epoch, EpochDecision())
        state.wait(epoch, {0, 1} - waiting.keys(), waiting, None)
        driver.last = epoch
        driver.forget_tokens()
        ledger.write_outcome(epoch, EpochOutcome((None,), {"join-1": state.record(())}))
        assert DriverState.of(network, ledger).tokens == driver.tokens
        assert driver.tokens == ({epoch: f"token {epoch}"} if epoch else {})
    state.wait(4, {0}, {1: 1}, None)
    driver.last, driver.tokens[4] = 4, "token 4"
    driver.forget_tokens()
    assert driver.tokens == {3: "token 3", 4: "token 4"}
