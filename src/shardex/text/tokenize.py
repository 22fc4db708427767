"""`tokenize`: documents of any dataset to a dataset of tokens, with the jobs of `write`."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardex.dataset import Dataset, ListRows, write
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, SchemaError, ShardexError, unknown_field
from shardex.features import Array, Feature, Features, Json, Text, unwrap_optional
from shardex.features import Sequence as ListOf
from shardex.formats import format_named, target_format
from shardex.kernel import byte_size
from shardex.samples import Batch, DictSample
from shardex.text.chat import LOSS_MASK, ChatEncoder, TrainOn, template_of
from shardex.text.encode_documents import TOKENS, AuxArrays, DocumentEncoder, TextEncoder, TokenizeBatch
from shardex.text.tokenizer_adapter import TokenizerAdapter
from shardex.text.tokenizers import adapter_of, special_id
from shardex.workers import ExecutorLike

_INFER_FROM = 16
"""Documents in which the dtypes of arrays are found."""
_INFER_ROWS = 1024
_MEASURED = 16
"""Documents from which the size of all is estimated."""
_BATCH_BYTES = 16 << 20
"""Size of a batch from which it has fewer than `batch_size` documents."""


def tokenize(
    inputs: Any,
    tokenizer: Any,
    out: str | os.PathLike[str],
    *,
    field: str = "text",
    dtype: Any = None,
    bos: int | str | bool | None = None,
    eos: int | str | bool | None = None,
    add_special_tokens: bool = False,
    batched: bool = False,
    aux: Any = None,
    messages: str | None = None,
    template: Any = None,
    train_on: Any = ("assistant",),
    tools: str | None = None,
    keep: str | Sequence[str] = (),
    batch_size: int = 1000,
    workers: int | None = None,
    executor: ExecutorLike = None,
    on_error: str = "raise",
    format: str | None = None,
    mode: str = "create",
    progress: bool | None = None,
    **options: Any,
) -> Dataset:
    """Tokenize the documents of a dataset and write an array of tokens for each; return the new dataset.

    `inputs` is anything that `open` takes; `field` has the text. `tokenizer` is one of the packages tokenizers,
    transformers, tiktoken or sentencepiece, the path of a ``tokenizer.json`` or of a sentencepiece ``.model``, or a
    function of a text that returns ids (with `batched` one of a list of texts). Documents are never cut or padded, and
    documents without tokens are kept.

    `bos` and `eos` are written before and after each document: an id, the text of a token, or True for the one that the
    tokenizer names. With `add_special_tokens` the tokenizer adds what its own settings say. `dtype` is the smallest of
    uint16 and uint32 that holds the vocabulary; an id that does not fit is an error.

    `aux` has more arrays with one value for each token: names of built-in ones ("positions", "segment_ids"), or a dict
    of name and function(sample, ids), or of name and (function, dtype). `keep` names fields to store as they are, in
    formats that can hold them (``format="arrow"``). `batch_size` documents are encoded at once, fewer if they are
    large.

    `messages` names a field of conversations, lists of ``{"role": ..., "content": ...}``, to encode instead of texts.
    `template` turns them into text: None is the chat template of the tokenizer; "chatml" or "llama3"; the text of a
    Jinja template; or a function of the messages that returns pieces (text, role), with None as the role of text that
    is never trained on. The array `loss_mask` is 1 for tokens that the loss counts: the content and the end of messages
    that are trained on. `train_on` has their roles, or is "all" or a function of a message; ``"train": false`` in a
    message leaves it out. `tools` names a field with the tools that each conversation may call, as a list or as JSON in
    a text; the template gets them, a function as its second argument.

    Without `workers` the threads of the tokenizer use all cores; `workers` processes have one thread each. `executor`,
    `on_error`, `mode`, the way to continue after a kill, and `options` of the format are those of `write`. The format
    is that of the extension of `out`, by default "tokens". The tokenizer, its vocabulary size, `bos`, `eos` and the
    other arguments are stored with the data (`Dataset.metadata`).

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> documents = [{"text": "ab"}, {"text": ""}, {"text": "c"}]
    >>> ds = tokenize(documents, lambda text: list(text.encode()), folder + "/tokens", dtype="uint16", eos=0)
    >>> [one.tokens.tolist() for one in ds]
    [[97, 98, 0], [0], [99, 0]]
    """
    format, _ = target_format(os.fspath(out), format, "tokens")
    source, kept = _opened(inputs), (keep,) if isinstance(keep, str) else tuple(keep)
    adapter = adapter_of(tokenizer, add_special_tokens=add_special_tokens, batched=batched)
    first, last = special_id(adapter, bos, "bos"), special_id(adapter, eos, "eos")
    if add_special_tokens:
        _check_not_added(adapter, first, last)
    encoder: TextEncoder | ChatEncoder
    if messages is None:
        chat = {"template": template is not None, "train_on": train_on != ("assistant",), "tools": tools is not None}
        for name, given in chat.items():
            if given:
                raise ArgumentError(f'expected {name}= with messages= only, got no messages=; pass messages="messages"')
        encoder = TextEncoder(adapter, field, first, last)
        _check_text(source, field)
    else:
        if not isinstance(messages, str):
            raise ArgumentError(f'expected the name of a field for messages=, such as "messages", got {messages!r}')
        if add_special_tokens:
            raise ArgumentError("expected add_special_tokens=False with messages=, got True: the template has them")
        chosen = template_of(template, adapter, tools=tools is not None)
        encoder = ChatEncoder(adapter, messages, chosen, TrainOn.of(train_on), first, last, tools)
        _check_messages(source, messages)
        if tools is not None and len(source):
            source.select(tools)  # an error for an unknown field
        _warn_of_doubts(source, encoder)
    metadata: dict[str, Any] = {
        "tokenizer": adapter.describe(),
        "bos": first,
        "eos": last,
        "pad": adapter.pad,
        "text_field": encoder.field,
        "options": {"add_special_tokens": add_special_tokens},
    }
    if isinstance(encoder, ChatEncoder):
        metadata |= {"loss_mask": LOSS_MASK, "options": encoder.describe()}
    return write_tokens(
        source,
        encoder,
        os.fspath(out),
        metadata=metadata,
        dtype=_dtype(dtype, adapter, (first, last)),
        aux=aux,
        keep=kept,
        format=format,
        mode=mode,
        batch_size=batch_size,
        workers=workers,
        executor=executor,
        on_error=on_error,
        progress=progress,
        **options,
    )


def write_tokens(
    source: Dataset[Any],
    encoder: DocumentEncoder,
    out: str,
    *,
    metadata: Mapping[str, Any],
    dtype: np.dtype[Any],
    aux: Any,
    keep: tuple[str, ...],
    format: str,
    mode: str,
    batch_size: int,
    workers: int | None,
    executor: ExecutorLike,
    **options: Any,
) -> Dataset[Any]:
    """Write what an encoder makes of the samples of a dataset; `options` are those of `write` and of the format."""
    arrays = AuxArrays.of(aux)
    _check_names([TOKENS, *encoder.arrays, *arrays.names, *keep])
    _check_keep(source, keep, format)
    if len(source) and not arrays.functions:
        source = source.select(*dict.fromkeys([*encoder.fields, *keep]))
    if arrays.unknown:
        arrays = _with_dtypes(arrays, encoder, source)
    dtypes = {TOKENS: dtype.name, **encoder.arrays, **{name: arrays.dtypes[name] for name in arrays.names}}
    kept = {name: source.features[name] for name in keep}
    schema = Features({**{name: Array(one, (None,)) for name, one in dtypes.items()}, **kept})
    if mode == "append":
        metadata = _metadata_there(out, format, metadata)
    if "metadata" in inspect.signature(format_named(format).create).parameters:
        options["metadata"] = dict(metadata)
    if workers is None and executor is None and encoder.adapter.threads > 1:
        executor, workers = "threads", encoder.adapter.threads
    step = TokenizeBatch(encoder, dtype.name, arrays, keep)
    return write(
        out,
        source,
        schema,
        transform=step,
        batched=True,
        batch_size=_batch_size(source, batch_size),
        format=format,
        mode=mode,
        workers=workers,
        executor=executor,
        **options,
    )


# -- arguments ------------------------------------------------------------------------------------------------


def _opened(inputs: Any) -> Dataset[Any]:
    """Return the documents as a dataset; samples of a class are read as dicts."""
    if isinstance(inputs, list | tuple) and not inputs:
        return Dataset(ListRows([]))
    opened: Dataset[Any] = open_dataset(inputs)
    return opened


def _check_text(source: Dataset[Any], field: str) -> None:
    """Raise an error if the field is known to hold something else than text."""
    if not len(source):
        return
    try:
        features: Mapping[str, Feature] = source.features
    except SchemaError:  # samples of several types: each text is checked when it is read
        return
    if field not in features:
        raise unknown_field(field, features, "; field= names the field of texts, messages= that of conversations")
    feature = unwrap_optional(features[field])
    if not isinstance(feature, Text | Json):
        texts = [name for name, one in features.items() if isinstance(unwrap_optional(one), Text)]
        advice = f"; fields of text: {', '.join(texts)}" if texts else ""
        raise SchemaError(f"expected text in the field {field}, got {feature}{advice}; pass field=")


def _check_messages(source: Dataset[Any], field: str) -> None:
    """Raise an error if the field is not there or is known to hold something else than lists."""
    if not len(source):
        return
    try:
        feature = unwrap_optional(source.select(field).features[field])
    except SchemaError:  # samples of several types: each conversation is checked when it is read
        return
    if not isinstance(feature, Json | ListOf):
        advice = ": parse it first, in a transform of sx.write" if isinstance(feature, Text) else ""
        raise SchemaError(f"expected lists of messages in the field {field}, got {feature}{advice}; pass messages=")


def _warn_of_doubts(source: Dataset[Any], encoder: ChatEncoder) -> None:
    """Warn of what is likely a mistake, as the first conversations show it."""
    try:
        first = np.arange(min(len(source), _INFER_FROM))
        doubts = list(encoder.doubts(source.read(first, encoder.fields))) if len(source) else []
    except Exception:  # raised again with its sample, or left out, when the conversations are encoded
        return
    for doubt in doubts:
        warnings.warn(doubt, stacklevel=3)


def _check_not_added(adapter: TokenizerAdapter, bos: int | None, eos: int | None) -> None:
    """Raise an error if the tokenizer adds the same token itself, so that each document would have it twice."""
    added = list(adapter.encode_batch([""])[0])
    for role, number, found in (("bos", bos, added[:1]), ("eos", eos, added[-1:])):
        if number is not None and found == [number]:
            raise ArgumentError(
                f"expected {role}=None, because the {adapter!r} adds the token {number} itself with "
                f"add_special_tokens=True, got {role}={number}"
            )


def _dtype(given: Any, adapter: TokenizerAdapter, special: Sequence[int | None]) -> np.dtype[Any]:
    """Return the dtype of the tokens."""
    highest = max([0, *(one for one in special if one is not None)])
    if given is None:
        small = adapter.vocab_size is not None and max(adapter.vocab_size - 1, highest) < 1 << 16
        return np.dtype("uint16" if small else "uint32")
    try:
        dtype: np.dtype[Any] = np.dtype(given)
    except TypeError:
        dtype = np.dtype("O")
    if dtype.kind not in "iu" or not dtype.isnative:
        raise ArgumentError(f"expected dtype= of integers, such as uint16 or uint32, got {given!r:.200}")
    if highest > np.iinfo(dtype).max:
        raise ArgumentError(f"expected a dtype that holds the ids of bos and eos ({highest}), got {dtype}")
    return dtype


def _check_names(names: Sequence[str]) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ArgumentError(f"expected different names for tokens, arrays and fields, got {', '.join(twice)} twice")


def _check_keep(source: Dataset[Any], keep: Sequence[str], format: str) -> None:
    if keep and format_named(format).only_arrays:
        raise ArgumentError(
            f'expected no keep= with format="{format}", which stores arrays of tokens only, got {", ".join(keep)}; '
            'write with format="arrow"'
        )
    if keep and len(source):
        source.select(*keep)  # an error for an unknown field


def _with_dtypes(arrays: AuxArrays, encoder: DocumentEncoder, source: Dataset[Any]) -> AuxArrays:
    """Find the dtypes of arrays in the results for the first documents that have tokens and no errors."""
    found = arrays
    for begin in range(0, min(len(source), _INFER_ROWS), _INFER_FROM):
        rows = np.arange(begin, min(begin + _INFER_FROM, len(source)))
        try:
            found = found.with_dtypes(encoder, Batch(source.read(rows), DictSample))
        except Exception:  # raised again with its sample, or left out, when the documents are written
            continue
        if not found.unknown:
            return found
    if len(source):
        raise SchemaError(
            f"expected results of aux= to find the dtype of {', '.join(found.unknown)}, got no numbers for the "
            f"first {min(len(source), _INFER_ROWS)} documents; pass a pair of function and dtype"
        )
    return AuxArrays(arrays.built_in, arrays.functions, {**dict.fromkeys(arrays.unknown, "int64"), **arrays.dtypes})


def _batch_size(source: Dataset[Any], given: int) -> int:
    """Return the number of documents in a batch: fewer than given if they are large."""
    if not len(source) or not isinstance(given, int):
        return given
    rows = np.unique(np.linspace(0, len(source) - 1, _MEASURED).astype(np.int64))
    try:
        size = byte_size(source.read(rows)) / len(rows)
    except ShardexError:  # documents with errors, which may be left out
        return given
    return max(1, min(given, int(_BATCH_BYTES / max(1.0, size)))) if given > 1 else given


def _metadata_there(out: str, format: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of the dataset to append to, or the given one; raise if its tokens are of another tokenizer.

    If both are equal it is the given one, so that a killed run that has made the dataset is continued as the same run.
    """
    try:
        existing = getattr(open_dataset(out, format=format), "metadata", {})
    except ShardexError:  # there is none yet, or a part of one: the writer looks at it
        return metadata
    for key in ("tokenizer", "bos", "eos", "loss_mask", "options"):
        if key in existing and _identity(existing[key]) != _identity(metadata.get(key)):
            raise ArgumentError(
                f"{out}: expected the tokenizer that has made the existing tokens ({key}: {existing[key]}), got "
                f"{metadata.get(key)}"
            )
    return metadata if existing == metadata or "tokenizer" not in existing else existing


def _identity(value: Any) -> Any:
    """Return what must be equal in a value of the metadata: a tokenizer may have several names, but one content."""
    return value["sha256"] if isinstance(value, Mapping) and value.get("sha256") else value
