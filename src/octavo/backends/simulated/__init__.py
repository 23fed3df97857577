"""The simulated backend: another backend's answers, at the time that a model of costs says."""

from octavo.backends.simulated.backend import SimulatedBackend
from octavo.backends.simulated.costs import MeasuredStep, StepCosts
from octavo.backends.simulated.virtual_time import VirtualTime

__all__ = ["MeasuredStep", "SimulatedBackend", "StepCosts", "VirtualTime"]
