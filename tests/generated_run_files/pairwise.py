"""Build run files that together contain every pair of options that one accepted run file can contain.

Random files show which options exist. A pair is possible if a random file has it, or if an option can be transplanted
into a file that has the other one and `config check` accepts the result. Each file of the cover starts with a missing
pair, and gets further options while they add missing pairs. Pairs in files that are run anyway are not missing.

An option that stops most runs before the training (`STOPPING`) hides the others: of a file with such options, only the
pairs with them count.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from run_file_generator import Choice, Plain, choices_in, complete, places_of, replaced, value_at, walk
from setting_values import STOPPING

from detloom.schemas.reading.typed_dict import TYPE_KEY
from detloom.schemas.run_file.run_file import RunFile

NUM_RANDOM = 400
_FIRST_SEED = 1000
_FEW = 2000  # missing pairs, from which on options are added two at a time too


@dataclass(frozen=True)
class Cover:
    """The files to run besides those that are run anyway.

    Attributes:
        num_options: the number of different options.
        num_pairs: the number of pairs of options in all files that are run.
        num_excluded: the number of pairs that exclude each other.
    """

    files: list[Plain]
    num_options: int
    num_pairs: int
    num_excluded: int


class _Pairs:
    """The pairs of options of random files, and which of them are still missing.

    Attributes:
        options: all options, sorted; pairs are pairs of their numbers.
        possible: which pairs a file can have, symmetric [N, N].
        missing: which possible pairs no file has yet, symmetric [N, N].
    """

    def __init__(self, files: list[Plain]) -> None:
        found = [choices_in(plain) for plain in files]
        self.options = sorted(set().union(*found))
        self._numbers = {option: number for number, option in enumerate(self.options)}
        self._stops = np.array([stops(option) for option in self.options])
        # The source of an option is the first file that has it, preferably one that no other option stops.
        order = sorted(range(len(files)), key=lambda index: (sum(map(stops, found[index])), index), reverse=True)
        self._source = {self._numbers[option]: files[index] for index in order for option in found[index]}
        self._parts = [parts_of(option, self._source[number]) for number, option in enumerate(self.options)]
        self._file_of_pair: dict[tuple[int, int], Plain] = {}
        self.possible = np.zeros((len(self.options),) * 2, bool)
        for plain, choices in zip(files, found, strict=True):
            numbers = self._numbers_in(choices)
            self._file_of_pair |= {
                (numbers[i], numbers[j]): plain for i, j in np.argwhere(np.triu(self._counted(numbers), 1)).tolist()
            }
            self.possible[np.ix_(numbers, numbers)] |= self._counted(numbers)
        for i, j in np.argwhere(np.triu(~self.possible, 1)).tolist():
            self.possible[i, j] = self.possible[j, i] = self._combine(i, j) is not None
        np.fill_diagonal(self.possible, False)
        self.missing = self.possible.copy()

    def _numbers_in(self, choices: Iterable[Choice]) -> list[int]:
        return sorted(self._numbers[choice] for choice in choices if choice in self._numbers)

    def _counted(self, numbers: list[int]) -> npt.NDArray[np.bool_]:
        """Return which pairs of a file's options a run of it tries, symmetric [N, N]."""
        stops_N = self._stops[numbers]
        return stops_N[:, None] | stops_N if stops_N.any() else np.ones((len(numbers),) * 2, bool)

    def _num_new(self, numbers: list[int]) -> int:
        return int((self._counted(numbers) & self.missing[np.ix_(numbers, numbers)]).sum()) // 2

    def _num_new_with(self, numbers: list[int]) -> npt.NDArray[np.int64]:
        """Return for each option how many pairs it would add to a file with these options; 0 if it would stop it."""
        missing_ON, stops_N = self.missing[:, numbers], self._stops[numbers]
        if not stops_N.any():
            return np.where(self._stops, 0, missing_ON.sum(axis=1))
        return np.where(self._stops, missing_ON.sum(axis=1), missing_ON[:, stops_N].sum(axis=1))

    def _add(self, number: int, plain: Plain) -> tuple[Plain, list[int]] | None:
        """Transplant an option; return the tree and its options, or None."""
        made = transplant(self._parts[number], plain)
        return None if made is None else (made, self._numbers_in(choices_in(made)))

    def _combine(self, i: int, j: int) -> Plain | None:
        """Transplant one of two options into a file with the other, so that their pair counts; None if refused."""
        for wanted, kept in ((i, j), (j, i)):
            made = self._add(wanted, self._source[kept])
            if made is None or not {i, j} <= set(made[1]):
                continue
            if self._stops[[i, j]].any() or not self._stops[made[1]].any():
                return made[0]
        return None

    def cover(self, plain: Plain) -> None:
        numbers = self._numbers_in(choices_in(plain))
        self.missing[np.ix_(numbers, numbers)] &= ~self._counted(numbers)

    def next_file(self) -> Plain:
        """Return a file with the missing pair whose options have the most missing pairs, and with further options."""
        num_missing = self.missing.sum(axis=1)
        i, j = np.unravel_index((self.missing * (num_missing[:, None] + num_missing)).argmax(), self.missing.shape)
        pair = min(int(i), int(j)), max(int(i), int(j))
        plain = self._file_of_pair.get(pair) or self._combine(*pair)
        assert plain is not None
        return _without_checkpoint(self._fill(plain))

    def _fill(self, plain: Plain) -> Plain:
        """Transplant options with new pairs into a file, one by one and then two at a time."""
        numbers = self._numbers_in(choices_in(plain))
        tried: set[int] = set()
        while True:
            num_new = self._num_new_with(numbers)
            num_new[[*numbers, *tried]] = 0
            best = int(num_new.argmax())
            if not num_new[best]:
                break
            tried.add(best)
            plain, numbers = self._add_if_new([best], plain, numbers)
        pairs = np.argwhere(np.triu(self.missing)).tolist()
        for pair in pairs if len(pairs) <= _FEW else ():
            if not set(pair) <= set(numbers):
                plain, numbers = self._add_if_new(pair, plain, numbers)
        return plain

    def _add_if_new(self, added: list[int], plain: Plain, numbers: list[int]) -> tuple[Plain, list[int]]:
        """Return a file and its options, with further options if `config check` accepts them and pairs are gained."""
        made: tuple[Plain, list[int]] | None = (plain, numbers)
        for number in added:
            if made is not None and number not in made[1]:
                made = self._add(number, made[0])
        if made is None or self._num_new(made[1]) <= self._num_new(numbers):
            return plain, numbers
        return made


def _without_checkpoint(plain: Plain) -> Plain:
    """Return a file that trains from random weights, because a transplant may have changed the network; if accepted."""
    return complete(replaced(plain, {("train", "fine_tune_checkpoint"): ""})) or plain


def cover_all_pairs(generate: Callable[[int], Plain], run_anyway: Iterable[Plain] = ()) -> Cover:
    """Return the cover; the same arguments give the same cover.

    Args:
        generate: returns the random file of a seed.
        run_anyway: files that need not be in the cover, because they are run too.
    """
    known = [plain for plain in run_anyway if complete(plain)]
    files = (generate(_FIRST_SEED + index) for index in range(NUM_RANDOM))
    pairs = _Pairs([*known, *(plain for plain in files if complete(plain))])
    for plain in known:
        pairs.cover(plain)
    chosen: list[Plain] = []
    while pairs.missing.any():
        chosen.append(pairs.next_file())
        pairs.cover(chosen[-1])
    num_options, num_pairs = len(pairs.options), int(pairs.possible.sum()) // 2
    return Cover(chosen, num_options, num_pairs, num_options * (num_options - 1) // 2 - num_pairs)


def stops(option: Choice) -> bool:
    """Return whether an option stops most runs before the training."""
    return option.option in STOPPING.get(option.setting, ()) or (
        option.setting.endswith(".severity") and option.option == "fail"
    )


@dataclass(frozen=True)
class Part:
    """A setting's value that brings an option into a file, or a further member of its list.

    Attributes:
        parameter: the name of the setting, as `Setting.parameter`.
    """

    parameter: str
    value: Any
    is_member: bool


def parts_of(option: Choice, source: Plain) -> list[Part]:
    """Return the values that bring an option from a file into another, beginning with the smallest."""
    parameters = {setting.path: setting.parameter for setting in walk(RunFile, source)}
    parts: list[Part] = []
    for path in places_of(source, option):
        value = value_at(source, path)
        if isinstance(value, list):
            path = (*path, next(index for index, item in enumerate(value) if item[TYPE_KEY] == option.option))
        list_length = next((length for length, key in enumerate(path) if isinstance(key, int)), None)
        for length in range(len(path) if list_length is None else list_length, 0, -1):
            is_member = length == list_length
            section = value_at(source, path[: length + 1] if is_member else path[:length])
            if path[:length] in parameters:
                part = Part(parameters[path[:length]], section, is_member)
                parts += [part] if part not in parts else []
    return parts


def transplant(parts: Iterable[Part], target: Plain) -> Plain | None:
    """Put the first of the values into a file whose setting the file has and with which `config check` accepts it.

    Returns:
        The tree with all values; None if there is no such value.
    """
    here = {setting.parameter: setting.path for setting in reversed(list(walk(RunFile, target)))}
    for part in parts:
        if (place := here.get(part.parameter)) is not None:
            value = [*value_at(target, place), part.value] if part.is_member else part.value
            made = complete(replaced(target, {place: value}))
            if made is not None:
                return made
    return None
