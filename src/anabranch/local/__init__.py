"""A Spark on this machine: `local_session`."""

from anabranch.local.session import local_session

__all__ = ["local_session"]
