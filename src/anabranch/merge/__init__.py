"""Where branches of a stream come together again. Independent of Spark."""

from anabranch.merge.ordered import PENDING, OrderedMerge, Pending, merge_ordered

__all__ = ["PENDING", "OrderedMerge", "Pending", "merge_ordered"]
