"""What the control groups of this process allow: CPU quota and memory, both hierarchies (v1 and v2), no torch.

A limit may stand on the process's own group or on any group above it, so every level is read and the tightest counts.
Files that are absent or not readable mean: no limit known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

_UNLIMITED = 1 << 60
"""v1 writes "no limit" as a number near 2^63, rounded down to a page."""


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """CPU time allowed per unit of wall time, in cores (1.5: one and a half), or None where nothing limits it."""
    quotas = []
    for group in _groups("", root, membership):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        quotas.append(_ratio(quota, period))
    for group in _groups("cpu", root, membership):
        quotas.append(_ratio(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes this process may still take before its group's limit, or None where nothing limits it.

    File pages that the kernel would drop first (`inactive_file`) count as free.
    """
    left = []
    for group in _groups("", root, membership):
        left.append(_left(group, "memory.max", "memory.current", "inactive_file"))
    for group in _groups("memory", root, membership):
        left.append(_left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    return min((bytes_ for bytes_ in left if bytes_ is not None), default=None)


def _groups(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Folders of this process's group and of those above it; controller "" is the v2 hierarchy.

    In a container the membership may name a path of the host that is not mounted here: the mount's root, which is
    then the container's own group, comes last in any case.
    """
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        for base in (root / controllers, root / controller) if controller else (root, root / "unified"):
            if not base.is_dir():
                continue
            group = PurePosixPath(path.lstrip("/"))
            for level in (group, *group.parents):
                if ".." not in level.parts:
                    yield base / level
            break


def _left(group: Path, limit: str, used: str, droppable: str) -> int | None:
    allowed = _integer(_text(group / limit))
    current = _integer(_text(group / used))
    if allowed is None or current is None or allowed >= _UNLIMITED:
        return None
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == droppable:
            current -= _integer(value) or 0
    return max(0, allowed - max(0, current))


def _ratio(quota: str, period: str) -> float | None:
    used, each = _integer(quota), _integer(period)
    return used / each if used is not None and each and used > 0 else None


def _integer(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
