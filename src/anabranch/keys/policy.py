"""Which worker gets which key: the partitioning policies as plain values. See docs/papers.md.

A keyed aggregate runs in three stages: *partition* the tuples over V workers, *evaluate* on each worker what it got,
and *aggregate* the partial results. Spreading the tuples of a key makes the second stage even and the third expensive;
each policy is a compromise. Every key has d candidate workers, given by its hash.

| policy | a tuple goes to | splits keys |
|---|---|---|
| sh  | the next worker, in turn | over all workers |
| fld | the first candidate | never |
| pk  | the candidate with the fewest tuples | over d workers |
| cm  | the candidate with the fewest keys | over d workers |
| am  | the candidate that has the key; a new key: the one with the fewest keys | never, within a splitter |
| cam | the candidate that has the key; a new key: the one with the fewest tuples | never, within a splitter |
| lm  | the candidate with the smallest mix of tuples and keys (`keys.metrics`) | over d workers |
| heavy | a key in the shared table: the worker given there; any other: the first candidate | never |

`heavy` is our own: a table of the keys that had the most tuples in the last epoch, the same for all splitters.

Counts are kept per window and forgotten when it ends. The keys of a worker are counted exactly (sets of key hashes), or
estimated with HyperLogLog (`-H`) in memory that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anabranch.errors import InvalidArgumentError

Policy = Literal["sh", "fld", "pk", "cm", "am", "cam", "lm", "heavy"]
Cardinality = Literal["exact", "hll"]

POLICIES: tuple[Policy, ...] = get_args(Policy)
POLICIES_COMPARED: tuple[Policy, ...] = POLICIES[:-1]
"""The policies that a report compares: all but `heavy`, which needs the keys of an earlier epoch."""
COUNTING_KEYS: frozenset[Policy] = frozenset({"cm", "am", "cam", "lm"})
"""Policies that count the keys of each worker."""
WITH_CHOICES: frozenset[Policy] = COUNTING_KEYS | {"pk"}

_NAMES: dict[Policy, str] = {
    "sh": "SH", "fld": "FLD", "pk": "PK", "cm": "CM", "am": "AM", "cam": "cAM", "lm": "LM", "heavy": "heavy",
}  # fmt: skip


@dataclass(frozen=True)
class Partitioning:
    """A policy with its parameters. `choices` is d; `balance` is the weight of tuples, against keys, in LM's load."""

    policy: Policy
    choices: int = 2
    cardinality: Cardinality = "exact"
    balance: float = 0.5

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InvalidArgumentError(
                f"partition={self.policy!r} is not a policy", hint=f'the policies are "auto", {", ".join(POLICIES)}'
            )
        if not isinstance(self.choices, int) or isinstance(self.choices, bool) or self.choices < 1:
            raise InvalidArgumentError(
                f"choices={self.choices!r}: a key needs at least one candidate worker", hint="give 2, or more"
            )
        if self.cardinality not in get_args(Cardinality):
            raise InvalidArgumentError(
                f"cardinality={self.cardinality!r} is not a way to count keys",
                hint='write "exact" (sets of keys) or "hll" (HyperLogLog)',
            )
        if self.cardinality == "hll" and self.policy not in COUNTING_KEYS:
            raise InvalidArgumentError(
                f'cardinality="hll" does not apply to the policy {self.policy!r}, which does not count keys',
                hint=f"leave it out, or use one of {', '.join(sorted(COUNTING_KEYS))}",
            )
        if not 0.0 <= self.balance <= 1.0:
            raise InvalidArgumentError(f"balance={self.balance!r} is not a share", hint="give a number between 0 and 1")

    @property
    def label(self) -> str:
        """Its short name: ``cAM-2``, ``LM-2-H``, ``FLD-1``, ``SH-w``."""
        if self.policy in WITH_CHOICES:
            return f"{_NAMES[self.policy]}-{self.choices}{'-H' if self.cardinality == 'hll' else ''}"
        return {"sh": "SH-w", "fld": "FLD-1"}.get(self.policy, self.policy)

    @classmethod
    def of_label(cls, label: str) -> Partitioning:
        """The partitioning with that label; the ledger keeps labels."""
        name, *rest = label.split("-")
        policy = next((policy for policy, known in _NAMES.items() if known == name), None)
        if policy is None or (policy in WITH_CHOICES and not (rest and rest[0].isdigit())):
            raise InvalidArgumentError(
                f"{label!r} is not a partitioning policy",
                hint=f"the policies are {', '.join(_NAMES.values())}",
            )
        if policy not in WITH_CHOICES:
            return cls(policy)
        return cls(policy, int(rest[0]), "hll" if rest[-1] == "H" else "exact")

    @property
    def by_key_alone(self) -> bool:
        """Whether the key alone decides a tuple's worker."""
        return self.policy in ("fld", "heavy")

    def keeps_keys_whole(self, splitters: int | None) -> bool:
        """Whether all tuples of a key within a window reach one worker, so that nothing is left to aggregate.

        Splitters do not share which worker has a key, so several of them may send it to different workers. An estimate
        (HyperLogLog) may take a new key for a known one, and so split it.
        """
        if self.by_key_alone:
            return True
        return self.policy in ("am", "cam") and self.cardinality == "exact" and splitters == 1


@dataclass(frozen=True)
class KeyPartition:
    """What a user asks for: a policy (None: choose one), and how many workers and splitters."""

    partitioning: Partitioning | None = None
    workers: int | None = None
    """V; None: the session's shuffle partitions, or the workers of the running query"""
    splitters: int | None = None
    """the most splitters; None: the tasks that read"""

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("splitters", self.splitters)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidArgumentError(
                    f"{name}={value!r} is not a positive whole number",
                    hint="give a whole number above zero, or leave it out",
                )


AUTO_PARTITION = KeyPartition()


def key_partition(
    partition: str, choices: int | None, cardinality: str | None, workers: int | None, splitters: int | None
) -> KeyPartition:
    """Check the user's settings. Settings that the policy would not use are refused."""
    if partition == "auto":
        for name, given in (("choices", choices), ("cardinality", cardinality)):
            if given is not None:
                raise InvalidArgumentError(
                    f'{name}={given!r} does not apply to partition="auto", which uses two choices and exact counts',
                    hint=f'name the policy too: partition="cam", {name}={given!r}',
                )
        return KeyPartition(None, workers, splitters)
    policy = Partitioning(partition, 2 if choices is None else choices, cardinality or "exact")  # type: ignore[arg-type]
    if choices is not None and policy.policy not in WITH_CHOICES:
        raise InvalidArgumentError(
            f"choices={choices!r} does not apply to the policy {partition!r}, which has none",
            hint=f"leave it out, or use one of {', '.join(sorted(WITH_CHOICES))}",
        )
    if cardinality is not None and policy.policy not in COUNTING_KEYS:
        raise InvalidArgumentError(
            f"cardinality={cardinality!r} does not apply to the policy {partition!r}, which does not count keys",
            hint=f"leave it out, or use one of {', '.join(sorted(COUNTING_KEYS))}",
        )
    return KeyPartition(policy, workers, splitters)
