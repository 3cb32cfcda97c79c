"""Keys for the tests, and codecs of a user's own."""

from __future__ import annotations

from base64 import b64encode


def key(id_: str) -> str:
    """One entry of a ring; the same id is always the same key."""
    return f"{id_}:{b64encode((id_ * 32)[:32].encode()).decode()}"


OLD, NEW = key("old"), key("new")
BOTH = f"{NEW},{OLD}"


class Reversing:
    """A codec of a user's own: it turns values round and writes the row's name in front."""

    writes = "reversing"
    reads = ("reversing",)

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        return bound_to + b"|" + plain[::-1]

    def open(self, name: str, sealed: bytes, bound_to: bytes) -> bytes:
        front, _, turned = sealed.partition(b"|")
        if front != bound_to:
            raise ValueError(sealed)
        return turned[::-1]


class Careless(Reversing):
    """One that does not care whose a value is."""

    def seal(self, plain: bytes, bound_to: bytes) -> bytes:
        return plain[::-1]

    def open(self, name: str, sealed: bytes, bound_to: bytes) -> bytes:
        return sealed[::-1]


def without_names() -> object:
    """A factory that forgot something."""
    return object()


def of_no_reads() -> object:
    codec = Reversing()
    codec.reads = ()  # type: ignore[assignment]
    return codec
