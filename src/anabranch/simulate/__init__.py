"""The controllers and cost models against a simulated cluster of any size. Deterministic by its seed; no Spark."""

from anabranch.simulate.cluster import Cluster, SplitWork, WindowWork, Work
from anabranch.simulate.run import Arrivals, Simulation, constant, simulate, step

__all__ = ["Arrivals", "Cluster", "Simulation", "SplitWork", "WindowWork", "Work", "constant", "simulate", "step"]
