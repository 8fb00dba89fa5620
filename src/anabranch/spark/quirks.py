"""Where Spark behaves oddly: how we deal with it, in one place.

- Errors come as several families of exceptions (`SPARK_ERRORS`).
- What the disk answers to Spark arrives as the text of a Java exception (`disk_error`). Spark keeps offsets and commits
  in the checkpoint folder itself, and shuffles through folders of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from anabranch.errors import StateError, cannot_write

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
"""What a call of Spark raises when Spark fails. An exception of Java that PySpark has no class for comes as py4j's."""
try:
    from py4j.protocol import Py4JError

    SPARK_ERRORS = (PySparkException, Py4JError)
except ImportError:  # PySpark's client for Spark Connect comes without py4j
    pass

_CAUSES = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)}
# Of Java alone: a function of the user that could not write its own file says so in other words.
_FULL = re.compile(f"java.io.IOException: ({os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)})")
_REFUSED = re.compile(rf"(\S+)(?: \(|: )({os.strerror(errno.EROFS)}|{os.strerror(errno.EACCES)})")
_IN_AN_EPOCH = "FOREACH_BATCH_USER_FUNCTION_ERROR"


def disk_error(failed: BaseException, checkpoint: str) -> StateError | None:
    """Our error, if Spark could not write. `checkpoint`: Spark's part of the checkpoint folder."""
    text = str(failed)
    full = _FULL.search(text)
    if full is not None:
        where = "a folder that Spark works in (spark.local.dir)" if _IN_AN_EPOCH in text else checkpoint
        return _error(where, full[1])
    for path, cause in _REFUSED.findall(text):
        if _inside(path, checkpoint):  # any other may be a source that could not be read
            return _error(path, cause)
    return None


@contextmanager
def disk_errors_translated(checkpoint: str) -> Iterator[None]:
    """Around the start of Spark's query, which writes to the checkpoint too."""
    try:
        yield
    except SPARK_ERRORS as error:
        ours = disk_error(error, checkpoint)
        if ours is None:
            raise
        raise ours from error


def _error(where: str, cause: str) -> StateError:
    return cannot_write(where, OSError(_CAUSES[cause], cause))


def _inside(path: str, folder: str) -> bool:
    plain, within = (each.removeprefix("file:").replace("//", "/") for each in (path, folder))
    return plain.startswith(within)
