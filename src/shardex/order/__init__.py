"""Maps each position of a view, an epoch or a run to a row, by arithmetic.

In: positions, as int64 arrays. Out: rows, as int64 arrays. Orders are small frozen values that hold no data. `Dataset`
applies one to its rows; the loader asks it for the order of each epoch (`Order.for_epoch`). Names of these classes and
their fields are part of fingerprints and saved states: renaming one invalidates them.

- `order`: `Order` and the basic orders: slices, lists of rows, shuffles, and chains of orders
- `draws`: `Weighted`, `WeightedOnce` and `Balanced`, which draw samples by weights or classes
- `split_parts`: the part of each sample in a split by class, group or time
- `mix_order`: `Mix`, several sources in exact proportions
- `rank_shares`: `RankShares`, the batches of an epoch divided among ranks
- `length_batches`: `LengthBatches`, the batches of an epoch chosen by the lengths of its samples
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "Balanced",
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
    "Weighted",
    "WeightedOnce",
    "chain",
    "parts_by_class",
    "parts_by_group",
    "parts_by_time",
    "positions_of",
    "renumbered",
    "share_list",
    "split_bounds",
    "whole_weights",
]

if TYPES:
    from shardex.order.draws import Balanced, Weighted, WeightedOnce
    from shardex.order.length_batches import EpochBatches, LengthBatches
    from shardex.order.mix_order import Mix, whole_weights
    from shardex.order.order import (
        Blocks,
        Order,
        Pick,
        RandomOffset,
        Shuffle,
        Span,
        chain,
        positions_of,
        share_list,
        split_bounds,
    )
    from shardex.order.rank_shares import RankShares
    from shardex.order.split_parts import parts_by_class, parts_by_group, parts_by_time, renumbered
else:
    import_later(
        __name__,
        {
            "draws": "Balanced Weighted WeightedOnce",
            "length_batches": "EpochBatches LengthBatches",
            "mix_order": "Mix whole_weights",
            "order": "Blocks Order Pick Shuffle Span chain positions_of share_list split_bounds RandomOffset",
            "rank_shares": "RankShares",
            "split_parts": "parts_by_class parts_by_group parts_by_time renumbered",
        },
    )
