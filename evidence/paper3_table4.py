"""Paper 3, table 4: memory for counting keys when all 8.1 million routes of DEBS Q1 come twice in one window."""

from __future__ import annotations

from common import Shape, arguments, report
from partitioning import by_policy, plot, spread, table

from benchmarks.partitioner_runs import AM_2, AM_2_H, CM_2, CM_2_H, LM_2, LM_2_H, TABLE_4, WORKERS, memory

NAME = "paper3_table4"
KEYS = 8_100_000


def main() -> None:
    options = arguments(__doc__ or "")
    keys = KEYS // 20 if options.quick else KEYS
    policies = (CM_2, AM_2, LM_2, CM_2_H, AM_2_H, LM_2_H)
    found = {(how.label, v): memory(how, v, keys) / 1e6 for how in policies for v in WORKERS}
    fewer = {how.label: memory(how, 8, keys // 10) / 1e6 for how in (AM_2, AM_2_H)}
    megabytes = by_policy(found)
    table(
        f"megabytes for {keys:,} keys",
        ("policy", *(f"{v} workers" for v in WORKERS), *(f"paper, {v}" for v in WORKERS)),
        ((name, *many, *map(float, TABLE_4[name])) for name, many in megabytes.items()),
    )
    picture = plot(NAME, "Paper 3, table 4: memory of the cardinality structures", {"megabytes": found})
    exact, hll, twice = megabytes["AM-2"], megabytes["AM-2-H"], megabytes["CM-2"][0] / megabytes["AM-2"][0]
    shapes = [
        Shape("exact counts need the same with any number of workers", len(set(exact)) == 1, spread(exact)),
        Shape("CM and LM, which send a key to both candidates, need twice what AM does",
              twice > 1.5, f"{twice:.2f} times: here a key has one entry"),
        Shape("exact counts grow with the keys", megabytes["AM-2"][0] > 5 * fewer["AM-2"],
              f"{megabytes['AM-2'][0] / fewer['AM-2']:.1f} times for ten times the keys"),
        Shape("HyperLogLog does not grow with the keys", hll[0] == fewer["AM-2-H"], spread([hll[0], fewer["AM-2-H"]])),
        Shape("HyperLogLog grows with the workers", hll[2] == 2 * hll[1] == 4 * hll[0], spread(hll)),
        Shape("HyperLogLog is far smaller", hll[-1] < 0.05 * exact[-1], f"{exact[-1] / hll[-1]:,.0f} times"),
    ]  # fmt: skip
    report(NAME, shapes, {"workers": WORKERS, "keys": keys, "megabytes": megabytes}, picture, options.json)


if __name__ == "__main__":
    main()
