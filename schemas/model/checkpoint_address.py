"""The address of an archive with a checkpoint: `https://host/model.tar.gz`, with `#sha256=...` to fix its content."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import HIDDEN, hide_secrets, redact

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_HASH = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
_SCHEMES = ("https://", "http://")


@dataclass(frozen=True)
class ArchiveAddress:
    """An address and the expected content.

    Attributes:
        url: without the part after `#`.
        sha256: of the archive, in lower case; empty accepts any content.
    """

    url: str
    sha256: str = ""

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.url}#sha256={self.sha256}" if self.sha256 else self.url


def is_web_address(text: str) -> bool:
    """Return True if the text begins with https:// or http://."""
    return text.strip().lower().startswith(_SCHEMES)


def parse_archive_address(text: str) -> ArchiveAddress:
    """Parse an address for which `is_web_address` is True.

    Raises:
        InputError: without the name of the setting, for an address that cannot be downloaded safely.
    """
    text = text.strip()
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # raises ValueError for an invalid port
    except ValueError as error:
        raise InputError(f"got '{redact(text)}', which is not a valid address ({error}).") from None
    if not host or not text.isprintable() or " " in text:
        raise InputError(f"got '{redact(text)}', allowed: https://HOST/PATH/NAME.tar.gz.")
    url, _, fragment = text.partition("#")
    if "@" in parts.netloc or "?" in url or hide_secrets(url) != url:
        raise InputError(
            f"got '{redact(text)}' with a user or parameters, allowed: an address without them, because metadata and "
            "logs contain it."
        )
    if not parts.path.lower().endswith(ARCHIVE_SUFFIXES):
        raise InputError(
            f"got '{redact(text)}', allowed: the address of an archive ({', '.join(ARCHIVE_SUFFIXES)}); download other "
            "files yourself, and give their path."
        )
    match = _HASH.fullmatch(fragment)
    if fragment and match is None:
        shown = fragment if fragment.lower().startswith("sha256=") else HIDDEN
        raise InputError(f"got '#{redact(shown)}' at the end of {url}, allowed: #sha256= and 64 hexadecimal digits.")
    if parts.scheme.lower() == "http" and match is None:
        raise InputError(
            f"got '{redact(text)}', allowed: https://{url.partition('://')[2]}, or http with #sha256=... at the end, "
            "because others on the network can change what http transfers."
        )
    return ArchiveAddress(url, match[1].lower() if match else "")
