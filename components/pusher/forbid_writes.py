"""Landlock of the Linux kernel: forbid this process and its children to write outside of some folders.

This module needs the standard library only, because `load_check.py` passes its text to a process without detloom.
Numbers are those of linux/landlock.h and, the same on all architectures, of the system calls.
"""

import ctypes
import os
import stat

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION, _RULE_PATH_BENEATH, _SET_NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make entries of any kind


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def landlock_version() -> int:
    """Return the version of Landlock; 0 if the kernel has none or does not allow it."""
    try:
        return max(0, _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _QUERY_VERSION))
    except (OSError, AttributeError):
        return 0


def forbid_writes(*allowed: str) -> None:
    """Allow writing below these existing paths only, from now on.

    Raises:
        OSError: the kernel does not do it.
    """
    version = landlock_version()
    on_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    handled = on_files | _CHANGE_FOLDERS | (_REFER if version >= 2 else 0)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(handled)), ctypes.c_size_t(8), 0)
    for path in filter(os.path.exists, allowed):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = handled if stat.S_ISDIR(os.fstat(folder).st_mode) else on_files
        _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(_PathRule(rights, folder)), 0)
        os.close(folder)
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "Landlock is not available")
    return result
