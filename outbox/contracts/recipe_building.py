"""From a recipe's document, checked before, to a vendor's contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from outbox.contract import KeySlot, Operation, VendorContract
from outbox.contracts.recipe import (
    Auth,
    LookUpSpec,
    Means,
    OnDuplicate,
    OperationRecipe,
    Paging,
    Path,
    ReceiptSpec,
    Recipe,
    RetrieveSpec,
    Rule,
    Signature,
    WebhookSpec,
    WhoamiSpec,
)
from outbox.contracts.recipe_parts import PLACEHOLDER, parts_of, path_of, statuses_of
from outbox.errors import Invalid
from outbox.outcomes import Business
from outbox.tool import listed

Table = Mapping[str, Any]
ADAPTER = "http_json"
# How long after the end of a lease a request may still land, where the file does not say.
_IN_FLIGHT_WITH_KEYS_S, _IN_FLIGHT_WITHOUT_S = 120.0, 7200.0
_MARGIN_PART = 0.1
_SIGNING = (
    "header", "prefix", "encoding", "signed", "timestamp_header", "key_encoding", "tolerance_s",
)  # fmt: skip


def contract_from(document: Table) -> VendorContract:
    """The contract of a document without faults."""
    operations = _operation_recipes(document)
    looks = [one.look_up for one in operations.values() if one.look_up is not None]
    key = document["key"]
    window_s = key.get("window_s")
    honours = window_s is not None
    in_flight_s = _IN_FLIGHT_WITH_KEYS_S if honours else _IN_FLIGHT_WITHOUT_S
    slot = _slot(key)
    return VendorContract(
        vendor=document["vendor"],
        adapter=ADAPTER,
        recipe=_recipe(document, operations),
        api_version=document.get("api_version", ""),
        operations={
            name: _operation(name, table, operations[name], slot)
            for name, table in document["operations"].items()
        },
        honours_keys=honours,
        window_s=window_s,
        margin_s=float(key.get("margin_s", _MARGIN_PART * (window_s or 0))),
        in_flight_bound_s=float(document.get("in_flight_bound_s", in_flight_s)),
        read_lag_s=max((look.lag_s for look in looks), default=0.0),
        can_look_up=bool(looks),
        has_webhooks="webhook" in document,
        key_slot=slot,
        tells_owner="whoami" in document,
        needs_credential=document["auth"]["scheme"] != "none",
        body="json",
    )


def _slot(key: Table) -> KeySlot | None:
    if key["slot"] == "none":
        return None
    return KeySlot(key["slot"], key.get("name") or key["path"], key["rendering"])


def _operation(name: str, table: Table, recipe: OperationRecipe, slot: KeySlot | None) -> Operation:
    fields = table.get("fields")
    money = table.get("money")
    mark = table.get("mark")
    return Operation(
        name=name,
        method=table["method"].lower(),
        path=table["path"],
        marks=(path_of(mark),) if mark else (),
        mark_is_text=table.get("mark_as") == "text",
        shows_key=slot is not None and not mark and recipe.receipt.owner is not None,
        money=(money[0], money[1]) if money else None,
        side_effect=table.get("side_effect", "write"),
        check=_only(frozenset(fields)) if fields else None,
        passes=frozenset([*(fields or ()), *PLACEHOLDER.findall(table["path"])]),
        passes_all=fields is None,
    )


def _only(fields: frozenset[str]) -> Callable[[Mapping[str, Any]], None]:
    def check(params: Mapping[str, Any]) -> None:
        extra = sorted(set(params) - fields)
        if extra:
            raise Invalid("request", f"holds {listed(extra)}, which the vendor's file does not")

    return check


def _operation_recipes(document: Table) -> dict[str, OperationRecipe]:
    receipts = {name: part for name, _, part in parts_of(document, "receipt")}
    look_ups = {name: part for name, _, part in parts_of(document, "look_up")}
    retrieves = {name: part for name, _, part in parts_of(document, "retrieve")}
    return {
        name: OperationRecipe(
            receipt=_receipt(receipts[name]),
            look_up=_look_up(look_ups[name]) if look_ups[name] is not None else None,
            retrieve=_retrieve(retrieves[name]) if retrieves[name] is not None else None,
        )
        for name in document["operations"]
    }


def _recipe(document: Table, operations: Mapping[str, OperationRecipe]) -> Recipe:
    key, whoami, webhook = document["key"], document.get("whoami"), document.get("webhook")
    duplicate = key.get("on_duplicate")
    return Recipe(
        base_url=document["base_url"].rstrip("/"),
        auth=_auth(document["auth"]),
        headers=dict(document.get("headers", {})),
        answers=tuple(_rule(answer) for answer in document["answers"]),
        operations=operations,
        error_code=_optional(document, "error_code"),
        request_id_header=document.get("request_id_header", ""),
        on_duplicate=OnDuplicate(duplicate) if duplicate else None,
        replay_header=key.get("replay_header", ""),
        replay_value=key.get("replay_value", "true"),
        whoami=WhoamiSpec(whoami["path"], path_of(whoami["id"])) if whoami else None,
        webhook=_webhook(webhook) if webhook else None,
    )


def _auth(table: Table) -> Auth | None:
    match table["scheme"]:
        case "bearer":
            return Auth("Authorization", "Bearer {credential}")
        case "basic":
            return Auth("Authorization", basic=True)
        case "header":
            return Auth(table["name"], table["template"])
    return None


def _rule(answer: Table) -> Rule:
    return Rule(
        statuses=statuses_of(answer),
        means=Means(answer["means"]),
        where=tuple((path_of(at), value) for at, value in answer.get("where", {}).items()),
        stored=answer.get("stored", False),
        never_again=answer.get("never_again", False),
    )


def _optional(table: Table, name: str) -> Path | None:
    return path_of(table[name]) if name in table else None


def _receipt(table: Table) -> ReceiptSpec:
    return ReceiptSpec(
        object=path_of(table.get("object", "")),
        id=_optional(table, "id"),
        id_header=table.get("id_header", ""),
        owner=_optional(table, "owner"),
        owner_in_answer=table.get("owner_in_answer", True),
        target=table.get("target", ""),
        status=_optional(table, "status"),
        business={word: Business(ours) for word, ours in table.get("business", {}).items()},
        landed=frozenset(table.get("landed", ())),
        declined=frozenset(table.get("declined", ())),
        open=frozenset(table.get("open", ())),
        failure_code=_optional(table, "failure_code"),
        amount=_optional(table, "amount"),
        currency=_optional(table, "currency"),
        livemode=_optional(table, "livemode"),
        vendor_account=_optional(table, "vendor_account"),
        time=_optional(table, "time"),
    )


def _look_up(table: Table) -> LookUpSpec:
    paging = table.get("next")
    return LookUpSpec(
        path=table["path"],
        consistent=table["consistent"],
        lag_s=float(table.get("lag_s", 0)),
        query=dict(table.get("query", {})),
        items=_optional(table, "items"),
        missing=frozenset(table.get("missing", () if "items" in table else (404,))),
        since=cast(Literal["epoch", "iso"], table.get("since", "epoch")),
        paging=Paging(
            cursor=_optional(paging, "cursor"),
            parameter=paging.get("parameter", ""),
            first=paging.get("first"),
            link=paging.get("link", False),
        )
        if paging
        else None,
    )


def _retrieve(table: Table) -> RetrieveSpec:
    return RetrieveSpec(table["path"], frozenset(table.get("missing", (404,))))


def _webhook(table: Table) -> WebhookSpec:
    signing = {name: table[name] for name in _SIGNING if name in table}
    return WebhookSpec(
        signature=Signature(scheme=table["scheme"], **signing),
        events=_optional(table, "events"),
        event_id=_optional(table, "event_id"),
        kind=_optional(table, "kind"),
        object=_optional(table, "object"),
        owner=_optional(table, "owner"),
        key=_optional(table, "key"),
        receipts=tuple(path_of(path) for path in table.get("receipts", ())),
        time=_optional(table, "time"),
        livemode=_optional(table, "livemode"),
        vendor_account=_optional(table, "vendor_account"),
    )
