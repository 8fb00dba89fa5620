"""Traffic by the rules of the benchmark, and traces of any number of expressways."""

from anabranch.linearroad.generate.trace import Trace, combine, write_trace
from anabranch.linearroad.generate.traffic import Traffic

__all__ = ["Trace", "Traffic", "combine", "write_trace"]
