"""Build run files that together contain every pair of options that one accepted run file can contain.

Random files show which options exist. Each file of the cover starts as the random file with the most new pairs, and
gets further options while they add new pairs: an option is transplanted from a file that has it. When no random file
has a new pair, a file starts with one pair that is still missing. If `config check` refuses both transplants of a pair,
or the transplant removes the other option, the pair excludes itself: it is counted, not run. An option that stops most
runs before the training (`STOPPING`) hides the others: of a file with such options, only the pairs with them count.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from run_file_generator import Choice, Plain, choices_in, complete, places_of, replaced, value_at, walk
from setting_values import STOPPING

from detloom.schemas.reading.typed_dict import TYPE_KEY
from detloom.schemas.run_file.run_file import RunFile

NUM_RANDOM = 400
_FIRST_SEED = 1000

_PATIENCE = 60  # failed transplants in succession after which a file is full


@dataclass(frozen=True)
class Cover:
    """The files to run; the numbers of options, of pairs in the files, and of pairs that exclude each other."""

    files: list[Plain]
    num_options: int
    num_pairs: int
    num_excluded: int


class _Pairs:
    """The pairs that are covered by now, as a matrix."""

    def __init__(self, files: list[Plain]) -> None:
        self.files, self.found = files, [choices_in(plain) for plain in files]
        self.options = sorted(set().union(*self.found))
        self._numbers = {option: number for number, option in enumerate(self.options)}
        self._stops = np.array([stops(option) for option in self.options])
        # The source of an option is the first file that has it, preferably one that no other option stops.
        order = sorted(range(len(files)), key=lambda index: (sum(map(stops, self.found[index])), index), reverse=True)
        self._source = {option: files[index] for index in order for option in self.found[index]}
        self.is_covered = np.eye(len(self.options), dtype=bool)

    def _counted(self, numbers: list[int]) -> npt.NDArray[np.bool_]:
        """Return which pairs of a file's options a run of it tries, symmetric [N, N]."""
        stops_N = self._stops[numbers]
        return stops_N[:, None] | stops_N if stops_N.any() else np.ones((len(numbers),) * 2, bool)

    def num_new(self, numbers: list[int]) -> int:
        return int((self._counted(numbers) & ~self.is_covered[np.ix_(numbers, numbers)]).sum()) // 2

    def numbers_in(self, choices: Iterable[Choice]) -> list[int]:
        return sorted(self._numbers[choice] for choice in choices if choice in self._numbers)

    def _missing_with(self, numbers: list[int]) -> npt.NDArray[np.int64]:
        """Return for each option how many pairs it would add to a file with these options; 0 if it would stop it."""
        is_missing_ON, stops_N = ~self.is_covered[:, numbers], self._stops[numbers]
        if not stops_N.any():
            return np.where(self._stops, 0, is_missing_ON.sum(axis=1))
        return np.where(self._stops, is_missing_ON.sum(axis=1), is_missing_ON[:, stops_N].sum(axis=1))

    def cover(self, numbers: list[int]) -> None:
        self.is_covered[np.ix_(numbers, numbers)] |= self._counted(numbers)

    def add(self, number: int, plain: Plain) -> tuple[Plain, list[int]] | None:
        """Transplant an option; return the tree and its options, or None."""
        made = transplant(self.options[number], self._source[self.options[number]], plain)
        return None if made is None else (made, self.numbers_in(choices_in(made)))

    def start(self, i: int, j: int) -> tuple[Plain, list[int]] | None:
        """Return a tree with two options, or None."""
        for wanted, kept in ((i, j), (j, i)):
            made = self.add(wanted, self._source[self.options[kept]])
            if made is None or not {i, j} <= set(made[1]):
                continue
            if self._stops[[i, j]].any() or not self._stops[made[1]].any():
                return made
        return None

    def fill(self, plain: Plain, numbers: list[int]) -> tuple[Plain, list[int]]:
        """Transplant further options, those with the most new pairs first, as long as that adds new pairs."""
        tried: set[int] = set()
        failures = 0
        while failures < _PATIENCE:
            missing = self._missing_with(numbers)
            missing[[*numbers, *tried]] = 0
            best = int(missing.argmax())
            if not missing[best]:
                break
            tried.add(best)
            made = self.add(best, plain)
            if made is not None and self.num_new(made[1]) > self.num_new(numbers):
                plain, numbers = made
                failures = 0
            else:
                failures += 1
        return plain, numbers


def cover_all_pairs(generate: Callable[[int], Plain]) -> Cover:
    """Return the cover; the same function `generate` gives the same cover."""
    files = [generate(_FIRST_SEED + index) for index in range(NUM_RANDOM)]
    pairs = _Pairs([plain for plain in files if complete(plain)])
    chosen: list[Plain] = []

    def choose(plain: Plain, numbers: list[int]) -> None:
        plain, numbers = pairs.fill(plain, numbers)
        pairs.cover(numbers)
        chosen.append(plain)

    numbers_of_files = [pairs.numbers_in(choices) for choices in pairs.found]
    while True:  # a file can be chosen again, because a transplant may replace some of its options
        best = max(range(len(pairs.files)), key=lambda index: pairs.num_new(numbers_of_files[index]))
        if not pairs.num_new(numbers_of_files[best]):
            break
        choose(pairs.files[best], numbers_of_files[best])
    for i, j in np.argwhere(np.triu(~pairs.is_covered)):
        if pairs.is_covered[i, j]:
            continue
        made = pairs.start(int(i), int(j))
        if made is not None:
            choose(*made)
    num_options, num_pairs = len(pairs.options), int(np.triu(pairs.is_covered, 1).sum())
    return Cover(chosen, num_options, num_pairs, num_options * (num_options - 1) // 2 - num_pairs)


def stops(option: Choice) -> bool:
    """Return whether an option stops most runs before the training."""
    return option.option in STOPPING.get(option.setting, ()) or (
        option.setting.endswith(".severity") and option.option == "fail"
    )


def transplant(option: Choice, source: Plain, target: Plain) -> Plain | None:
    """Copy the value of an option's setting from one tree into another.

    If the setting is in a member of a list, that member is appended. If the target lacks the setting, the smallest
    section of the source that it has is copied.

    Returns:
        The tree with all values; None if `config check` refuses it, or the target has no such place.
    """
    names = {setting.path: setting.name for setting in walk(RunFile, source)}
    here = {setting.name: setting.path for setting in reversed(list(walk(RunFile, target)))}
    for path in places_of(source, option):
        value = value_at(source, path)
        if isinstance(value, list):
            path = (*path, next(index for index, item in enumerate(value) if item[TYPE_KEY] == option.option))
        length = next((length for length, key in enumerate(path) if isinstance(key, int)), len(path))
        members = [value_at(source, path[: length + 1])] if length < len(path) else []
        if members and names[path[:length]] in here:
            place = here[names[path[:length]]]
            section = [*value_at(target, place), *members]
        else:
            length = next(length for length in range(length, 0, -1) if names.get(path[:length]) in here)
            place = here[names[path[:length]]]
            section = value_at(source, path[:length])
        made = complete(replaced(target, {place: copy.deepcopy(section)}))
        if made is not None:
            return made
    return None
