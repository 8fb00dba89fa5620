"""`start` of a query and `anabranch.start` are the same call."""

from __future__ import annotations

import ast
import inspect
import textwrap

from anabranch.api.startable import Startable
from anabranch.runtime.start import start


def test_a_query_starts_with_the_same_settings_as_the_function() -> None:
    method = [
        each for each in inspect.signature(Startable.start).parameters.values() if each.name not in ("self", "sink")
    ]
    function = [each for each in inspect.signature(start).parameters.values() if each.name != "deliveries"]
    # Names, defaults, order and annotations (texts, since the modules postpone them).
    assert method == function


def test_every_setting_is_passed_on() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(Startable.start)))
    (call,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "start"
    )
    passed = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    settings = [name for name in inspect.signature(start).parameters if name != "deliveries"]
    assert passed == {name: name for name in settings}
