"""Recorded files as a stream."""

from anabranch.io.replay.recording import Recording, columns_of
from anabranch.io.replay.source import backlog, replay

__all__ = ["Recording", "backlog", "columns_of", "replay"]
