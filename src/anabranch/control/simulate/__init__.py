"""The controllers and cost models on a simulated cluster of any size. The seed fixes the result; no Spark."""

from anabranch.control.simulate.cluster import Cluster, SplitWork, WindowWork, Work
from anabranch.control.simulate.joining import JoinCosts, JoinWork, master_buffer_peak
from anabranch.control.simulate.run import Arrivals, Simulation, constant, simulate, step

__all__ = [
    "Arrivals",
    "Cluster",
    "JoinCosts",
    "JoinWork",
    "Simulation",
    "SplitWork",
    "WindowWork",
    "Work",
    "constant",
    "master_buffer_peak",
    "simulate",
    "step",
]
