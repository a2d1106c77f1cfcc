"""Which split a record goes to, where the data set does not say: by a stable hash, or with the mix of classes kept."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping


def hash_fraction(text: str, seed: int) -> float:
    """A number from 0 up to 1 that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_by_hash(group: str, split_ratios: Mapping[str, float], seed: int) -> str:
    """The split of all records of a group: the same whatever other records there are."""
    fraction = hash_fraction(group, seed)
    upper = 0.0
    for split, ratio in split_ratios.items():
        upper += ratio
        if fraction < upper:
            return split
    return split  # the ratios add up to 1 only within rounding


def split_stratified(
    groups: Iterable[tuple[str, int, int]], split_ratios: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Assign groups one after the other, each to the split that lacks most, in its stratum and overall.

    A greedy form of iterative stratification (Sechidis, Tsoumakas, Vlahavas, "On the Stratification of Multi-Label
    Data", 2011): an image counts for its rarest class only, and rare classes come first.

    Args:
        groups: (group, stratum, number of records), ordered by stratum and within it by a hash.

    Yields:
        (group, split), in the order given.
    """
    overall = dict.fromkeys(split_ratios, 0)
    in_stratum = dict.fromkeys(split_ratios, 0)
    current: int | None = None
    for group, stratum, num_records in groups:
        if stratum != current:
            current, in_stratum = stratum, dict.fromkeys(split_ratios, 0)
        all_overall = sum(overall.values()) + num_records
        all_in_stratum = sum(in_stratum.values()) + num_records
        lacking = {
            split: ratio * (all_overall + all_in_stratum) - overall[split] - in_stratum[split]
            for split, ratio in split_ratios.items()
        }
        split = max(lacking, key=lambda name: lacking[name])  # the first of equals
        overall[split] += num_records
        in_stratum[split] += num_records
        yield group, split
