"""Images: decoding into batches, steps, loaders and formats, beside simplejpeg alone and peers, in one run.

    .venv/bin/python benchmarks/images.py                        # some minutes on two quiet cores; prints Markdown
    .venv/bin/python benchmarks/images.py --quick                # fewer images, fewer repetitions
    .venv/bin/python benchmarks/images.py --torchvision PYTHON   # a Python that has torch and torchvision

The images have the spectrum of photographs. Every figure is the best of some repetitions, and the repetitions of all
competitors are interleaved. Results are compared before they are measured.

- *decode*: JPEG files in memory to a batch. The limit is simplejpeg alone: plain loops over shares of the files, one
  loop per thread, results dropped. CPU time per image is given, too: it tells more than time on a busy machine
- *steps*: the same with random-resized crops, beside Pillow doing the same steps one after the other in a thread pool
- *loader*: shuffled epochs of a folder of JPEG files in class folders, decoded, cropped to 224 x 224, beside
  `ImageFolder` and `DataLoader` of torchvision with as many workers (``--workers``). The limit is simplejpeg alone on
  as many threads, which decodes images of full size and does not resize
- *formats*: PNG, WebP and JPEG decoded by Pillow and by libraries that are installed (imagecodecs, OpenCV)
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIDE, COUNT, QUICK_COUNT = 288, 512, 96
FOLDER_COUNT, QUICK_FOLDER_COUNT = 3000, 512
CROP, BATCH = 224, 256

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Job = Callable[[], Any]


# -- data -----------------------------------------------------------------------------------------------------


def photographs(count: int, sizes: tuple[int, int], seed: int = 3) -> list[Pixels]:
    """Windows of noise with the spectrum of photographs, sides drawn from the range `sizes`."""
    random, side = np.random.default_rng(seed), 1536
    down, across = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    strength = 1 / np.maximum(np.hypot(down, across), 1 / side) ** 1.15
    phases = [np.exp(2j * np.pi * random.random(strength.shape)) for _ in range(3)]
    planes = [plane / plane.std() for plane in (np.fft.irfft2(strength * phase, s=(side, side)) for phase in phases)]
    whole = np.stack([planes[0] + 0.25 * plane for plane in planes], -1) * 48 + 120
    whole = np.clip(whole, 0, 255).astype(np.uint8)
    found = []
    for _ in range(count):
        height, width = random.integers(sizes[0], sizes[1] + 1, 2)
        top, left = random.integers(0, side - height + 1), random.integers(0, side - width + 1)
        found.append(whole[top : top + height, left : left + width])
    return found


def jpegs(count: int, sizes: tuple[int, int]) -> list[bytes]:
    import simplejpeg

    images = photographs(count, sizes)
    return [simplejpeg.encode_jpeg(np.ascontiguousarray(one), 86, colorsubsampling="420") for one in images]


def write_folder(folder: Path, count: int) -> None:
    for number, data in enumerate(jpegs(count, (300, 600))):
        path = folder / f"class{number % 10}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# -- measuring ------------------------------------------------------------------------------------------------


def race(jobs: Mapping[str, Job], repetitions: int) -> dict[str, tuple[float, float]]:
    """Best seconds and best CPU seconds of each job; repetitions are interleaved."""
    best = dict.fromkeys(jobs, (float("inf"), float("inf")))
    for _ in range(repetitions):
        for name, job in jobs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            job()
            taken = time.perf_counter() - wall, time.process_time() - cpu
            best[name] = min(best[name][0], taken[0]), min(best[name][1], taken[1])
    return best


def in_threads(function: Callable[[Any], Any], values: Sequence[Any], threads: int) -> None:
    """Call a function for all values in plain loops, one for each thread, over interleaved shares."""

    def loop(share: Sequence[Any]) -> None:
        for value in share:
            function(value)

    others = [threading.Thread(target=loop, args=(values[k::threads],)) for k in range(1, threads)]
    for thread in others:
        thread.start()
    loop(values[::threads])
    for thread in others:
        thread.join()


def report(title: str, count: int, best: Mapping[str, tuple[float, float]]) -> None:
    """Print a table; the first row is what the others are compared with."""
    print(f"\n### {title}\n\n| | images/s | of the first | CPU, us/image | of the first |\n|---|---|---|---|---|")
    first = next(iter(best.values()))
    for name, (wall, cpu) in best.items():
        cells = [f"{count / wall:,.0f}", f"{first[0] / wall:.0%}", f"{1e6 * cpu / count:.0f}", f"{first[1] / cpu:.0%}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def measure_decode(count: int, repetitions: int) -> None:
    import simplejpeg

    from shardex.media import decode_images

    cases = {f"{SIDE} x {SIDE}": jpegs(count, (SIDE, SIDE)), "sides of 200 to 400": jpegs(count, (200, 400))}
    for (title, files), threads in itertools.product(cases.items(), sorted({1, os.cpu_count() or 1})):
        for found, file in zip(decode_images(files[:5]), files, strict=False):
            assert np.array_equal(found, simplejpeg.decode_jpeg(file))
        jobs: dict[str, Job] = {
            "simplejpeg alone": lambda f=files, t=threads: in_threads(simplejpeg.decode_jpeg, f, t),
            "shardex, into a batch": lambda f=files, t=threads: decode_images(f, threads=t),
            "Pillow": lambda f=files, t=threads: in_threads(pillow_array, f, t),
        }
        report(f"JPEG files of {title}, {threads} threads", count, race(jobs, repetitions))


def pillow_array(data: bytes) -> Pixels:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def pillow_crop(data: bytes, box: tuple[float, float, float, float]) -> Pixels:
    """Decode, cut and resize as torchvision does with PIL images."""
    from PIL import Image

    top, left, bottom, right = box
    with Image.open(io.BytesIO(data)) as image:
        window = image.convert("RGB").crop((int(left), int(top), int(right), int(bottom)))
        return np.asarray(window.resize((CROP, CROP), Image.Resampling.BILINEAR))


def measure_steps(count: int, repetitions: int) -> None:
    import simplejpeg

    from shardex.media import CenterCrop, Flip, RandomResizedCrop, Resize, decode_images, image_info
    from shardex.media.image_steps import region_of

    files, threads = jpegs(count, (300, 600)), os.cpu_count() or 1
    sizes = [image_info(file)[1:3] for file in files]
    crop = [RandomResizedCrop(CROP), Flip()]
    boxes = [region_of(*size, crop, np.random.default_rng(k)).box for k, size in enumerate(sizes)]
    jobs: dict[str, Job] = {
        "simplejpeg alone, without a step": lambda: in_threads(simplejpeg.decode_jpeg, files, threads),
        "shardex: RandomResizedCrop, Flip": lambda: decode_images(
            files, steps=crop, generators=np.random.default_rng, threads=threads
        ),
        "shardex: Resize(256), CenterCrop": lambda: decode_images(
            files, steps=[Resize(256), CenterCrop(CROP)], threads=threads
        ),
        "shardex: Resize((64, 64))": lambda: decode_images(files, steps=[Resize((64, 64))], threads=threads),
        "Pillow: the same crops, without flip": lambda: in_threads(
            lambda pair: pillow_crop(*pair), list(zip(files, boxes, strict=True)), threads
        ),
    }
    report(f"JPEG files with sides of 300 to 600 to {CROP} x {CROP}, {threads} threads", count, race(jobs, repetitions))


def measure_formats(count: int, repetitions: int) -> None:
    from PIL import Image

    from shardex.media import decode_image

    images = photographs(min(count, 64), (SIDE, SIDE))
    options: dict[str, dict[str, Any]] = {
        "PNG": {},
        "WEBP": {"quality": 90},
        "WEBP, lossless": {"lossless": True},
        "JPEG": {"quality": 90},
    }
    for form, given in options.items():
        files = []
        for image in images:
            file = io.BytesIO()
            Image.fromarray(image).save(file, form.partition(",")[0], **given)
            files.append(file.getvalue())
        decoders = {"Pillow": pillow_array, "shardex": decode_image, **other_decoders(form.partition(",")[0].lower())}
        jobs: dict[str, Job] = {
            name: lambda f=files, d=decoder: in_threads(d, f, 1) for name, decoder in decoders.items()
        }
        report(f"{form} files of {SIDE} x {SIDE}, one thread", len(files), race(jobs, repetitions))


def other_decoders(form: str) -> dict[str, Callable[[bytes], Any]]:
    """Decoders of libraries that are installed here."""
    found: dict[str, Callable[[bytes], Any]] = {}
    if importlib.util.find_spec("imagecodecs"):
        import imagecodecs

        found["imagecodecs"] = getattr(imagecodecs, {"jpeg": "jpeg8"}.get(form, form) + "_decode")
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)
        found["OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return found


# -- loaders: each in a fresh process, which returns images, seconds and CPU seconds ----------------------------


def limit_epoch(folder: Path, workers: int) -> Callable[[], int]:
    import simplejpeg

    files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]

    def run() -> int:
        in_threads(simplejpeg.decode_jpeg, files, workers)
        return len(files)

    return run


def shardex_epoch(folder: Path, workers: int) -> Callable[[], int]:
    import shardex as sx

    steps = [sx.media.RandomResizedCrop(CROP), sx.media.Flip()]
    loader = sx.Loader(
        sx.open(folder), BATCH, shuffle=True, workers=workers, decode={"image": steps}, to="torch", epochs=None
    )
    return counted(iter(loader), lambda batch: len(batch["image"]), folder)


def torchvision_epoch(folder: Path, workers: int) -> Callable[[], int]:
    import torch
    from torchvision import datasets, transforms

    steps = transforms.Compose(
        [transforms.RandomResizedCrop(CROP), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), steps), BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )
    forever = (batch for _ in itertools.count() for batch in loader)
    return counted(forever, lambda batch: len(batch[0]), folder)


def counted(batches: Any, size: Callable[[Any], int], folder: Path) -> Callable[[], int]:
    """Take batches of one epoch; workers are started and files are mapped before the clock starts."""
    total = sum(1 for _ in folder.rglob("*.jpg"))
    for _ in range(-(-total // BATCH)):
        next(batches)

    def run() -> int:
        taken = 0
        while taken < total:
            taken += size(next(batches))
        return taken

    return run


LOADERS: dict[str, Callable[[Path, int], Callable[[], int]]] = {
    "simplejpeg alone, full size, no resize": limit_epoch,
    "shardex, decoding in threads of the loop": lambda folder, workers: shardex_epoch(folder, 0),
    "shardex, worker processes": shardex_epoch,
    "torchvision ImageFolder, DataLoader": torchvision_epoch,
}


def cpu_seconds() -> float:
    """CPU time of this process and of the processes that it started and that still run."""
    total, processes = 0, [os.getpid()]
    for process in processes:
        with contextlib.suppress(OSError):
            used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += int(used[11]) + int(used[12])
            for children in Path(f"/proc/{process}/task").glob("*/children"):
                processes.extend(map(int, children.read_text().split()))
    return total / os.sysconf("SC_CLK_TCK")


def child(name: str, folder: Path, workers: int) -> None:
    """Run one loader in this process; print images, seconds and CPU seconds."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
    run = LOADERS[name](folder, workers)
    start, used = time.perf_counter(), cpu_seconds()
    taken = run()
    print(json.dumps([taken, time.perf_counter() - start, cpu_seconds() - used]), flush=True)
    os._exit(0)  # workers of endless loaders are not waited for


def measure_loader(count: int, repetitions: int, workers: int, torchvision: str) -> None:
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        write_folder(Path(scratch), count)
        for _ in range(repetitions):
            for name in LOADERS:
                python = torchvision if "torchvision" in name else sys.executable
                if not python:
                    continue
                given = [python, "-W", "ignore", __file__, "--child", name, scratch, str(workers)]
                done = subprocess.run(given, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
                    continue
                taken, *used = json.loads(done.stdout.splitlines()[-1])
                wall, cpu = best.get(name, (float("inf"), float("inf")))
                best[name] = min(wall, used[0] * count / taken), min(cpu, used[1] * count / taken)
    report(
        f"Shuffled epochs of {count} JPEG files in class folders, RandomResizedCrop({CROP}), Flip, {workers} cores",
        count,
        best,
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images and repetitions")
    parser.add_argument("--repetitions", type=int, help="15 by default, 3 for loaders")
    parser.add_argument("--workers", type=int, default=2, help="of loaders, and the cores that they may use")
    parser.add_argument("--sections", default="decode,steps,loader,formats")
    parser.add_argument("--torchvision", default=os.environ.get("BENCH_TORCHVISION", ""), help="a Python that has it")
    given = parser.parse_args()
    count = QUICK_COUNT if given.quick else COUNT
    repetitions = given.repetitions or (3 if given.quick else 15)
    for section in given.sections.split(","):
        if section == "loader":
            total = QUICK_FOLDER_COUNT if given.quick else FOLDER_COUNT
            measure_loader(total, given.repetitions or (1 if given.quick else 3), given.workers, given.torchvision)
        else:
            {"decode": measure_decode, "steps": measure_steps, "formats": measure_formats}[section](count, repetitions)


if __name__ == "__main__":
    main()
