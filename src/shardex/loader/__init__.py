"""Batches for training: a dataset in shuffled epochs, divided among ranks, prepared ahead, resumable at any sample.

A `Dataset` comes in; batches of arrays or tensors go out, in an order that depends only on seed, epoch and position.
The `Loader` turns the position of its run into plans of a few batches. An executor makes the batches of a plan, in the
loop itself, in threads or in processes, while the reads of later plans are announced to the storage.

`loader`        `Loader`: the loop over batches, moving in the run, saved states
`options`       the arguments of a loader, checked
`run_state`     the state of a run: its cursor and the active loop
`cursor`        epoch, position and step; how an epoch is divided into steps; saved states
`run_identity`  which data and order a saved state belongs to
`plan`          what is passed to an executor and back
`executors`     jobs run in the calling thread or in threads (in processes: `workers.ProcessPool`)
`recipe`        how a batch is made: positions, read, transform, ragged fields, collate
`replacements`  bad samples and the samples that replace them
`loaded_batch`  the batch that users get, with mask and origin
`tensors`       columns as torch tensors; the rank in `torch.distributed`
`read_ahead`    announces the next reads to the storage while data is cold
`stats`         counts, times and the bottleneck of a run
"""

from shardex.loader.loader import Loader

__all__ = [
    "Loader",
]
