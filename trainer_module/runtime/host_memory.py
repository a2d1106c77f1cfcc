"""Memory that this process may use. Imports no TensorFlow."""

from pathlib import Path

import psutil

_UNLIMITED_BYTES = 2**60  # cgroup v1 writes about 2**63 for "no limit"


def process_bytes() -> int:
    """Return the memory of this process (resident set)."""
    return int(psutil.Process().memory_info().rss)


def usable_bytes() -> int:
    """Return the memory that this process may use in total: free plus used memory, or its cgroup's limit if lower."""
    usable = int(psutil.virtual_memory().available) + process_bytes()
    limit = cgroup_limit_bytes()
    return usable if limit is None else min(usable, limit)


def cgroup_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit of the process's cgroups (versions 1 and 2); None without a limit."""
    files = ("memory.max", "memory.limit_in_bytes")  # of version 2 and 1
    limits = [_read_limit(folder / file) for folder in cgroup_folders("memory", root) for file in files]
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED_BYTES), default=None)


def cgroup_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the process's cgroups (versions 1 and 2) and of those above them; they need not exist."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        of_version_2 = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        for mount in (f"sys/fs/cgroup/{controller}",) if controllers else of_version_2:
            top = root / mount
            group = top / path.lstrip("/")  # inside a container it may be missing; then only the top exists
            folders += [folder for folder in (group, *group.parents) if folder >= top]
    return folders


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # version 2 writes "max" for no limit


def format_bytes(num_bytes: float) -> str:
    """Format with three digits in decimal units, such as "1.94 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB" if num_bytes < 999.5 else f"{num_bytes:.0f} TB"
