"""What was told already. On one machine a run that failed is repeated as a whole, and so is Notifier."""

from absl import logging

from detloom.components.small_files import read_bytes, write_bytes

TOLD_FILE = "told.txt"  # lines of "message id, way"
MAX_ENTRIES = 1000  # the newest; older ones are of runs that nobody repeats
_MAX_BYTES = 1 << 20


class Told:
    """The messages that went out, by their ids, which are equal for the same event.

    Args:
        folder: that keeps the list over runs; None where there is none, and nothing is known.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        try:
            data = read_bytes(folder, TOLD_FILE, _MAX_BYTES) if folder else None
        except OSError as error:
            logging.warning("Notifier: %s cannot be read (%s).", TOLD_FILE, error.strerror)
            data = None
        self._entries = data.decode("utf-8", errors="replace").splitlines() if data else []

    def has(self, message_id: str, way: str) -> bool:
        return f"{message_id} {way}" in self._entries

    def add(self, message_id: str, way: str) -> None:
        """Remember it; where that fails, it is told again."""
        self._entries = [*self._entries, f"{message_id} {way}"][-MAX_ENTRIES:]
        if self._folder:
            try:
                write_bytes(self._folder, TOLD_FILE, "".join(f"{entry}\n" for entry in self._entries).encode())
            except OSError as error:
                logging.warning("Notifier: %s cannot be written (%s).", TOLD_FILE, error.strerror)
