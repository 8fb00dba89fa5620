"""Recorded files as a stream, at the pace of their event time."""

from anabranch.io.replay.recording import Recording, columns_of
from anabranch.io.replay.source import backlog, replay

__all__ = ["Recording", "backlog", "columns_of", "replay"]
