"""A draft: which arguments make the key, what is frozen as the request, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.errors import Invalid
from outbox.fingerprint import Limits
from outbox.intent import Draft, draft, gate_of, gate_prefix
from outbox.policy import Policy
from outbox.tool import Scope, WriteTool

SCOPE = Scope(tenant="acme", run_id="run-1", epoch="turn-1")
CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)
NOTE = WriteTool("create_customer", vendor="stripe", operation="customers.create")
ARGS: Mapping[str, Any] = {
    "invoice_id": "in_7",
    "amount": 4900,
    "currency": "usd",
    "customer": "cus_1",
}


def made(tool: WriteTool = CHARGE, scope: Scope = SCOPE, **changes: Any) -> Draft:
    return draft(tool, scope, {**ARGS, **changes})


def request(of: Draft) -> Any:
    return json.loads(of.columns["request"])


def refused(tool: WriteTool, args: Any, **more: Any) -> str:
    with pytest.raises(Invalid) as error:
        draft(tool, SCOPE, args, **more)
    return error.value.field


# -- identity, guard, free -----------------------------------------------------------------------


def test_identity_alone_makes_the_key() -> None:
    same = {made().key, made(amount=1).key, made(customer="cus_2").key, made(memo="x").key}
    assert same == {made().key}
    assert made(invoice_id="in_8").key != made().key


def test_each_argument_is_identity_guard_or_free() -> None:
    one = made(memo="hello")
    assert json.loads(one.identity) == {"invoice_id": "in_7"}
    assert json.loads(one.guard) == {"amount": 4900, "currency": "usd", "customer": "cus_1"}
    assert json.loads(one.columns["args"]) == {**ARGS, "memo": "hello"}


def test_without_a_declaration_every_argument_is_identity() -> None:
    one = draft(NOTE, SCOPE, {"name": "Jane", "description": "a"})
    other = draft(NOTE, SCOPE, {"name": "Jane", "description": "b"})
    assert one.key != other.key
    assert (one.identity, one.guard) == (one.args, "{}")


def test_a_key_supplied_by_a_model_never_counts() -> None:
    one = made(idempotency_key="uuid-1", toolCallId="call_a", run_id="other", outbox_key="k")
    assert one.key == made().key
    assert "uuid-1" not in one.columns["request"] + one.columns["args"]
    assert one.notes == (
        "stripped the reserved argument idempotency_key, toolCallId, run_id, outbox_key",
    )


def test_what_a_model_names_does_not_flood_a_note_or_an_error() -> None:
    long = "_" * 200_000 + "epoch"
    many = {"_" * n + "epoch": 1 for n in range(5000)}
    for flood in ({long: 1}, many):
        one = draft(CHARGE, SCOPE, {**ARGS, **flood})
        assert len(one.columns["note"]) < 500
    strict = replace(CHARGE, strict=True)
    assert len(refused(strict, {**ARGS, long: 1})) < 100
    schema = replace(NOTE, schema={"additionalProperties": {"type": "integer"}})
    assert refused(schema, {"\x1b[2J" + "x" * 60_000: "v"}).startswith("args.\\x1b[2Jx")


def test_a_strict_tool_refuses_a_key_supplied_by_a_model() -> None:
    strict = replace(CHARGE, strict=True)
    assert refused(strict, {**ARGS, "idempotencyKey": "uuid-1"}) == "args.idempotencyKey"


def test_reserved_names_are_stripped_at_the_top_and_kept_inside() -> None:
    one = draft(NOTE, SCOPE, {"name": "Jane", "address": {"epoch": "later"}})
    assert json.loads(one.columns["args"])["address"] == {"epoch": "later"}


@pytest.mark.parametrize("name", ["invoice_id", "amount", "currency", "customer"])
def test_a_declared_argument_must_be_there(name: str) -> None:
    assert refused(CHARGE, {n: v for n, v in ARGS.items() if n != name}) == f"args.{name}"
    assert refused(CHARGE, {**ARGS, name: None}) == f"args.{name}"


def test_an_argument_that_is_there_and_null_is_not_called_missing() -> None:
    for args, said in (({**ARGS, "amount": None}, "is null"), ({}, "is missing")):
        with pytest.raises(Invalid, match=said):
            draft(CHARGE, SCOPE, args)


@pytest.mark.parametrize("args", [[], "[]", b"7", "null", None, 7, {1}])
def test_arguments_are_one_object(args: Any) -> None:
    assert refused(CHARGE, args) == "args"


def test_raw_text_and_a_mapping_are_the_same_intent() -> None:
    raw = json.dumps({**ARGS, "amount": 4900.0})
    assert draft(CHARGE, SCOPE, raw).columns == draft(CHARGE, SCOPE, raw.encode()).columns
    assert draft(CHARGE, SCOPE, raw).columns == made().columns


def test_a_schema_refuses_by_field_and_quotes_nothing() -> None:
    schema = {
        "properties": {"lines": {"items": {"properties": {"count": {"type": "integer"}}}}},
    }
    tool = replace(NOTE, schema=schema)
    with pytest.raises(Invalid) as error:
        draft(tool, SCOPE, {"lines": [{"count": 1}, {"count": "secret"}]})
    assert error.value.field == "args.lines[1].count"
    assert "secret" not in str(error.value)


def test_a_number_and_its_text_are_two_intents_unless_the_schema_admits_one_form() -> None:
    assert made(invoice_id=42).key != made(invoice_id="42").key
    tool = replace(CHARGE, schema={"properties": {"invoice_id": {"type": "string"}}})
    assert made(tool, invoice_id="42").key == made(invoice_id="42").key
    assert refused(tool, {**ARGS, "invoice_id": 42}) == "args.invoice_id"


# -- scope ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("once_per", "counts"),
    [
        ("run", {"tenant", "account", "run_id"}),
        ("epoch", {"tenant", "account", "run_id", "epoch"}),
        ("tenant", {"tenant", "account"}),
    ],
)
def test_a_scope_counts_as_far_as_the_tool_is_once_per(once_per: Any, counts: set[str]) -> None:
    tool = replace(CHARGE, once_per=once_per)
    base = made(tool)
    changed = {
        name
        for name in ("tenant", "account", "run_id", "epoch")
        if made(tool, replace(SCOPE, **{name: "other"})).key != base.key
    }
    assert changed == counts


def test_another_tool_with_equal_arguments_is_another_intent() -> None:
    refund = replace(NOTE, name="other")
    args = {"name": "Jane"}
    assert draft(NOTE, SCOPE, args).key != draft(refund, SCOPE, args).key


def test_occurrence_and_supersedes_make_other_keys() -> None:
    of = uuid4()
    keys = {
        draft(CHARGE, SCOPE, ARGS).key,
        draft(CHARGE, SCOPE, ARGS, occurrence=1).key,
        draft(CHARGE, SCOPE, ARGS, occurrence=2).key,
        draft(CHARGE, SCOPE, ARGS, supersedes=of).key,
        draft(CHARGE, SCOPE, ARGS, supersedes=uuid4()).key,
    }
    assert len(keys) == 5
    assert draft(CHARGE, SCOPE, ARGS, supersedes=of).columns["supersedes"] == str(of)


@pytest.mark.parametrize("occurrence", [-1, 1.0, True, "1", 2**31])
def test_an_occurrence_is_a_small_number(occurrence: Any) -> None:
    assert refused(CHARGE, ARGS, occurrence=occurrence) == "occurrence"


def test_a_tool_that_is_once_per_epoch_needs_one() -> None:
    tool = replace(CHARGE, once_per="epoch")
    with pytest.raises(Invalid) as error:
        draft(tool, replace(SCOPE, epoch=""), ARGS)
    assert error.value.field == "scope.epoch"


@pytest.mark.parametrize("name", ["tool_call_id", "traceparent"])
@pytest.mark.parametrize("value", ["x" * 201, "a\x00b", 7])
def test_what_is_kept_beside_is_short_and_printable(name: str, value: Any) -> None:
    assert refused(CHARGE, ARGS, **{name: value}) == name


# -- the request ---------------------------------------------------------------------------------


def test_arguments_named_like_parameters_pass_through_and_identity_goes_to_metadata() -> None:
    one = made(memo="not sent", description="sent")
    assert request(one) == {
        "account": "default",
        "api_version": CHARGE.contract.api_version,
        "method": "post",
        "path": "/v1/payment_intents",
        "params": {
            "amount": 4900,
            "currency": "usd",
            "customer": "cus_1",
            "description": "sent",
            "metadata": {
                "invoice_id": "in_7",
                "outbox_id": str(one.id),
                "outbox_key": one.key.hex(),
            },
        },
    }
    assert one.columns["request_sha256"] == hashlib.sha256(one.columns["request"].encode()).digest()


def test_a_function_builds_the_request_and_cannot_change_the_arguments() -> None:
    def build(args: Mapping[str, Any]) -> Mapping[str, Any]:
        args["extra"].append("changed")
        return {"amount": args["amount"], "currency": "usd", "metadata": {"mine": 1}}

    tool = replace(CHARGE, request=build)
    one = made(tool, extra=["kept"])
    assert json.loads(one.columns["args"])["extra"] == ["kept"]
    params = request(one)["params"]
    assert params["amount"] == 4900
    assert params["metadata"] == {
        "mine": 1,
        "outbox_id": str(one.id),
        "outbox_key": one.key.hex(),
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"amount": 490_000}, "request.amount"),
        ({"amount": 49}, "request.amount"),
        ({"currency": "eur"}, "request.currency"),
    ],
)
def test_a_built_request_cannot_send_other_money_than_is_guarded(
    changes: dict[str, Any], field: str
) -> None:
    build = {"amount": ARGS["amount"], "currency": ARGS["currency"], **changes}
    assert refused(replace(CHARGE, request=lambda _: build), ARGS) == field
    # Nor may an argument that is named like the vendor's stand in for the guarded one.
    renamed = replace(CHARGE, guard=("total", "cur"), money=("total", "cur"))
    args = {"invoice_id": "in_7", "total": 4900, "cur": "usd", "amount": 4900, "currency": "usd"}
    assert request(draft(renamed, SCOPE, args))["params"]["amount"] == 4900
    assert refused(renamed, {**args, **changes}) == field


def test_a_refund_names_its_guarded_amount_and_may_leave_the_currency_to_the_vendor() -> None:
    def refund(*sent: str) -> WriteTool:
        return WriteTool(
            "refund_invoice",
            vendor="stripe",
            operation="refunds.create",
            side_effect="refund",
            identity=("invoice_id",),
            guard=("amount", "currency"),
            money=("amount", "currency"),
            request=lambda args: {"payment_intent": "pi_1", **{n: args[n] for n in sent}},
        )

    assert request(draft(refund("amount"), SCOPE, ARGS))["params"]["amount"] == 4900
    assert refused(refund(), ARGS) == "request.amount"


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"metadata[outbox_id]": "mine"}, "request.metadata[outbox_id]"),
        ({"amount[]": 1}, "request.amount[]"),
        ({"amount]": 1}, "request.amount]"),
        ({"shipping": {"a][b": 1}}, "request.shipping.a][b"),
        ({"hooks": [{"x": 1}, {"[": 1}]}, "request.hooks[1].["),
    ],
)
def test_a_name_in_square_brackets_cannot_pass_for_another_parameter(
    extra: dict[str, Any], field: str
) -> None:
    build = {"amount": 4900, "currency": "usd", **extra}
    assert refused(replace(CHARGE, request=lambda _: build), ARGS) == field
    if field.count(".") > 1:
        assert refused(CHARGE, {**ARGS, **extra}) == field


@pytest.mark.parametrize(
    ("built", "field"),
    [
        (None, "tool.request"),
        ([], "tool.request"),
        ({"amount": float("nan"), "currency": "usd"}, "request.amount"),
        ({"amount": 4900, "currency": "usd", "description": "a\x00"}, "request.description"),
        ({"amount": 4900, "currency": "usd", "metadata": []}, "request.metadata"),
        ({"amount": 1}, "request.currency"),
        ({"amount": 4900, "currency": "usd", "description": "x" * 70_000}, "request"),
    ],
)
def test_a_built_request_that_cannot_be_carried_is_refused(built: Any, field: str) -> None:
    assert refused(replace(CHARGE, request=lambda _: built), ARGS) == field


def metadata(**entries: Any) -> WriteTool:
    params = {"amount": 4900, "currency": "usd", "metadata": entries}
    return replace(CHARGE, request=lambda _: params)


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ({"outbox_id": "mine"}, "request.metadata.outbox_id"),
        ({"outbox_key": "mine"}, "request.metadata.outbox_key"),
        ({"x" * 41: "v"}, f"request.metadata.{'x' * 40}"),
        ({"a[b]": "v"}, "request.metadata.a[b]"),
        ({"a": "v" * 501}, "request.metadata.a"),
        ({"a": {"b": 1}}, "request.metadata.a"),
        ({f"k{n}": "v" for n in range(49)}, "request.metadata"),
    ],
)
def test_metadata_the_vendor_would_refuse_is_refused_here(
    entries: dict[str, Any], field: str
) -> None:
    assert refused(metadata(**entries), ARGS) == field


def test_metadata_may_be_full_beside_our_own_two_marks() -> None:
    one = made(metadata(**{f"k{n}": "v" for n in range(48)}))
    assert len(request(one)["params"]["metadata"]) == 50


@pytest.mark.parametrize(
    ("mode", "child"),
    [
        ("payment", "payment_intent_data"),
        ("subscription", "subscription_data"),
        ("setup", "setup_intent_data"),
    ],
)
def test_a_checkout_sessions_child_bears_our_marks_too(mode: str, child: str) -> None:
    tool = WriteTool("open_checkout", vendor="stripe", operation="checkout.sessions.create")
    one = draft(tool, SCOPE, {"mode": mode, child: {"description": "kept"}})
    params = request(one)["params"]
    ours = {"outbox_id": str(one.id), "outbox_key": one.key.hex()}
    assert params["metadata"].items() >= ours.items()
    assert params[child] == {"description": "kept", "metadata": ours}


def capture(**changes: Any) -> WriteTool:
    return WriteTool(
        "capture",
        vendor="stripe",
        operation="payment_intents.capture",
        identity=("payment_intent",),
        **changes,
    )


def test_a_path_takes_its_object_out_of_the_parameters() -> None:
    one = draft(capture(), SCOPE, {"payment_intent": "pi_1", "amount_to_capture": 5})
    assert request(one)["path"] == "/v1/payment_intents/pi_1/capture"
    assert request(one)["params"] == {"amount_to_capture": 5}


@pytest.mark.parametrize(
    "value", ["", "pi_1/../../v1/refunds", "pi_1?expand=x", "{invoice}", "pi 1", "pi_1\n", 7, ["p"]]
)
def test_a_path_takes_nothing_but_an_objects_id(value: Any) -> None:
    assert refused(capture(), {"payment_intent": value}) == "request.payment_intent"


# -- money, lanes, gates -------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [19.99, 49.5, "4900", True, -1, 10**15 + 1, [1]])
def test_an_amount_is_an_integer_and_is_never_rounded(amount: Any) -> None:
    assert refused(CHARGE, {**ARGS, "amount": amount}) == "args.amount"


def test_a_refused_amount_is_told_what_is_accepted() -> None:
    with pytest.raises(Invalid) as below:
        made(amount=-1)
    assert below.value.problem == f"must be an amount from 0 to {10**15}"
    with pytest.raises(Invalid) as zero:
        made(amount=0)
    assert (zero.value.field, zero.value.problem) == ("request.amount", "must be positive")


def test_an_amount_written_as_a_whole_float_is_that_integer() -> None:
    assert made(amount=4900.0).columns["amount_minor"] == 4900
    assert '"amount":4900,' in made(amount=4900.0).columns["request"]


@pytest.mark.parametrize("currency", ["us", "dollars", 7, "€uro", ""])
def test_a_currency_is_three_letters(currency: Any) -> None:
    assert refused(CHARGE, {**ARGS, "currency": currency}) == "args.currency"


def test_lanes_are_made_of_values_and_of_whose_they_are() -> None:
    tool = replace(CHARGE, lane=("customer",))
    lanes = {
        made().columns["lane"],
        made(tool).columns["lane"],
        made(tool, customer="cus_2").columns["lane"],
        made(tool, replace(SCOPE, tenant="b")).columns["lane"],
        made(tool, replace(SCOPE, account="b")).columns["lane"],
    }
    assert len(lanes) == 5
    assert None in lanes
    assert made(tool, invoice_id="in_8").columns["lane"] == made(tool).columns["lane"]
    assert "cus_1" not in (made(tool).columns["lane"] or "")


_PARTS = st.tuples(*[st.text("a/%=\u4e2d", min_size=1, max_size=80)] * 4)


@given(_PARTS, _PARTS)
def test_a_gate_is_one_place_for_one_owner(one: Any, other: Any) -> None:
    assert (gate_of(*one) == gate_of(*other)) == (one == other)
    for length in range(1, 5):
        same = one[:length] == other[:length]
        assert gate_of(*one).startswith(gate_prefix(*other[:length])) == same


def test_a_gate_fits_an_index_entry_whatever_the_names() -> None:
    long = "".join(chr(0x4E00 + 37 * n) for n in range(200))
    assert len(gate_of("stripe", long, "x" * 100, long).encode()) < 1000


def test_a_draft_shows_no_argument() -> None:
    assert "cus_1" not in repr(made().columns["gate"])
    assert "columns" not in repr(made())


def test_limits_and_time_to_live_come_from_outside() -> None:
    limits = Limits(max_bytes=500)
    assert refused(CHARGE, {**ARGS, "memo": "x" * 500}, limits=limits) == "args"
    assert refused(CHARGE, {**ARGS, "description": "x" * 500}, limits=limits) == "request"
    assert draft(CHARGE, SCOPE, ARGS).columns["ttl_s"] == 4 * 3600
    demo = draft(CHARGE, SCOPE, ARGS, policy=Policy.demo())
    assert demo.columns["ttl_s"] == 12
    sooner = draft(replace(CHARGE, ttl_s=60), SCOPE, ARGS)
    assert sooner.columns["ttl_s"] == 60


def test_the_row_holds_no_personal_data_outside_its_coded_columns() -> None:
    one = made(description="jane@example.com", memo="Jane Doe")
    coded = {"args", "request"}
    rest = {name: value for name, value in one.columns.items() if name not in coded}
    assert "jane" not in repr(rest).lower()
