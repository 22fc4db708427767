"""The room order."""

from shardex.order.mix_order import Mix, whole_weights
from shardex.order.order import Blocks, Order, Pick, Shuffle, Span, chain, cut, of_epoch, positions_of
from shardex.order.rank_shares import Deal

__all__ = [
    "Blocks",
    "Deal",
    "Mix",
    "Order",
    "Pick",
    "Shuffle",
    "Span",
    "chain",
    "cut",
    "of_epoch",
    "positions_of",
    "whole_weights",
]
