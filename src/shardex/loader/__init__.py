"""Makes batches for training: shuffled epochs, divided among ranks, prepared ahead, resumable at any sample.

In: a `Dataset`. Out: batches of arrays or tensors, in an order that depends only on seed, epoch and position. One pass
from a start or a resume to the end is a run. The `Loader` cuts the run into plans of a few batches; an executor makes
the batches of a plan, in the calling thread, in threads or in processes. While data is cold (not in memory), the
storage gets prefetch hints for the plans that follow.

- `loader`: `Loader`: iterates, moves within the run, saves and loads its state
- `options`: the validated arguments of a loader
- `run_state`: the state of a run: its cursor, the iteration that is active (a loader has one at a time), its identity
- `cursor`: epoch, position and step; how an epoch is divided into steps
- `length_steps`: batches by length: how they divide an epoch into steps
- `plan`: the messages to an executor and back; bad samples, and what replaces them
- `recipe`: makes a batch: positions, read, transform, ragged fields, collate
- `single_batch`: makes a batch by itself: transforms, and replaces bad samples
- `loaded_batch`: the batch that users get, with mask and origin
- `column_forms`: the form of each column of a batch: one array, padded, packed or a list
- `casts`: dtypes of fields in batches
- `device_staging`: batches on a device or in pinned memory, many with one copy
- `batch_executor`: chooses what makes the batches
- `tensors`: columns to torch tensors; the rank in `torch.distributed`
- `read_ahead`: prefetch hints for the next reads
- `prefetch`: the values of a generator of the user, made in another process
- `stats`: counts, times and the bottleneck of a run
"""

from shardex.loader.casts import Cast
from shardex.loader.loader import Loader
from shardex.loader.prefetch import prefetch

__all__ = [
    "Cast",
    "Loader",
    "prefetch",
]
