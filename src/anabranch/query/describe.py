"""How a stream will be split, as text: what is known before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column

from anabranch.query.nodes import Input, Node, Routing
from anabranch.query.origins import Branch, Output, Source
from anabranch.split.splitter import WINDOW_BYTES

TUNED = "tuned while running"


def explain_routing(routing: Routing, inputs: Sequence[Input]) -> list[str]:
    """Lines of (name, text): substreams, route, splitters p, physical windows W, and how each input is read."""
    lines = [_line("substreams", f"q = {routing.groups}")] if not routing.keys else []
    if routing.keys:
        by = f"by {', '.join(routing.keys)}: hash of the key, {routing.groups} partition-groups"
        lines.append(_line("route", by))
    else:
        lines.append(_line("route", _how(routing.route)))
        lines.append(_line("broadcast", _how(routing.broadcast)))
    lines.append(_line("splitters", f"p = {_splitters(routing, inputs)}"))
    lines.append(_line("window", f"W = {_window_bytes(routing)}"))
    lines += [_line(f"input {i}", _reading(routing, each.branch)) for i, each in enumerate(inputs)]
    return lines


def explain_operator(node: Node) -> list[str]:
    """An operator as lines of text, as in the checkpoint."""
    first, *others = node.describe()
    return [_line(node.kind, first), *(_line("", line) for line in others)]


def _line(name: str, text: str) -> str:
    return f"{name:12}{text}"


def _how(rule: object) -> str:
    if rule is None:
        return "none"
    if isinstance(rule, Column):
        return "a Column, computed by Spark"
    return f"the function {getattr(rule, '__qualname__', type(rule).__qualname__)}, over whole blocks"


def _splitters(routing: Routing, inputs: Sequence[Input]) -> str:
    if routing.splitters is not None:
        return f"{routing.splitters}, as requested"
    if routing.moves_windows(each.branch for each in inputs):
        return f"{TUNED}, by the measured costs"
    return "the tasks that read the rows: moving rows first would cost more than it gains"


def _window_bytes(routing: Routing) -> str:
    if routing.window_bytes is not None:
        return f"{routing.window_bytes:,} bytes, as requested"
    return f"{WINDOW_BYTES:,} bytes" if routing.keys else f"{TUNED}: doubled until the rate gains less than 0.15 %"


def _reading(routing: Routing, branch: Branch) -> str:
    if isinstance(branch.origin, Output):
        return f"rows of {branch.origin.node.kind}, output {branch.origin.name}"
    if not _packed(branch):
        return "rows"
    if routing.reads_blocks(branch):
        return "blocks, read in the splitters: their tuples never become rows"
    why = "a filter or selection comes before the split" if branch.transforms else "Spark computes the route"
    return f"blocks, unpacked into rows first: {why}"


def _packed(branch: Branch) -> bool:
    return isinstance(branch.origin, Source) and branch.origin.packed is not None
