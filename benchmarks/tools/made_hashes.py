"""Generate perceptual hashes of many images, of which many or all may be near-duplicates."""

from typing import Literal

import numpy as np
import numpy.typing as npt

HashKind = Literal["random", "equal", "clustered", "templates"]
NUM_SPLITS = 3
CLUSTER_BITS = 4  # largest distance from the centre; all are one group
NUM_TEMPLATES = 20


def make_hashes(kind: HashKind, count: int) -> npt.NDArray[np.uint64]:
    """Return uint64 [count].

    Args:
        kind: "random" has no near-duplicates; "equal" are images with one hash, such as black frames with text;
            "clustered" are up to `CLUSTER_BITS` from one centre; "templates" around `NUM_TEMPLATES` centres.
    """
    random = np.random.default_rng(0)
    if kind == "random":
        return random.integers(0, 2**64, count, dtype=np.uint64)
    centres = random.integers(0, 2**64, NUM_TEMPLATES if kind == "templates" else 1, dtype=np.uint64)
    hashes: npt.NDArray[np.uint64] = centres[random.integers(0, len(centres), count)]
    for _ in range(0 if kind == "equal" else CLUSTER_BITS):
        hashes = hashes ^ (np.uint64(1) << random.integers(0, 64, count).astype(np.uint64))
    return hashes


def search_near_duplicates(kind: HashKind, count: int) -> int:
    """Search near-duplicates among `count` hashes as DatasetValidator does, and return the number of groups."""
    from detloom.components.similarity.near_duplicates import find_near_duplicates

    split_indices_N = np.arange(count) % NUM_SPLITS
    return find_near_duplicates(make_hashes(kind, count), split_indices_N, max_distance=5, train_index=0).num_groups
