"""Which class runs an operator: the only place that asks what kind of node it is."""

from __future__ import annotations

from anabranch.query.graph import Step
from anabranch.query.nodes import CombineNode, JoinNode, PositionsNode, ProcessNode, WindowNode
from anabranch.runtime.driver.settings import Settings
from anabranch.runtime.execution.base import Execution
from anabranch.runtime.execution.combine import CombineExecution
from anabranch.runtime.execution.join import JoinExecution
from anabranch.runtime.execution.process import NumberingExecution, ProcessExecution
from anabranch.runtime.execution.window import WindowExecution


def execution_of(step: Step, settings: Settings) -> Execution:
    """The execution of an operator."""
    match step.node:
        case WindowNode() as node:
            return WindowExecution(step, node, settings)
        case PositionsNode() as node:
            return NumberingExecution(step, node, settings)
        case ProcessNode() as node:
            return ProcessExecution(step, node, settings)
        case JoinNode() as node:
            return JoinExecution(step, node, settings)
        case CombineNode() as node:
            return CombineExecution(step, node, settings)
        case other:
            raise TypeError(f"no execution for {type(other).__name__}")
