"""Where the branches join again. Pure; knows nothing of Spark."""

from anabranch.merge.ordered import PENDING, OrderedMerge, Pending, merge_ordered

__all__ = ["PENDING", "OrderedMerge", "Pending", "merge_ordered"]
