"""Recordings: files that `anabranch.replay` replays as a stream.

A recording is one Arrow or Parquet file, or a folder of them in the order of their names. Its rows are in the order of
time. A *block* is a record batch of an Arrow file, or a row group of a Parquet file.

    write_blocks("reports.arrow", table.to_batches())
    reports = ab.replay(spark, "reports.arrow", time="at")
"""

from anabranch.io.blocks import BlockRef, read_block, write_blocks
from anabranch.io.replay.recording import Recording, columns_of

__all__ = ["BlockRef", "Recording", "columns_of", "read_block", "write_blocks"]
