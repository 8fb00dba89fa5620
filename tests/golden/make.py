"""Write the checkpoints that later releases must resume: python -m tests.golden.make tests/golden/format-2.zip

Run it under the release whose format is to be kept, before the format changes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

from anabranch.local.session import local_session
from tests.golden.queries import EPOCHS, QUERIES, add_epochs, run

BASE = "base"
"""The file that has the folder in which the checkpoints were written: Spark's log of files has their whole paths."""


def main(target: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(root)])
    spark = local_session(cores=2, shuffle_partitions=2, app_name="golden")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(BASE, folder)
        for name in QUERIES:
            base = Path(folder, name)
            add_epochs(base, 0, EPOCHS // 2)
            run(spark, name, base, "live")
            for part in ("checkpoint", "out"):
                for file in sorted((base / part).rglob("*")):
                    if file.is_file() and not file.name.endswith(".crc"):
                        archive.write(file, file.relative_to(folder))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
