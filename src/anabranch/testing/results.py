"""What an operator or a query delivered: rows, by output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.errors import InvalidArgumentError


@dataclass(frozen=True)
class Results:
    """Rows by the name of the output. An output without a name is called "rows", as in `anabranch.start`."""

    tables: Mapping[str, pa.Table]
    """The outputs that have rows, as Arrow tables."""
    outputs: tuple[str, ...] = ()
    """The declared outputs; empty if none were declared."""

    @classmethod
    def of(cls, parts: Iterable[tuple[str, pa.Table]], outputs: Sequence[str] = ()) -> Results:
        """The rows of several parts, in their order. Parts without rows are left out."""
        found: dict[str, list[pa.Table]] = {}
        for name, table in parts:
            if table.num_rows:
                found.setdefault(name, []).append(table)
        return cls(
            {name: pa.concat_tables(tables, promote_options="default") for name, tables in found.items()},
            tuple(outputs),
        )

    def rows(self, output: str | None = None) -> list[dict[str, Any]]:
        """The rows of an output as dictionaries; without a name, those of the only one."""
        table = self._find(output)
        return [] if table is None else table.to_pylist()

    def table(self, output: str | None = None) -> pa.Table:
        """The rows of an output as an Arrow table; one without columns if the output has no rows."""
        table = self._find(output)
        return pa.table({}) if table is None else table

    def _find(self, output: str | None) -> pa.Table | None:
        known = self.outputs or tuple(self.tables)
        if output is None:
            if len(known) > 1:
                raise InvalidArgumentError(
                    f"there are several outputs: {', '.join(known)}", hint=f"name one: rows({known[0]!r})"
                )
            output = known[0] if known else ""
        elif self.outputs and output not in self.outputs:
            raise InvalidArgumentError(f"there is no output {output!r}", hint=f"the outputs are {', '.join(known)}")
        return self.tables.get(output)
