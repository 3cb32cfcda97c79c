"""A vendor's file that cannot be followed is refused as a whole, each fault with its line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outbox import Settings
from outbox.contracts import BUILT_IN, CONTRACTS, register, toml_lines
from outbox.contracts.keys import RENDERED_CHARS, key_in, owner_in, rendered
from outbox.contracts.recipe import Means, OnDuplicate
from outbox.contracts.recipes import RecipeFaults, read_recipe, read_recipes
from outbox.contracts.toml_lines import Lines
from outbox.errors import Invalid, SettingsError
from outbox.fingerprint import intent_id
from outbox.intent import draft
from outbox.tool import Scope, WriteTool
from tests.vendors.recipe_calls import contracts_as_before
from vendors.sandbox import RECIPES


def _text(vendor: str) -> str:
    return (RECIPES / f"{vendor}.toml").read_text()


def _faults(text: str) -> list[tuple[int, str]]:
    with pytest.raises(RecipeFaults) as refused:
        read_recipe(text)
    return refused.value.faults


def _line(text: str, marker: str) -> int:
    (line,) = [n for n, found in enumerate(text.splitlines(), 1) if found.startswith(marker)]
    return line


# (recipe, what is replaced, by what, how the line begins that is told, what is said of it)
MISTAKES = [
    ("payments", 'vendor = "payments"\n', "", "# Payments", "vendor is missing"),
    ("payments", 'vendor = "payments"', 'vendor = "Pay Ments"', "vendor", "small letters"),
    ("payments", 'base_url = "https', 'base_url = "ftp', "base_url", "http or https"),
    ("payments", "[headers]", "[header]", "[header]", "has no setting header"),
    ("payments", 'path = "/payments"\nfields', "fields", '[operations."payments.create"]',
     "path is missing"),
    ("payments", 'path = "/payments"\nfields', 'path = "/a/../b"\nfields', 'path = "/a',
     "a path such as"),
    ("payments", 'path = "/payments"\nfields', 'path = "/a?b=c"\nfields', 'path = "/a',
     "a path such as"),
    ("payments", 'method = "POST"\npath = "/payments"', 'method = "GET"\npath = "/payments"',
     'method = "GET"', "one of POST, PUT, PATCH, DELETE"),
    ("payments", "side_effect", "side_efect", "side_efect", "has no setting side_efect"),
    ("payments", 'money = ["amount", "currency"]', 'money = ["amount"]', "money",
     "two body fields"),
    ("payments", 'money = ["amount"', 'money = ["sum"', "money", "names sum, no field of it"),
    ("payments", 'path = "/payments/{payment_id}/cancel"', 'path = "/payments/{}/cancel"',
     'path = "/payments/{}', "may hold {names}"),
    ("payments", 'target = "payment_id"', 'target = "id"', "target", "no part of the path"),
    ("payments", 'target = "payment_id"', 'owner = "x"\ntarget = "payment_id"', "target",
     "with no owner"),
    ("payments", 'slot = "header"', 'slot = "headers"', "slot", "one of header, body"),
    ("payments", 'slot = "header"', 'slot = "none"', "window_s", "without a key: its slot is none"),
    ("payments", 'name = "Idempotency-Key"\n', "", "[key]", "key.name is missing"),
    ("payments", "max_length = 200", "max_length = 45", "rendering", "more than key.max_length"),
    ("payments", "window_s = 86400\n", "", "margin_s", "without key.window_s: no window"),
    ("payments", "margin_s = 7200", "margin_s = 86400", "margin_s", "shorter than key.window_s"),
    ("payments", "window_s = 86400", 'window_s = "a day"', "window_s",
     "a number of seconds above 0"),
    ("payments", 'on_duplicate = "replay"\n', "", "[key]", "key.on_duplicate is missing"),
    ("payments", 'on_duplicate = "replay"', 'on_duplicate = "latest"', "replay_header",
     'on_duplicate = "replay"'),
    ("payments", 'status = [200, 201]\nmeans = "landed"', 'status = [200, 201]\nmeans = "in_doubt"',
     "[[answers]]", "nothing could ever succeed"),
    ("payments", "status = 429", "status = 42", "status = 42", "an HTTP status such as 409"),
    ("payments", 'status = 429\nmeans = "throttled"', 'status = 401\nmeans = "throttled"',
     "[[answers]]", "is never reached"),
    ("payments", 'means = "pause"', 'means = "pause"\nstored = true', "stored",
     "for answers that mean refused"),
    ("payments", 'means = "refused"', 'means = "failed"', 'means = "failed"', "one of landed"),
    ("payments", 'status = [400, 404, 422]', 'status = [204, 422]', 'means = "refused"',
     "lets a bare 2xx mean refused"),
    ("payments", 'id = "id"\nowner', "owner", "[receipt]", "nothing proves that a write landed"),
    ("payments", 'owner = "idempotency_key"\n', "", "[receipt]", "could not tell what is ours"),
    ("payments", 'succeeded = "paid"', 'succeeded = "done"', "business = { succ", "one of paid"),
    ("payments", 'declined = ["rejected"]', 'declined = ["rejected"]\nopen = ["rejected"]',
     "[receipt]", "names rejected in two"),
    ("payments", 'owner = "idempotency_key"\nstatus = "status"\n', 'owner = "idempotency_key"\n',
     "declined", "receipt.status is missing"),
    ("payments", 'currency = "currency"\n', "", "[receipt]", "both amount and currency"),
    ("payments", "consistent = true\nlag_s = 0\n\n[retrieve]", "consistent = true\n\n[retrieve]",
     "consistent", "how far may the read lag"),
    ("payments", 'idempotency_key = "{key}"', 'idempotency_key = "{kee}"', "query", "unknown name"),
    ("payments", 'idempotency_key = "{key}"', 'idempotency_key = "{external_id}"', "query",
     "key.slot is not external_id"),
    ("payments", '[look_up]\npath = "/payments"', '[no_look_up]\npath = "/payments"',
     '[operations."payments.create"]', "no [look_up] for all, and no operations.payments.create"),
    ("payments", 'next = { cursor = "next_cursor", ', "next = { ", "next", "one of cursor, first"),
    ("payments", '[retrieve]\npath = "/payments/{id}"', '[retrieve]\npath = "/payments"',
     'path = "/payments"', "must hold {id}"),
    ("payments", 'scheme = "standard_webhooks"', 'scheme = "standard_webhooks"\nprefix = "v0="',
     "prefix", "does not go with the scheme"),
    ("payments", 'object = "data"\n', "", "[webhook]", "nothing could join it"),
    ("payments", 'Api-Version = "{api_version}"', 'Authorization = "x"', "Authorization",
     "set by the outbox itself"),
    ("contacts", 'template = "Token {credential}"', 'template = "Token"', "template",
     "holds {credential}"),
    ("contacts", "find_by_external_id/{external_id}", "newest", "slot",
     "does not use {external_id}"),
    ("contacts", 'means = "exists"', 'means = "in_doubt"', "on_duplicate",
     "no answer means exists"),
    ("contacts", 'fields = ["email"', 'fields = ["external_id"', "fields", "where the key goes"),
    ("contacts", 'signed = "{body}"', 'signed = "{timestamp}.{body}"', "signed",
     "name its timestamp_header"),
    ("contacts", 'signed = "{body}"', 'signed = "nothing"', "signed", "must hold {body} once"),
    ("messages", 'signed = "v0:{timestamp}:{body}"', 'signed = "{body}"', "timestamp_header",
     "does not hold {timestamp}"),
    ("messages", "[receipt]",
     '[look_up]\npath = "/x/{key}"\nconsistent = true\nlag_s = 1\n\n[receipt]',
     'path = "/x', "no key is sent"),
    ("tickets", 'mark = "reference"\nmark_as = "text"\n', "", "owner", "sends none"),
    ("tickets", 'mark = "reference"\n', "", "mark_as", "without a mark"),
    ("tickets", 'vendor = "tickets"', 'vendor = "tickets"\nvendor = "again"', 'vendor = "again"',
     "is not TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "old", "new", "marker", "said"), MISTAKES)
def test_a_mistake_is_told_with_its_line(
    vendor: str, old: str, new: str, marker: str, said: str
) -> None:
    text = _text(vendor)
    assert old in text
    text = text.replace(old, new, 1)
    faults = [(line, problem) for line, problem in _faults(text) if said in problem]
    assert faults, _faults(text)
    told = [text.splitlines()[line - 1] for line, _ in faults]
    assert any(line.startswith(marker) for line in told), told


def test_every_fault_is_told_at_once_in_the_order_of_the_file() -> None:
    text = _text("payments")
    text = text.replace('slot = "header"', 'slot = "head"').replace("status = 429", "status = 999")
    text = text.replace('id = "id"\nowner = "idempotency_key"', 'ident = "id"')
    lines = [line for line, _ in _faults(text)]
    assert lines == sorted(lines)
    assert {_line(text, 'slot = "head"'), _line(text, "status = 999"), _line(text, "ident")} <= {
        *lines
    }


def test_a_fault_in_a_value_of_many_lines_is_told_where_the_value_begins() -> None:
    text = _text("payments").replace(
        'fields = ["amount", "currency", "recipient", "memo"]',
        'fields = [\n  "amount", # cents\n  "currency",\n  7,\n]',
    )
    ((line, problem),) = _faults(text)
    assert text.splitlines()[line - 1] == "fields = ["
    assert "fields[3]" in problem


def test_lines_are_those_of_the_file_whatever_its_strings_hold() -> None:
    text = (
        'a = """\nb = 1\n[x]\n"""\r\n\n[t] # c\nb = [\n 1,\n]\nt.u.v = "\u2028"\n'
        "[[s]]\n[[s]]\nq = 2\n"
    )
    lines = Lines(text)
    places: dict[tuple[Any, ...], int] = {
        ("a",): 1, ("t",): 6, ("t", "b"): 7, ("t", "t", "u", "v"): 10, ("s", 0): 11,
        ("s", 1, "q"): 13, ("s", 1, "absent"): 12, ("no",): 1,
    }  # fmt: skip
    assert {place: lines.of(place) for place in places} == places


def test_lines_are_those_of_tables_in_arrays_and_of_keys_with_dots_and_quotes() -> None:
    text = (
        "a.b.c = 1\n"
        "[[s]] # [x]\n"
        "[s.t]\n"
        'q = [[1,\n 2], { "a.b" = "]" }] # ]\n'
        "[[s.u]]\n"
        "[[s.u]]\n"
        "z = '\"'\n"
        "[[s]]\n"
        "[[s.u]]\n"
        'y = """["""""\n'
        '["s b".c]\n'
    )
    lines = Lines(text)
    places: dict[tuple[Any, ...], int] = {
        ("a", "b"): 1, ("s",): 2, ("s", 0, "t"): 3, ("s", 0, "t", "q", 0, 1): 4,
        ("s", 0, "t", "q", 1, "a.b"): 4, ("s", 0, "u", 0): 6, ("s", 0, "u", 1, "z"): 8,
        ("s", 1): 9, ("s", 1, "u", 0): 10, ("s", 1, "u", 0, "y"): 11, ("s b", "c"): 12,
    }  # fmt: skip
    assert {place: lines.of(place) for place in places} == places


@pytest.mark.parametrize(
    "filler",
    ["#\n" * 30_000, "a = [\n" + "1,\n" * 9_000 + "]\n", 'a = """\n' + "x\n" * 9_000 + '"""\n'],
    ids=["comments", "a long list", "a long text"],
)  # fmt: skip
def test_no_part_of_a_file_is_parsed_twice_to_find_a_line(
    filler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed anew at each line, a file of an allowed size took minutes to be told of."""
    parsed: list[str] = []

    def loads(text: str) -> dict[str, Any]:
        parsed.append(text)
        return tomllib.loads(text)

    monkeypatch.setattr(toml_lines, "tomllib", SimpleNamespace(**vars(tomllib) | {"loads": loads}))
    assert Lines(f"{filler}vendor = 1\n").of(("vendor",)) == filler.count("\n") + 1
    assert sum(map(len, parsed)) <= len(filler) + len("vendor = 1\n")


def test_no_value_of_a_file_is_quoted_back() -> None:
    text = _text("payments").replace('scheme = "bearer"', 'scheme = "sk_live_SECRET"')
    assert "SECRET" not in str(_faults(text))


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    assert _faults("# x\n" * 20_000) == [(1, "a recipe has at most 65536 characters")]
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    _, problems = read_recipes(f"{tmp_path}, {tmp_path / 'none.toml'}")
    assert len(problems) == 2
    assert all(problem.startswith("cannot read ") for problem in problems)


def test_two_files_may_not_describe_one_vendor(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(_text("tickets"))
    _, (problem,) = read_recipes(str(tmp_path))
    assert problem == f"{tmp_path / 'b.toml'}: tickets is described by {tmp_path / 'a.toml'}"


def test_a_built_in_vendor_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(_text("tickets").replace('"tickets"', '"stripe"', 1))
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"OUTBOX_VENDORS": str(tmp_path)})
    ((where, problem),) = refused.value.problems
    assert (where, "built in" in problem) == ("OUTBOX_VENDORS", True)
    assert CONTRACTS["stripe"].adapter == "stripe"
    assert "stripe" in BUILT_IN


def test_settings_tell_the_faults_of_all_files_with_file_and_line(tmp_path: Path) -> None:
    for vendor in ("tickets", "messages"):
        text = _text(vendor).replace("[receipt]", "[receit]")
        (tmp_path / f"{vendor}.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({"OUTBOX_VENDORS": str(tmp_path)})
    told = [problem for where, problem in refused.value.problems if where == "OUTBOX_VENDORS"]
    for vendor in ("tickets", "messages"):
        path = tmp_path / f"{vendor}.toml"
        line = _line(path.read_text(), "[receit]")
        assert any(problem.startswith(f"{path}:{line}: ") for problem in told)


def test_an_empty_folder_is_no_vendor(tmp_path: Path) -> None:
    assert read_recipes(str(tmp_path)) == ([], [f"{tmp_path} holds no .toml file"])
    assert read_recipes(" , ") == ([], [])


def test_a_recipe_becomes_a_contract() -> None:
    contract = read_recipe(_text("payments"))
    assert (contract.honours_keys, contract.window_s, contract.margin_s) == (True, 86400, 7200)
    assert (contract.can_look_up, contract.has_webhooks, contract.tells_owner) == (True,) * 3
    assert contract.recipe.on_duplicate is OnDuplicate.REPLAY
    assert contract.recipe.answers[0].means is Means.LANDED
    create = contract.operations["payments.create"]
    assert (create.leaves_mark, create.marks) == (True, ())
    assert not contract.operations["payments.cancel"].leaves_mark
    blind = read_recipe(_text("messages"))
    assert (blind.honours_keys, blind.can_look_up, blind.in_flight_bound_s) == (False, False, 7200)


@pytest.mark.parametrize("rendering", sorted(RENDERED_CHARS))
def test_a_key_fits_its_rendering_and_names_its_intent_in_each(rendering: str) -> None:
    for first in range(256):
        key = bytes([first, *range(31)])
        text = rendered(key, rendering)
        assert len(text) == RENDERED_CHARS[rendering]
        assert owner_in(text) == owner_in(str(intent_id(key))) == str(intent_id(key))
        assert key_in(text) == ("" if rendering == "uuid" else key.hex())


@pytest.mark.parametrize(
    "text",
    ["", "in_1", "g" * 64, "A" * 42 + "B", "00000000-0000-1000-8000-000000000000",
     "{00000000-0000-4000-8000-000000000000", "F" * 63],
)  # fmt: skip
def test_what_is_no_mark_of_an_outbox_names_nobody(text: str) -> None:
    assert owner_in(text) == ""


def _frozen(contract_text: str, args: dict[str, Any], **tool: Any) -> dict[str, Any]:
    contract = read_recipe(contract_text)
    with contracts_as_before():
        register(contract)
        (operation, *_) = contract.operations
        made = WriteTool("a_tool", vendor=contract.vendor, operation=operation, **tool)
        found = draft(made, Scope(tenant="acme", run_id="run"), args)
    frozen: dict[str, Any] = json.loads(found.columns["request"])
    frozen["of_key"] = rendered(found.key, contract.key_slot.rendering) if contract.key_slot else ""
    return frozen


def test_a_key_in_the_body_is_frozen_with_it_and_goes_where_the_path_says() -> None:
    text = (
        _text("payments")
        .replace('slot = "header"', 'slot = "body"')
        .replace('name = "Idempotency-Key"', 'path = "meta.request.key"')
        .replace('"hex64"', '"b64url43"')
    )
    args = {"amount": 1, "currency": "eur", "recipient": "ann"}
    frozen = _frozen(text, args)
    assert frozen["params"]["meta"] == {"request": {"key": frozen["of_key"]}}
    assert frozen["key"] == {"slot": "body", "at": "meta.request.key", "rendering": "b64url43"}


def test_a_currency_is_guarded_however_the_vendor_writes_it() -> None:
    args = {"amount": 1, "currency": "EUR", "recipient": "ann"}
    fields: dict[str, Any] = {"identity": ("recipient",), "guard": ("amount", "currency")}
    frozen = _frozen(_text("payments"), args, **fields, money=("amount", "currency"))
    assert frozen["params"]["currency"] == "EUR"
    with pytest.raises(Invalid) as refused:
        _frozen(
            _text("payments"),
            args,
            **fields,
            money=("amount", "currency"),
            request=lambda given: {**given, "currency": "USD"},
        )
    assert refused.value.field == "request.currency"


def test_an_argument_may_not_take_the_place_of_the_key() -> None:
    text = _text("contacts").replace('fields = ["email", "name"]\n', "")
    with pytest.raises(Invalid) as refused:
        _frozen(text, {"email": "a@b", "external_id": "mine"})
    assert refused.value.field == "request.external_id"


def test_without_a_list_of_fields_every_argument_goes() -> None:
    text = _text("contacts").replace('fields = ["email", "name"]\n', "")
    frozen = _frozen(text, {"email": "a@b", "note[x]": {"deep": [1]}})
    assert frozen["params"]["note[x]"] == {"deep": [1]}, "JSON takes brackets in names"


@pytest.mark.parametrize("value", ["..", ".", "a/b", "", "a b", "x" * 256, None, True, {}])
def test_a_name_in_a_path_takes_one_plain_segment(value: Any) -> None:
    text = _text("tickets").replace('path = "/tickets"\nfields', 'path = "/p/{project}/t"\nfields')
    with pytest.raises(Invalid) as refused:
        _frozen(text, {"title": "a", "project": value}, identity=("title",))
    assert refused.value.field == "request.project"


def test_a_name_in_a_path_may_be_a_number_or_hold_dots_and_dashes() -> None:
    text = _text("tickets").replace('path = "/tickets"\nfields', 'path = "/p/{project}/t"\nfields')
    for value in (12, "a-b.c_d~e"):
        frozen = _frozen(text, {"title": "a", "project": value})
        assert frozen["path"] == f"/p/{value}/t"
        assert "project" not in frozen["params"]
