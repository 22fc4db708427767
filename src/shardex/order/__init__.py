"""The room order."""

from shardex.order.mix_order import MixOrder, whole_weights
from shardex.order.order import Blocks, Order, Pick, Shuffle, Span, chain, cut, of_epoch, positions_of
from shardex.order.rank_shares import RankShares

__all__ = [
    "Blocks",
    "MixOrder",
    "Order",
    "Pick",
    "RankShares",
    "Shuffle",
    "Span",
    "chain",
    "cut",
    "of_epoch",
    "positions_of",
    "whole_weights",
]
