"""Controllers: what decides the settings of the next epoch. With the simulator and the cost model to try one in.

A controller is a pure function from measured history to settings of one operator (`Controller`). `simulate` runs the
same code against a simulated cluster, without Spark.
"""

from anabranch.control.base import Controller
from anabranch.control.batch_size import BatchSize
from anabranch.control.simulate import Cluster, Simulation, SplitWork, WindowWork, constant, simulate, step
from anabranch.control.split_tuning import SplitTuning
from anabranch.split.cost import SplitCosts, splitters_needed

__all__ = [
    "BatchSize",
    "Cluster",
    "Controller",
    "Simulation",
    "SplitCosts",
    "SplitTuning",
    "SplitWork",
    "WindowWork",
    "constant",
    "simulate",
    "splitters_needed",
    "step",
]
