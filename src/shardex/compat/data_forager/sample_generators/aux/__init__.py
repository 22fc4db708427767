"""Arrays with one value for each token, such as masks for the loss."""

from shardex.compat.data_forager.sample_generators.aux.common import AuxDataGenerator, Part
from shardex.compat.data_forager.sample_generators.aux.loss_mask import LossMaskGenerator

__all__ = ["AuxDataGenerator", "LossMaskGenerator", "Part"]
