"""The disk under Postgres and Valkey full: a small file system of their own, filled to its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
import redis

from tests.drills.behind import BehindProxies, open_behind
from tests.workers.floor import wait_until

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system"),
]

_SIZE = "160m"
_PIECE = bytes(64 * 1024)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of that size under the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="obd") as name:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=0755", "outbox-drill", name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if mounted.returncode != 0:
            pytest.skip(f"nothing may be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


@pytest.fixture
def works(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BehindProxies]:
    """The servers' data lie in their run folder, which is made where temporary ones are."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with open_behind(tmp_path, "worker", "beat") as opened:
        opened.warm_up()
        yield opened


@contextmanager
def _full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(_PIECE)
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 512)
    yield
    filler.unlink()


def _is_full_for_postgres(works: BehindProxies) -> bool:
    try:
        works.sql("CREATE TABLE IF NOT EXISTS filled (piece text)")
        works.sql("INSERT INTO filled SELECT repeat('x', 960) FROM generate_series(1, 500)")
    except psycopg.OperationalError:
        return True
    return False


def _is_full_for_valkey(works: BehindProxies) -> bool:
    with redis.Redis.from_url(works.servers.redis_url) as client:
        try:
            client.set("filled", os.urandom(65536))
        except redis.RedisError:
            return True
    return False


def test_a_full_disk_loses_nothing_that_was_enqueued(
    works: BehindProxies, small_disk: Path
) -> None:
    """With answers to be written down. Enqueuers are told; what they were told was kept, settles
    once there is room."""
    account = works.account()
    works.sandbox.fault("slow", account=account, after_s=1, attempts=[1])
    ids = works.enqueue(account, 30)
    works.wait_for_posts(account, 10)
    with _full(small_disk):
        wait_until(lambda: _is_full_for_postgres(works) and _is_full_for_valkey(works))
        wait_until(lambda: _is_refused(works, account, ids))
        end = time.monotonic() + works.settings.policy.lease_s
        wait_until(lambda: time.monotonic() > end)
    if not _answers(works):  # it ends where its log finds no room
        works.servers.kill_postgres()
        works.servers.start_postgres()
    works.settle(account, ids, works.now())
    assert works.stack.dead() == []


def _is_refused(works: BehindProxies, account: str, ids: list[UUID]) -> bool:
    """Whether a caller is told that nothing was recorded; else it was."""
    try:
        ids += works.enqueue(account, 10)
    except psycopg.OperationalError:
        return True
    return False


def _answers(works: BehindProxies) -> bool:
    try:
        return bool(works.sql("SELECT 1 AS one"))
    except psycopg.OperationalError:
        return False
