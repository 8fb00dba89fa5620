"""Which worker gets which key: the policies of paper 3, table 2, as plain values.

A keyed aggregate runs in three stages: *partition* the tuples over V workers, *evaluate* on each worker what it got,
and *aggregate* the partial results. Spreading the tuples of a key makes the second stage even and the third expensive;
each policy is a point between. Every key has d candidate workers, which its hash gives.

| policy | a tuple goes to | splits keys |
|---|---|---|
| sh  | the next worker, in turn | over all workers |
| fld | the first candidate | never |
| pk  | the candidate with the fewest tuples | over d workers |
| cm  | the candidate with the fewest keys | over d workers |
| am  | the candidate that has the key; a new key: that with the fewest keys | never, within a splitter |
| cam | the candidate that has the key; a new key: that with the fewest tuples | never, within a splitter |
| lm  | the candidate with the least mix of both loads (equation 9) | over d workers |
| heavy | a key of the shared table: where that says; any other: the first candidate | never |

`heavy` is not in the paper: a table of the keys that had the most tuples in the last epoch, the same for all splitters.

What is counted is counted per window and forgotten when the window ends. Which keys a worker has is known exactly
(sets of key hashes), or estimated with HyperLogLog (`-H`) in memory that does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anabranch.errors import InvalidArgumentError

Policy = Literal["sh", "fld", "pk", "cm", "am", "cam", "lm", "heavy"]
Cardinality = Literal["exact", "hll"]

POLICIES: tuple[Policy, ...] = get_args(Policy)
PAPER: tuple[Policy, ...] = POLICIES[:-1]
"""Those of the paper: all but `heavy`."""
COUNTING_KEYS: frozenset[Policy] = frozenset({"cm", "am", "cam", "lm"})
"""Policies that know which keys, or how many, a worker has."""
WITH_CHOICES: frozenset[Policy] = COUNTING_KEYS | {"pk"}

_NAMES: dict[Policy, str] = {
    "sh": "SH", "fld": "FLD", "pk": "PK", "cm": "CM", "am": "AM", "cam": "cAM", "lm": "LM", "heavy": "heavy",
}  # fmt: skip


@dataclass(frozen=True)
class Partitioning:
    """A policy with its parameters. `choices` is d; `balance` is p of equation 9, the share of tuples in LM's load."""

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
                f"cardinality={self.cardinality!r}", hint='say "exact" (sets of keys) or "hll" (HyperLogLog)'
            )
        if self.cardinality == "hll" and self.policy not in COUNTING_KEYS:
            raise InvalidArgumentError(
                f'cardinality="hll" with the policy {self.policy!r}, which does not count keys',
                hint=f"leave it out, or take one of {', '.join(sorted(COUNTING_KEYS))}",
            )
        if not 0.0 <= self.balance <= 1.0:
            raise InvalidArgumentError(f"balance={self.balance!r}", hint="p of equation 9 lies between 0 and 1")

    @property
    def label(self) -> str:
        """As in the paper's table 2: ``cAM-2``, ``LM-2-H``, ``FLD-1``, ``SH-w``."""
        if self.policy in WITH_CHOICES:
            return f"{_NAMES[self.policy]}-{self.choices}{'-H' if self.cardinality == 'hll' else ''}"
        return {"sh": "SH-w", "fld": "FLD-1"}.get(self.policy, self.policy)

    @classmethod
    def of_label(cls, label: str) -> Partitioning:
        """The other way round: so a ledger can keep the label."""
        name, *rest = label.split("-")
        policy = next((policy for policy, known in _NAMES.items() if known == name), None)
        if policy is None or (policy in WITH_CHOICES and not (rest and rest[0].isdigit())):
            raise InvalidArgumentError(
                f"{label!r} names no policy that places keys", hint=f"the policies are {', '.join(_NAMES.values())}"
            )
        if policy not in WITH_CHOICES:
            return cls(policy)
        return cls(policy, int(rest[0]), "hll" if rest[-1] == "H" else "exact")

    @property
    def by_key_alone(self) -> bool:
        """Whether a tuple's worker follows from its key, whatever came before it."""
        return self.policy in ("fld", "heavy")

    def keeps_keys_whole(self, splitters: int | None) -> bool:
        """Whether all tuples of a key within a window reach one worker, so that nothing is left to aggregate.

        Affinity is a splitter's own knowledge: several of them, which share nothing, may place a key differently. An
        estimate (HyperLogLog) may take a new key for a known one, and so split it.
        """
        if self.by_key_alone:
            return True
        return self.policy in ("am", "cam") and self.cardinality == "exact" and splitters == 1


@dataclass(frozen=True)
class KeyPartition:
    """What a user asks for: a policy or, with None, that one be chosen; and how many workers and splitters."""

    partitioning: Partitioning | None = None
    workers: int | None = None
    """V; None: as many as the session has shuffle partitions, or the running query has workers"""
    splitters: int | None = None
    """at most so many; None: the tasks that read"""

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("splitters", self.splitters)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidArgumentError(f"{name}={value!r}", hint="give a whole number above zero, or leave it out")


AUTO_PARTITION = KeyPartition()


def key_partition(
    partition: str, choices: int | None, cardinality: str | None, workers: int | None, splitters: int | None
) -> KeyPartition:
    """Check what a user wrote. What the policy would not use is refused."""
    if partition == "auto":
        for name, given in (("choices", choices), ("cardinality", cardinality)):
            if given is not None:
                raise InvalidArgumentError(
                    f'{name}={given!r} with partition="auto", which takes two choices and exact counts',
                    hint=f'name the policy too: partition="cam", {name}={given!r}',
                )
        return KeyPartition(None, workers, splitters)
    policy = Partitioning(partition, 2 if choices is None else choices, cardinality or "exact")  # type: ignore[arg-type]
    if choices is not None and policy.policy not in WITH_CHOICES:
        raise InvalidArgumentError(
            f"choices={choices!r} with the policy {partition!r}, which has none",
            hint=f"leave it out, or take one of {', '.join(sorted(WITH_CHOICES))}",
        )
    if cardinality is not None and policy.policy not in COUNTING_KEYS:
        raise InvalidArgumentError(
            f"cardinality={cardinality!r} with the policy {partition!r}, which does not count keys",
            hint=f"leave it out, or take one of {', '.join(sorted(COUNTING_KEYS))}",
        )
    return KeyPartition(policy, workers, splitters)
