"""Tables of an operator's state, one for each epoch that brought rows: `panes.000000000000`, `panes.000000000001`, ...

So an epoch writes only its own rows. The operator merges its tables into one when there are many.
"""

from __future__ import annotations

import pyarrow as pa

from anabranch.operators.state import State

MOST_TABLES = 16
"""With this many tables they are merged into one."""


class EpochTables:
    """The tables of a state whose names begin with `prefix`, oldest first."""

    def __init__(self, state: State, prefix: str) -> None:
        self._state = state
        self._prefix = f"{prefix}."

    def names(self) -> list[str]:
        return [name for name in self._state.names() if name.startswith(self._prefix)]

    def __getitem__(self, name: str) -> pa.Table:
        table = self._state.table(name)
        assert table is not None
        return table

    def append(self, table: pa.Table) -> None:
        """Keep a table after the others."""
        self.put(self.next_name(self.names()), table)

    def next_name(self, names: list[str]) -> str:
        """The name of a table that comes after those."""
        number = int(names[-1].removeprefix(self._prefix)) + 1 if names else 0
        return f"{self._prefix}{number:012d}"

    def put(self, name: str, table: pa.Table) -> None:
        self._state.put(name, table)

    def drop(self, name: str) -> None:
        self._state.drop(name)
