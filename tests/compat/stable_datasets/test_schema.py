"""Features of stable_datasets: texts, Arrow types, values both ways."""

import hashlib
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as PILImage

import shardex.features as core
from shardex.compat.stable_datasets.features.base import FeatureType
from shardex.compat.stable_datasets.schema import (
    Array3D,
    Array4D,
    BuilderConfig,
    ClassLabel,
    DatasetInfo,
    DatasetSource,
    DownloadInfo,
    Features,
    Image,
    Sequence,
    Value,
    Version,
    Video,
    VideoRef,
    collect_dataset_citations,
)
from shardex.errors import ShardexError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stable-datasets"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
NAMES = {name: getattr(__import__("shardex.compat.stable_datasets.schema", fromlist=["x"]), name) for name in (
    "Array3D", "ClassLabel", "Features", "Image", "Sequence", "Value", "Video"
)}  # fmt: skip


def features_of(text: str) -> Features:
    """The features whose text a fixture has."""
    return Features(eval(text, dict(NAMES)))


# -- texts and fingerprints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fixture", ["images", "scalars_multishard"])
def test_texts_are_those_of_the_real_package(fixture: str) -> None:
    expected = EXPECTED[fixture]
    features = features_of(expected["fingerprint_data"])
    assert repr(features) == expected["features_repr"]
    assert features.fingerprint_data() == expected["fingerprint_data"]
    assert features.fingerprints()[0] == expected["metadata_json"]["schema_fingerprint"]


def test_fingerprint_of_early_versions_is_known() -> None:
    expected = EXPECTED["v37ff322"]
    features = features_of(expected["fingerprint_source"])
    fingerprint = expected["metadata_json"]["schema_fingerprint"]
    assert hashlib.sha256(expected["fingerprint_source"].encode()).hexdigest()[:16] == fingerprint
    assert features.fingerprints()[0] == fingerprint and len(features.fingerprints()) == 2


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (Value("bool"), "Value('bool')"),
        (ClassLabel(names=["a", "b"]), "ClassLabel(names=['a', 'b'])"),
        (ClassLabel(names=list("abcdef")), "ClassLabel(num_classes=6)"),
        (ClassLabel(num_classes=3), "ClassLabel(names=['0', '1', '2'])"),
        (Image(), "Image()"),
        (Image("PNG"), "Image(encode_format='PNG')"),
        (Image("JPEG"), "Image(encode_format='JPEG')"),
        (Video(), "Video()"),
        (Video("path"), "Video(storage='path')"),
        (
            Video("bytes"),
            "Video(storage='bytes', allowed_extensions=('.mp4', '.avi', '.mov', '.webm', '.mkv'))",
        ),
        (Sequence(Value("float32")), "Sequence(Value('float32'))"),
        (Array3D((1, 2, 3), "int16"), "Array3D(shape=(1, 2, 3), dtype='int16')"),
        (Array4D(shape=(1, 2, 3, 4)), "Array4D(shape=(1, 2, 3, 4), dtype='uint8')"),
    ],
)
def test_text(feature: FeatureType, text: str) -> None:
    assert repr(feature) == text
    assert feature.fingerprint_data() == text
    assert pickle.loads(pickle.dumps(feature)) == feature


def test_arrow_schema_is_that_of_the_real_package() -> None:
    for fixture in ("images", "scalars_multishard"):
        schema = features_of(EXPECTED[fixture]["fingerprint_data"]).to_arrow_schema()
        found = [
            [one.name, str(one.type), one.nullable, {k.decode(): v.decode() for k, v in one.metadata.items()}]
            for one in schema
        ]
        assert found == EXPECTED[fixture]["arrow_schema"]
        with pa.memory_map(str(FIXTURES / fixture / "shard-00000.arrow")) as file:
            assert pa.ipc.open_file(file).schema.equals(schema, check_metadata=True)


def test_arrow_types_of_arrays_and_videos() -> None:
    assert Array3D((1, 1, 1)).to_arrow_type() == Array4D((1, 1, 1, 1)).to_arrow_type() == pa.large_binary()
    parts = "mode: string, path: string, bytes: large_binary, extension: string, media_type: string, size: int64"
    assert Video().to_arrow_type() == pa.string()
    assert str(Video("path").to_arrow_type()) == f"struct<{parts}, checksum: string>"
    assert Video("bytes").arrow_metadata() == {
        b"stable_datasets.feature": b"Video",
        b"stable_datasets.video.storage": b"bytes",
    }
    with pytest.raises(TypeError, match="column x"):
        Features({"x": "int32"}).to_arrow_schema()  # type: ignore[dict-item]


def test_features_of_shardex() -> None:
    features = Features(
        {"n": Value("int8"), "s": Value("string"), "c": ClassLabel(["a"]), "i": Image(), "q": Sequence(Value("binary"))}
    )
    assert features.core == core.Features(
        {
            "n": core.Value("int8"),
            "s": core.Text(),
            "c": core.ClassLabel(["a"]),
            "i": core.Image(None),
            "q": core.Sequence(core.Bytes()),
        }
    )
    assert Array3D((1, 2, 3), "float32").core == core.Array("float32", (1, 2, 3))
    assert isinstance(Video().core, core.Video)


# -- values ---------------------------------------------------------------------------------------------------


def test_value() -> None:
    import torch

    assert Value("int64").encode(np.int32(5)) == 5
    assert Value("float32").encode(torch.tensor(0.5)) == 0.5
    assert Value("string").encode("a") == "a"
    assert Value("int64").format(3, format_type="default") == 3
    tensor = Value("int64").format(3, format_type="torch")
    assert tensor.shape == () and tensor.dtype == torch.int64
    assert Value("uint64").format(2**64 - 1, format_type="torch").item() == 2**64 - 1
    assert Value("int64").format(-(2**63), format_type="torch").item() == -(2**63)
    assert Value("string").format("a", format_type="torch") == "a"
    with pytest.raises(ValueError, match="int1"):
        Value("int1")


def test_class_label() -> None:
    label = ClassLabel(names=["cat", "dog"])
    assert (label.num_classes, label.names) == (2, ["cat", "dog"])
    assert (label.str2int("dog"), label.int2str(1), label.encode("dog"), label.encode(np.int8(1))) == (1, "dog", 1, 1)
    assert label.encode(-1) == -1, "data sets use it for samples without a label"
    for call in (lambda: label.str2int("bird"), lambda: label.int2str(2), lambda: label.encode("bird")):
        with pytest.raises(KeyError, match="expected") as raised:
            call()
        assert isinstance(raised.value, ShardexError)
    assert label.format(1, format_type="torch").item() == 1
    with pytest.raises(ValueError, match="num_classes"):
        ClassLabel()


def test_sequences_are_arrays_in_numpy_and_torch() -> None:
    """Defect 8 of E3: they stayed lists, so that ``sample["series"].shape`` failed."""
    import torch

    series = Sequence(Sequence(Value("float32")))
    assert series.encode(np.ones((2, 3), np.float32)) == [[1, 1, 1], [1, 1, 1]]
    assert series.format([[1, 2], [3, 4]], format_type="default") == [[1, 2], [3, 4]]
    array = series.format([[1, 2], [3, 4]], format_type="numpy")
    assert array.shape == (2, 2) and array.dtype == np.float32 and array.flags.writeable
    tensor = series.format([[1, 2], [3, 4]], format_type="torch")
    assert tensor.shape == (2, 2) and tensor.dtype == torch.float32
    assert Sequence(ClassLabel(["a"])).format([0, 0], format_type="numpy").dtype == np.int64
    ragged = series.format([[1], [2, 3]], format_type="torch")
    assert [one.tolist() for one in ragged] == [[1], [2, 3]]
    assert Sequence(Value("string")).format(["a"], format_type="torch") == ["a"]
    assert Sequence(Value("int64")).format([1, None], format_type="numpy") == [1, None]
    assert series.encode(None) is series.format(None, format_type="numpy") is None
    assert series.format([[1]], format_type="raw") == [[1]]


def test_items_of_sequences_are_encoded() -> None:
    import torch

    assert Sequence(ClassLabel(["a", "b"])).encode(["b", 0]) == [1, 0]
    images = Sequence(Image())
    stored = images.encode([np.zeros((2, 3, 3), np.uint8)])
    assert images.format(stored, format_type="default")[0].size == (3, 2)
    for wrong in (3, np.array(3), torch.tensor(3)):
        with pytest.raises(ValueError, match=r"expected a list of Value\('int64'\)"):
            Sequence(Value("int64")).encode(wrong)
    with pytest.raises(TypeError):
        Sequence("int64")  # type: ignore[arg-type]


def test_arrays() -> None:
    feature = Array3D((1, 2, 2), "int16")
    stored = feature.encode([[[1, 2], [3, 4]]])
    assert stored == np.array([1, 2, 3, 4], np.int16).tobytes()
    array = feature.format(stored, format_type="default")
    assert array.tolist() == [[[1, 2], [3, 4]]] and array.dtype == np.int16
    array[0] = 0  # writable: defect 8
    assert feature.encode(None) is feature.format(None, format_type="torch") is None
    assert feature.format(stored, format_type="raw") == stored
    with pytest.raises(ValueError, match="expected the bytes of int16"):
        feature.format(b"1", format_type="default")


def test_dtypes_of_arrays_may_be_those_of_numpy() -> None:
    for dtype in (np.float32, np.dtype("float32"), "float32"):
        assert repr(Array3D((1, 2, 3), dtype)) == "Array3D(shape=(1, 2, 3), dtype='float32')"  # type: ignore[arg-type]


def test_integer_arrays_stay_integers_in_torch() -> None:
    """Defect 8 of E3: they became float32."""
    import torch

    feature = Array4D((1, 1, 1, 2), "int64")
    tensor = feature.format(feature.encode([[[[1, 2**60]]]]), format_type="torch")
    assert tensor.dtype == torch.int64 and tensor.tolist() == [[[[1, 2**60]]]]


def test_arrays_of_another_shape_are_refused_when_they_are_written() -> None:
    """Defect 7 of E3: they were stored, and reading them failed."""
    feature = Array3D((2, 2, 2), "float32")
    for wrong in (np.zeros((2, 2, 3)), np.zeros(8), "text", [[1, 2], [3]]):
        with pytest.raises(ValueError, match=r"expected float32\[2, 2, 2\]"):
            feature.encode(wrong)
    with pytest.raises(ValueError, match=r"expected uint8\[1, 1, 2\].*300"):
        Array3D((1, 1, 2)).encode([[[300, 1]]])
    for shape in ((2, 2), (2, None, 2)):
        with pytest.raises(ValueError, match="3 sizes"):
            Array3D(shape)  # type: ignore[arg-type]


# -- images ---------------------------------------------------------------------------------------------------


def jpeg() -> bytes:
    """Bytes of a JPEG file."""
    file = io.BytesIO()
    PILImage.fromarray(np.full((8, 6, 3), 100, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def test_images_keep_their_encoding(tmp_path: Path) -> None:
    image = Image()
    assert image.encode(b"any bytes") == b"any bytes"
    (tmp_path / "a.jpg").write_bytes(jpeg())
    assert image.encode(tmp_path / "a.jpg") == image.encode(str(tmp_path / "a.jpg")) == jpeg()
    with PILImage.open(tmp_path / "a.jpg") as opened:
        assert image.encode(opened) == jpeg()
    changed = PILImage.open(io.BytesIO(jpeg()))
    changed.load()
    assert PILImage.open(io.BytesIO(image.encode(changed) or b"")).format == "JPEG"
    for made in (PILImage.new("RGBA", (2, 2)), PILImage.new("P", (2, 2)), PILImage.new("RGB", (2, 2))):
        assert (image.encode(made) or b"")[1:4] == b"PNG"
    assert (image.encode(np.zeros((2, 2), np.uint8)) or b"")[1:4] == b"PNG"
    assert (Image("JPEG").encode(np.zeros((2, 2, 3), np.uint8)) or b"")[:2] == b"\xff\xd8"
    assert image.encode(None) is None
    with pytest.raises(TypeError, match="expected an image"):
        image.encode(3.5)
    with pytest.raises(FileNotFoundError):
        image.encode(tmp_path / "none.png")
    with pytest.raises(ValueError, match="formats"):
        Image("XYZ")


def test_forms_of_images() -> None:
    import torch

    image = Image()
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    stored = image.encode(pixels)
    assert np.array_equal(np.asarray(image.format(stored, format_type=None)), pixels)
    assert np.array_equal(image.format(stored, format_type="numpy"), pixels)
    tensor = image.format(stored, format_type="torch")
    assert tensor.dtype == torch.float32
    assert np.allclose(tensor.numpy(), pixels.transpose(2, 0, 1) / 255)
    assert image.format(stored, format_type="raw") == stored
    assert image.format(stored, format_type="default", decode_images=False) == stored
    grey = image.encode(pixels[..., 0])
    assert image.format(grey, format_type="numpy").shape == (2, 4)
    assert image.format(grey, format_type="torch").shape == (1, 2, 4)
    with pytest.raises(ValueError, match="expected an image"):
        image.format(b"no image", format_type="default")


# -- videos ---------------------------------------------------------------------------------------------------


def test_videos_as_files(tmp_path: Path) -> None:
    (tmp_path / "a.MP4").write_bytes(b"video")
    digest = hashlib.sha256(b"video").hexdigest()
    cell = Video("path").encode(tmp_path / "a.MP4", cache_dir=tmp_path / "cache")
    assert cell == {
        "mode": "path",
        "path": f"{digest}.mp4",
        "bytes": None,
        "extension": ".mp4",
        "media_type": "video/mp4",
        "size": 5,
        "checksum": digest,
    }
    ref = Video("path").format(cell, format_type="default", cache_dir=tmp_path / "cache")
    assert isinstance(ref, VideoRef)
    assert ref.path == tmp_path / "cache" / "_assets" / "video" / f"{digest}.mp4"
    assert (ref.mode, ref.bytes, ref.extension, ref.media_type) == ("path", b"video", ".mp4", "video/mp4")
    assert (ref.size, ref.checksum) == (5, digest)
    again = Video("path").encode({"path": str(tmp_path / "a.MP4"), "checksum": "mine"}, cache_dir=tmp_path / "cache")
    assert again == {**cell, "checksum": "mine"}
    assert Video("path").format(cell, format_type="raw") == cell
    assert Video("path").format("/videos/0.mp4", format_type="default") == "/videos/0.mp4", "a cache of early versions"


def test_videos_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.webm").write_bytes(b"video")
    video = Video("bytes")
    cell = video.encode(tmp_path / "a.webm")
    assert cell is not None and (cell["mode"], cell["extension"], cell["bytes"]) == ("bytes", ".webm", b"video")
    assert video.encode({"bytes": b"video", "extension": "WEBM"}) == cell
    ref = video.format(cell, format_type="torch")
    path = ref.path
    assert path is not None and path.read_bytes() == b"video" and path.suffix == ".webm" and ref.path == path
    assert pickle.loads(pickle.dumps(ref)).bytes == b"video"
    del ref
    assert not path.exists(), "the temporary file is removed with the object"


def test_wrong_videos(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(ValueError, match="storage"):
        Video("tape")
    with pytest.raises(TypeError, match=r"Video\('bytes'\)"):
        Video().encode(b"video")
    with pytest.raises(ValueError, match=r"\.txt"):
        Video("path").encode(tmp_path / "a.txt", cache_dir=tmp_path)
    with pytest.raises(FileNotFoundError):
        Video("path").encode(tmp_path / "b.mp4", cache_dir=tmp_path)
    with pytest.raises(TypeError):
        Video("path").encode(3, cache_dir=tmp_path)
    with pytest.raises(ValueError, match="cache_dir"):
        Video("path").encode(tmp_path / "a.mp4")
    with pytest.raises(TypeError):
        Video("bytes").encode({"neither": 1})
    with pytest.raises(NotImplementedError, match="storage='path'"):
        Video("frames").encode(b"")
    outside = VideoRef({"mode": "path", "path": "../../x.mp4"}, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"\.\./"):
        outside.path  # noqa: B018
    with pytest.raises(ValueError, match="neither"):
        VideoRef({"mode": "path", "path": None, "bytes": None}).bytes  # noqa: B018


# -- what builders say ----------------------------------------------------------------------------------------


def test_version_and_configs() -> None:
    version = Version("1.10.2")
    assert (version.major, version.minor, version.patch, str(version)) == (1, 10, 2, "1.10.2")
    assert repr(version) == "Version('1.10.2')" and version == Version("1.10.2") != Version("1.0.0")
    assert len({version, Version("1.10.2")}) == 1
    for wrong in ("1.0", "a.b.c", "1.2.3.4"):
        with pytest.raises(ValueError, match="expected a version"):
            Version(wrong)
    assert BuilderConfig() == BuilderConfig(name="default", version=None, description="")
    info = DatasetInfo(Features({"x": Value("int8")}), "text", ("x", "y"))
    assert (info.supervised_keys, info.homepage, info.citation, info.license) == (("x", "y"), "", "", "")


def test_sources() -> None:
    info = DownloadInfo("https://a/x.zip", ["https://b/x.zip"], "sha256:00", "x.zip")
    assert info.all_urls() == ["https://a/x.zip", "https://b/x.zip"]
    source = DatasetSource("https://a", {"train": info, "test": "https://a/t.zip"}, "@x", checksums={"train": "md5:1"})
    assert source.assets["test"] == DownloadInfo("https://a/t.zip")
    assert dict(source) == {
        "homepage": "https://a",
        "assets": source.assets,
        "citation": "@x",
        "checksums": {"train": "md5:1"},
    }
    assert source["license"] == "" and len(source) == 4 and source.get("none", 1) == 1
    assert dict(pickle.loads(pickle.dumps(source))) == dict(source)
    assert collect_dataset_citations([source, {"citation": "@y"}, source]) == ["@x", "@y"]
    wrong: dict[str, Any]
    for wrong in ({"homepage": ""}, {"assets": []}, {"assets": {"a": 1}}, {"citation": ""}, {"checksums": {"a": 1}}):
        with pytest.raises(TypeError):
            DatasetSource(**{"homepage": "https://a", "assets": {}, "citation": "@x", **wrong})  # type: ignore[arg-type]
    for kwargs in ({"url": ""}, {"fallbacks": "x"}, {"checksum": 1}, {"filename": 1}):
        with pytest.raises(TypeError):
            DownloadInfo(**{"url": "https://a", **kwargs})  # type: ignore[arg-type]


def test_torch_is_not_needed() -> None:
    """Defect 11 of E3: torch was imported by all modules, though only its tensors and samplers need it."""
    code = "import sys; import shardex.compat.stable_datasets; print({'torch', 'PIL', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
