"""Windowed joins of streams, as they run on a worker."""

from anabranch.operators.join.operator import JoinOperator
from anabranch.operators.join.settings import JoinSettings

__all__ = ["JoinOperator", "JoinSettings"]
