"""Links to shards that record orders, without shards behind them."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import Message

from aggregator.shards.link import ShardLink
from services.tensors.stripes import Stripe
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.security import Security


def recording_links(orders: list[tuple[int, Message]]) -> list[ShardLink]:
    """Return links to the shards `a:1` and `b:1`, which append their orders with the number of the shard."""
    links = [
        ShardLink(
            address,
            Stripe(index, 2),
            security=Security(),
            name="agg",
            incarnation="i",
            epoch=1,
            cluster="c0ffee00c0ffee00",
            timeouts=STANDARD_TIMEOUTS,
        )
        for index, address in enumerate(("a:1", "b:1"))
    ]
    for index, link in enumerate(links):
        vars(link)["send_order"] = lambda body, index=index: orders.append((index, body))
    return links


def set_stall(link: ShardLink, seconds: float) -> None:
    """Change how long a link waits for its shard's work."""
    vars(link)["_timeouts"] = replace(STANDARD_TIMEOUTS, stall=seconds)
