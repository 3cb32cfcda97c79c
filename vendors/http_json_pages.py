"""A list at a recipe's vendor, page after page to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

from outbox.contracts.recipe import LookUpSpec, Paging
from vendors.http_json_links import next_link
from vendors.http_json_reading import NOT_JSON, at, parsed, text_at
from vendors.reads import Unread, check, date_of
from vendors.wire import Answer

MAX_PAGES = 200

Query = list[tuple[str, str]]
Get = Callable[[str, Query], Answer]


def documents(
    get: Get, base: str, path: str, query: Query, spec: LookUpSpec, most: int
) -> Iterator[tuple[Any, int]]:
    """Everything on the list with the vendor's time of its page, from ``path`` at the address
    ``base``. Raises ``Unread`` before its end if it must, and after ``most`` pages."""
    assert spec.items is not None, "a look-up that is no list"
    paging = spec.paging
    place, extra = path, _first_page(paging)
    before: Any = None
    for number in range(most):
        asked = extra if paging and paging.link and number else [*query, *extra]
        answer = get(place, asked)
        document = parsed(answer.body or b"")
        check(answer, readable=document is not NOT_JSON)
        found = at(document, spec.items)
        if not isinstance(found, list):
            raise Unread("a list that cannot be read")
        for one in found:
            yield one, date_of(answer.headers)
        if paging is None:
            return
        if paging.link:
            following = _linked(answer, base, path)
        else:
            following = _following(paging, number, document, found, path)
        if following is None:
            return
        # A list that pays no heed to its cursor or number would be read in circles.
        seen = following if paging.first is None else found
        if seen == before:
            raise Unread("a list that does not go on")
        before = seen
        place, extra = following
    raise Unread("too many pages")


def _following(
    paging: Paging, number: int, document: Any, found: list[Any], path: str
) -> tuple[str, Query] | None:
    if paging.first is not None:
        after = str(paging.first + number + 1) if found else ""
    else:
        after = text_at(document, paging.cursor)
    return (path, [(paging.parameter, after)]) if after else None


def _first_page(paging: Paging | None) -> Query:
    if paging is None or paging.first is None:
        return []
    return [(paging.parameter, str(paging.first))]


def _linked(answer: Answer, base: str, path: str) -> tuple[str, Query] | None:
    try:
        link = next_link(answer.headers.get("Link") or "")
        if link is None:
            return None
        ours, parts = urlsplit(base), urlsplit(urljoin(base + path, link))
    except ValueError:
        raise Unread("a Link header that cannot be read") from None
    if (parts.scheme, parts.netloc) != (ours.scheme, ours.netloc) or not parts.path.startswith(
        ours.path + "/"
    ):
        # The credential goes to the vendor's address and to no other.
        raise Unread("a list that goes on elsewhere")
    return parts.path.removeprefix(ours.path), parse_qsl(parts.query, keep_blank_values=True)
