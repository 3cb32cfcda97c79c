"""What reached the vendor: one record for each call, by the product and by its peers.

Of the standard library alone, because the peers run in an environment of their own.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Key, whose write it is, the body's hash, and when its first byte arrived (CLOCK_MONOTONIC, which
# all processes of a machine share, in ns).
_RECORD = struct.Struct("32s16s16sQ")


@dataclass(frozen=True)
class Effect:
    """One call as the vendor saw it; ``at_ns`` by the machine's monotonic clock."""

    key: bytes
    owner: bytes
    body: bytes
    at_ns: int


class Ledger:
    """The vendor's own record of its calls, in a folder. Each process writes a file of its own, in
    one system call for each effect: what was written is there though the process is killed."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._pid, self._file = 0, -1
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._owners: set[bytes] = set()

    def add(self, key: bytes, owner: bytes, body: object) -> None:
        """A call arrived. ``body`` is hashed as it is shown."""
        if os.getpid() != self._pid:
            path = self._folder / f"effects-{os.getpid()}"
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._pid = os.getpid()
        digest = hashlib.blake2b(repr(body).encode(), digest_size=16).digest()
        os.write(self._file, _RECORD.pack(key, owner, digest, time.monotonic_ns()))

    def __iter__(self) -> Iterator[Effect]:
        for path in sorted(self._folder.glob("effects-*")):
            whole = path.read_bytes()
            whole = whole[: len(whole) - len(whole) % _RECORD.size]
            yield from (Effect(*fields) for fields in _RECORD.iter_unpack(whole))

    def __len__(self) -> int:
        """How many calls there were, repeated ones too."""
        sizes = (path.stat().st_size for path in self._folder.glob("effects-*"))
        return sum(size // _RECORD.size for size in sizes)

    def knows(self, owner: bytes) -> bool:
        """Whether any call of this owner's arrived. Reads only what came since it was asked last,
        or the look-ups of a long drain would cost more than all else of it."""
        with self._lock:
            for entry in os.scandir(self._folder):
                if entry.name.startswith("effects-"):
                    self._owners.update(self._new_owners(entry))
            return owner in self._owners

    def _new_owners(self, entry: os.DirEntry[str]) -> Iterator[bytes]:
        seen, size = self._seen.get(entry.name, 0), entry.stat().st_size
        size -= size % _RECORD.size
        if size > seen:
            with open(entry.path, "rb") as file:
                file.seek(seen)
                records = file.read(size - seen)
            self._seen[entry.name] = size
            yield from (fields[1] for fields in _RECORD.iter_unpack(records))

    def read(self, name: str) -> str:
        """What a run has put beside the record under that name; empty where nothing is."""
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Closes this process's file."""
        if self._pid == os.getpid():
            os.close(self._file)
        self._pid, self._file = 0, -1


def duplicates(effects: Iterable[Effect]) -> int:
    """Calls beyond the first of their key, and keys beyond the first of their owner."""
    keys: Counter[bytes] = Counter()
    owners: dict[bytes, set[bytes]] = defaultdict(set)
    for effect in effects:
        keys[effect.key] += 1
        owners[effect.owner].add(effect.key)
    again = sum(count - 1 for count in keys.values())
    return again + sum(len(known) - 1 for known in owners.values())


def changed_bodies(effects: Iterable[Effect]) -> int:
    """Keys that came with more than one body."""
    bodies: dict[bytes, set[bytes]] = defaultdict(set)
    for effect in effects:
        bodies[effect.key].add(effect.body)
    return sum(len(known) > 1 for known in bodies.values())
