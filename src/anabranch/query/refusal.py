"""Why a part of a query can run only by `to_df()` or only by `start()`, kept until the other one is called."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import AnabranchError


@dataclass(frozen=True)
class Refusal:
    """The text of an error. The error itself is made when it is raised: an instance raised twice mixes tracebacks."""

    message: str
    hint: str

    @classmethod
    def of(cls, error: AnabranchError) -> Refusal:
        return cls(error.message, error.hint)
