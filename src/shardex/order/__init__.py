"""Orders: which row each position of a view, an epoch or a run stands for.

Positions come in and rows go out, as int64 arrays. Orders are small frozen values without data: `Dataset` applies one
to its rows, the loader asks it for the order of each epoch (`Order.for_epoch`). Class and field names are part of
fingerprints and of saved states.

`order`        `Order` and the basic orders: slices, lists of rows, shuffles, and one order after another
`mix_order`    `Mix`: several sources in exact proportions
`rank_shares`  `RankShares`: the batches of an epoch divided among ranks
"""

from shardex.order.mix_order import Mix, whole_weights
from shardex.order.order import Blocks, Order, Pick, Shuffle, Span, chain, positions_of, split_bounds
from shardex.order.rank_shares import RankShares

__all__ = [
    "Blocks",
    "Mix",
    "Order",
    "Pick",
    "RankShares",
    "Shuffle",
    "Span",
    "chain",
    "positions_of",
    "split_bounds",
    "whole_weights",
]
