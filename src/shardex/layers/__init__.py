"""Rows over other rows, with the same row numbers: other types, names and decoded media, and results of functions.

In: rows of any kind, and a class, a lens, a function or a choice of fields. Out: rows. Nothing here knows `Dataset`,
which puts an order and a choice of fields above them.

- `media_rows`: rows whose images, audio and video are decoded
- `field_decoders`: how a field of media is decoded
- `layers`: the base class; rows converted to a class, or with other names for their fields
- `stacked_rows`: several fields as one array
- `map_rows`: rows mapped by a function of a sample or of a batch
- `added_rows`: rows with more fields, which functions compute
- `function_calls`: calls functions of users on samples and batches, and checks what they return
- `typed_views`: finds the layer for a type or lens, and writes changed views back
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "ClassNameRows",
    "Decoding",
    "Layer",
    "MediaRows",
    "RenamedRows",
    "SampleFailure",
    "StackedRows",
    "StoredMedia",
    "TypedRows",
    "batch_result",
    "below_functions",
    "call_function",
    "changes",
    "check_callable",
    "check_type",
    "column_result",
    "common_decodings",
    "copied",
    "copied_lists",
    "decode_alike",
    "decoded_rows",
    "decodings_of",
    "features_wanted_by",
    "function_step",
    "inferred_of_results",
    "innermost_rows",
    "lens_to",
    "lens_view",
    "mapped_view",
    "media_decoded",
    "numpy_samples",
    "over_stored",
    "place_of_rows",
    "sample_of_view",
    "sample_results",
    "sample_type_of",
    "time_in_functions",
    "typed_view",
    "undecoded",
    "view_with_fields",
    "with_decodings",
]

if TYPES:
    from shardex.layers.field_decoders import Decoding, decode_alike
    from shardex.layers.function_calls import (
        SampleFailure,
        batch_result,
        call_function,
        column_result,
        copied,
        copied_lists,
        place_of_rows,
        sample_results,
        time_in_functions,
    )
    from shardex.layers.layers import ClassNameRows, Layer, RenamedRows, TypedRows, innermost_rows, sample_type_of
    from shardex.layers.map_rows import below_functions, function_step, inferred_of_results, numpy_samples
    from shardex.layers.media_rows import (
        MediaRows,
        StoredMedia,
        common_decodings,
        decoded_rows,
        decodings_of,
        media_decoded,
        over_stored,
        undecoded,
        with_decodings,
    )
    from shardex.layers.stacked_rows import StackedRows
    from shardex.layers.typed_views import (
        changes,
        check_callable,
        check_type,
        features_wanted_by,
        lens_to,
        lens_view,
        mapped_view,
        sample_of_view,
        typed_view,
        view_with_fields,
    )
else:
    import_later(
        __name__,
        {
            "field_decoders": "Decoding decode_alike",
            "function_calls": "SampleFailure batch_result call_function column_result copied copied_lists "
            "place_of_rows sample_results time_in_functions",
            "layers": "ClassNameRows Layer RenamedRows TypedRows innermost_rows sample_type_of",
            "map_rows": "below_functions function_step inferred_of_results numpy_samples",
            "media_rows": "MediaRows StoredMedia common_decodings decoded_rows decodings_of media_decoded over_stored "
            "undecoded with_decodings",
            "stacked_rows": "StackedRows",
            "typed_views": "changes check_callable check_type features_wanted_by lens_to lens_view mapped_view "
            "sample_of_view typed_view view_with_fields",
        },
    )
