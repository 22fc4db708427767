"""Folders of jobs: finished parts, two runs at once, leftovers."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import AddressError, FormatError, WorkerError
from shardex.jobs import FinishedPart, JobFolder, LeftOut, discard_outdated


def folder_in(path: Path) -> JobFolder:
    return JobFolder(str(path / "out"), "00aa")


def write_part(folder: JobFolder, number: int, text: str) -> FinishedPart:
    inner = folder.new_part(number)
    folder.place.put(f"{inner}/part-00000.txt", text.encode())
    return FinishedPart(inner, ["part-00000.txt"], 1, [LeftOut(3, "sample 3", "ValueError: x")])


def test_finished_parts_are_found_by_another_process(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    part = write_part(folder, 2, "a")
    assert folder.finished() == {}, "no record yet"
    assert folder.finish(2, part) == part
    assert pickle.loads(pickle.dumps(folder)).finished() == {2: part}


def test_of_two_runs_of_one_part_the_first_counts(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    first, second = write_part(folder, 0, "a"), write_part(folder, 0, "a")
    assert folder.finish(0, first) == first
    assert folder.finish(0, second) == first
    assert os.listdir(tmp_path / folder.name / "parts") == [first.folder.removeprefix("parts/")]


def test_files_are_linked_out(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    part = write_part(folder, 0, "text")
    folder.copy_out({f"{part.folder}/part-00000.txt": "x.txt"})
    folder.copy_out({f"{part.folder}/part-00000.txt": "y.txt"}, folder.path("joined"))
    assert (tmp_path / "out" / "x.txt").read_text() == "text"
    assert (tmp_path / folder.name / "joined" / "y.txt").read_text() == "text"


def test_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.finish(0, write_part(folder, 0, "a"))
    write_part(folder, 1, "a run that was killed")
    before = folder.commit
    commit = folder.begin_commit(3)
    assert (before, folder.commit, folder.begin_commit(4)) == (None, commit, commit), "the first note counts"
    folder.remove()
    assert os.listdir(tmp_path) == []
    folder.remove()  # again


def test_folder_that_is_removed_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, open_, removed = folder_in(tmp_path), os.open, list[str]()

    def open_late(path: str, *arguments: int, **options: Any) -> int:
        if path == folder.url and len(removed) < 3:
            folder.remove()
            removed.append(path)
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    with folder.opened():
        assert len(removed) == 3
        assert os.path.isdir(folder.url)


def test_damaged_record_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.place.put("done/000004.json", b'{"folder": 5')
    with pytest.raises(FormatError, match=r"000004\.json: expected the record of a finished part"):
        folder.finished()


def test_a_link_to_the_target_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    assert JobFolder(str(tmp_path / "link"), "00").url == str(tmp_path / "disk" / ".out.00.job")


def test_passwords_are_neither_pickled_nor_shown() -> None:
    folder = JobFolder("s3://someone:hush@bucket/data/out", "01")
    assert folder.url == "s3://bucket/data/.out.01.job"
    assert b"hush" not in pickle.dumps(folder)
    sx.storage("s3://bucket")  # forgets them
    signed = JobFolder("https://host.example/data/out?token=hush", "01")
    assert "hush" not in str(signed.published_meanwhile())


def test_a_whole_bucket_is_no_target() -> None:
    with pytest.raises(AddressError, match="expected a folder in a bucket"):
        JobFolder("s3://bucket", "00")


def test_folder_that_another_machine_does_not_see(tmp_path: Path) -> None:
    """On a cluster, a folder that only the driver has is an error, not a part that nobody finds."""
    folder = JobFolder(str(tmp_path / "out"), "0123")
    folder._host = "driver"
    there: JobFolder = pickle.loads(pickle.dumps(folder))
    with pytest.raises(WorkerError, match=r"out\.0123\.job: expected to find the folder of the job on .* share"):
        there.new_part(0)
    os.mkdir(folder.url)
    assert there.new_part(0).startswith("parts/000000-")


def test_folders_of_older_versions_are_removed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    folders = [JobFolder(str(tmp_path / "out"), fingerprint) for fingerprint in ("01", "02", "03", "04", "05")]
    old, used, new, without, removed = folders
    for folder, base in ((old, 1), (used, 1), (new, 2), (removed, 1)):
        folder.finish(0, write_part(folder, 0, "a"))
        folder.base = base
    without.finish(0, write_part(without, 0, "a"))
    os.rename(removed.url, f"{removed.url}.removed")  # its run was killed while it removed the folder
    with used.opened():
        assert discard_outdated(str(tmp_path / "out"), 2) == [old.url, f"{removed.url}.removed"]
    assert sorted(os.listdir(tmp_path)) == [used.name, new.name, without.name, "out"]
    without.place.put("base.json", b"damaged")
    assert discard_outdated(str(tmp_path / "out"), 2) == [used.url]
    assert discard_outdated("memory://x/out", 2) == discard_outdated(str(tmp_path / "nothing"), 2) == []
