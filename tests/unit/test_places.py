"""The look-up threads, shared out by vendor."""

from __future__ import annotations

import threading

from resolvers.places import Places


def test_a_vendor_that_holds_its_share_leaves_the_others_theirs() -> None:
    places = Places(16, ["a", "b", "b"])
    for _ in range(8):
        assert "a" in places.room(("a", "b")).vendors
        places.take("a")
    room = places.room(("a", "b"))
    assert (room.vendors, room.places, room.is_all) == (("b",), 8, False)
    places.give_back("a")
    room = places.room(("a", "b"))
    assert (room.vendors, room.places, room.is_all) == (("a", "b"), 1, True)


def test_one_vendor_has_them_all_and_of_very_many_each_has_one() -> None:
    assert Places(16, ["a"]).room(("a",)).places == 16
    many = [f"v{n}" for n in range(40)]
    places = Places(16, many)
    assert places.room(many).places == 1
    for name in many[:16]:
        places.take(name)
    assert places.room(many).places == 0


def test_who_waits_goes_on_once_a_look_has_ended_though_it_ended_before() -> None:
    places = Places(1, ["a"])
    places.take("a")
    ended = places.room(("a",)).ended
    assert not places.wait(ended, 0.0)
    places.give_back("a")
    assert places.wait(ended, 0.0)
    places.take("a")
    ended = places.room(("a",)).ended
    thread = threading.Thread(target=lambda: places.give_back("a"))
    thread.start()
    assert places.wait(ended, 60.0)
    thread.join()
