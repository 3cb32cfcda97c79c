"""Wall-clock limits: what drips is cut, and nobody waits longer than was said."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.contract import TooLate
from outbox.outcomes import Unreadable
from tests.vendors.raw_server import RawServer
from tests.vendors.stripe_calls import at
from vendors.registry import build
from vendors.watchdog import Cut, Watchdog


class Told(Cut):
    """Says when it was cut."""

    def __init__(self) -> None:
        super().__init__()
        self.was_cut = threading.Event()

    def cut(self) -> None:
        super().cut()
        self.was_cut.set()


def test_an_earlier_deadline_that_comes_later_is_kept() -> None:
    late, early = Told(), Told()
    with Watchdog() as watchdog:
        watchdog.watch(late, 3600)
        watchdog.watch(early, 0.01)
        assert early.was_cut.wait(10)
        assert not late.was_cut.is_set()
    assert late.was_cut.is_set(), "whoever closes it waits for nobody"


def test_a_call_that_returned_in_time_is_not_cut() -> None:
    call = Told()
    with Watchdog() as watchdog:
        assert watchdog.forget(watchdog.watch(call, 3600))
    assert not call.was_cut.is_set()


def test_after_its_limit_nothing_more_is_asked() -> None:
    with Watchdog() as watchdog, watchdog.limit(0.01) as cutoff:
        first, second = socket.socketpair()
        second.settimeout(10)
        cutoff.attach(first)
        assert second.recv(1) == b"", "the socket is shut from the other thread"
        with pytest.raises(TooLate):
            cutoff.attach(first)
        first.close()
        second.close()


def test_whose_an_account_is_is_not_waited_for_for_ever() -> None:
    vendor = build("stripe", connect_s=0.1, read_s=0.3)
    stop = threading.Event()

    def drip(connection: socket.socket, _: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(0.02):
            connection.sendall(b" ")

    with ThreadPoolExecutor(1) as pool, RawServer(drip) as server:
        asked = pool.submit(vendor.whoami, at(server.url))
        assert isinstance(asked.result(10), Unreadable)
        stop.set()
    vendor.close()
