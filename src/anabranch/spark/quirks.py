"""How we deal with Spark's odd behaviour, in one place.

- Spark's errors belong to several families of exceptions (`SPARK_ERRORS`); so do those of a lost connection (`LOST`).
- Some calls raise whatever the layers below them raise, so only here is every `Exception` caught, around one call each
  (`wait_for_end`, `status_of`, `observed`, `parse_schema`).
- Disk errors arrive as the text of a Java exception (`disk_error`). Spark writes offsets and commits to the checkpoint
  folder itself, and shuffles through folders of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from anabranch.errors import StateError, cannot_write

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
"""What a call raises when Spark fails. py4j's error stands for Java exceptions that PySpark has no class for."""
LOST: tuple[type[Exception], ...] = (OSError,)
"""What a call raises after Spark's Java process has ended."""
try:
    from py4j.protocol import Py4JError

    SPARK_ERRORS = (PySparkException, Py4JError)
    LOST = (Py4JError, OSError)
except ImportError:  # the client package for Spark Connect has no py4j
    pass

_CAUSES = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)}
# Java's wording only: a user's function that fails to write its own file words it differently.
_FULL = re.compile(f"java.io.IOException: ({os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)})")
_REFUSED = re.compile(rf"(\S+)(?: \(|: )({os.strerror(errno.EROFS)}|{os.strerror(errno.EACCES)})")
_IN_AN_EPOCH = "FOREACH_BATCH_USER_FUNCTION_ERROR"


def disk_error(failed: BaseException, checkpoint: str) -> StateError | None:
    """Our error if Spark failed to write to disk. `checkpoint` is Spark's part of the checkpoint folder."""
    text = str(failed)
    full = _FULL.search(text)
    if full is not None:
        where = "a working folder of Spark (spark.local.dir)" if _IN_AN_EPOCH in text else checkpoint
        return _error(where, full[1])
    for path, cause in _REFUSED.findall(text):
        if _inside(path, checkpoint):  # another path may be a source that could not be read
            return _error(path, cause)
    return None


@contextmanager
def disk_errors_translated(checkpoint: str) -> Iterator[None]:
    """Turn disk errors into ours while Spark's query starts, which also writes to the checkpoint."""
    try:
        yield
    except SPARK_ERRORS as error:
        ours = disk_error(error, checkpoint)
        if ours is None:
            raise
        raise ours from error


def wait_for_end(query: StreamingQuery, seconds: float) -> tuple[bool, Exception | None]:
    """Wait until a query ends, at most for some seconds. Returns whether it ended, and with which error.

    If Java is gone, the query has ended too: py4j then raises one of several exceptions.
    """
    try:
        return bool(query.awaitTermination(seconds)), None  # type: ignore[arg-type]  # takes floats too
    except Exception as error:
        return True, error


def status_of(query: StreamingQuery) -> dict[str, Any] | None:
    """What a query is doing, as Spark reports it; None if Java is gone, which `wait_for_end` reports."""
    try:
        return dict(query.status)
    except Exception:
        return None


def observed(observation: Observation) -> dict[str, Any]:
    """What an Observation counted, after the job; empty if Spark did not count.

    It does not where it finds that the rows have no effect, or that there are none. It says so with an exception, and
    sometimes with a result without values.
    """
    try:
        return dict(observation.get)
    except Exception:
        return {}


def parse_schema(text: Any) -> DataType:
    """A schema, or a single type, that was written as text. Raises ValueError if Spark cannot read it.

    Spark raises ParseException, TypeError and others, depending on the kind of session.
    """
    try:
        return StructType.fromDDL(text)
    except Exception as error:
        raise ValueError(f"{text!r} is not a Spark schema") from error


def _error(where: str, cause: str) -> StateError:
    return cannot_write(where, OSError(_CAUSES[cause], cause))


def _inside(path: str, folder: str) -> bool:
    plain, within = (each.removeprefix("file:").replace("//", "/") for each in (path, folder))
    return plain.startswith(within)
