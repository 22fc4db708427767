"""The names of splitdataloader that are here, and what serves them."""

COVERED: dict[str, str] = {
    "write_split_data": "the writer of the format bins: appends or replaces, all packets or none",
    "SplitDataLoader": "the rows of the format bins, opened again when the index has changed",
    "SplitDataLoader.__len__": "the index of the format bins",
    "SplitDataLoader.__getitem__": "one row; also negative positions, slices and numpy integers",
    "SplitDataLoader.iterate_binwise": "reads of some MiB in the order of the files",
    "MpQItr": "shardex.prefetch: errors of the generator are raised in the loop",
    "MpQItr.__iter__": "starts a process, and ends the one before",
    "MpQItr.__next__": "the next value of the process",
    "MpQItr.qsize": "the depth of shardex.prefetch",
    "data_writer_and_loader.write_split_data": "the same function",
    "data_writer_and_loader.SplitDataLoader": "the same class",
    "data_writer_and_loader.write_size_prefixed": "one packet to an open file, checked before it is written",
    "data_writer_and_loader.read_size_prefixed": "one packet of an open file",
    "data_writer_and_loader.read_all_size_prefixed_packets": "all packets of an open file",
    "data_writer_and_loader.struct_pack_write": "one number to an open file",
    "data_writer_and_loader.read_struct_unpack": "one number of an open file",
    "data_writer_and_loader.get_index_file": "the path of the index",
    "data_writer_and_loader.get_bin_file_for_index": "the path of a bin",
    "multiproc_queue_itr.MpQItr": "the same class",
}
