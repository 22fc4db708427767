"""Maps each position of a view, an epoch or a run to a row, by arithmetic.

In: positions, as int64 arrays. Out: rows, as int64 arrays. Orders are small frozen values that hold no data. `Dataset`
applies one to its rows; the loader asks it for the order of each epoch (`Order.for_epoch`). Names of these classes and
their fields are part of fingerprints and saved states: renaming one invalidates them.

- `order`: `Order` and the basic orders: slices, lists of rows, shuffles, and chains of orders
- `mix_order`: `Mix`, several sources in exact proportions
- `random_offset`: `RandomOffset`, rows at a distance that begin at another place in every epoch
- `rank_shares`: `RankShares`, the batches of an epoch divided among ranks
- `length_batches`: `LengthBatches`, the batches of an epoch chosen by the lengths of its samples
"""

from shardex.order.length_batches import EpochBatches, LengthBatches
from shardex.order.mix_order import Mix, whole_weights
from shardex.order.order import Blocks, Order, Pick, Shuffle, Span, chain, positions_of, split_bounds
from shardex.order.random_offset import RandomOffset
from shardex.order.rank_shares import RankShares

__all__ = [
    "Blocks",
    "EpochBatches",
    "LengthBatches",
    "Mix",
    "Order",
    "Pick",
    "RandomOffset",
    "RankShares",
    "Shuffle",
    "Span",
    "chain",
    "positions_of",
    "split_bounds",
    "whole_weights",
]
