"""WebDataset tars: read what the webdataset library wrote, filter, and write tars that it reads."""

import json

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
import webdataset

import shardex as sx

pictures = [simplejpeg.encode_jpeg(np.full((8, 16, 3), k, np.uint8)) for k in range(100)]

with webdataset.ShardWriter("shard-%03d.tar", maxcount=40, verbose=0) as sink:
    for k in range(100):
        meta = {"lang": "de" if k % 4 else "en", "width": 100 + k}
        sink.write({"__key__": f"{k:06d}", "jpg": pictures[k], "cls": k % 10, "json": json.dumps(meta).encode()})

ds = sx.open("shard-{000..002}.tar")
assert len(ds) == 100 and ds.fields[0] == "__key__"
assert ds[57].jpg.shape == (8, 16, 3) and abs(ds[57].jpg.mean() - 57) < 2
assert ds[57].cls == 7 and ds[57].json["lang"] == "de"
assert ds["cls"].sum() == 450

ds = sx.index("shard-*.tar", attributes=["lang", "width"])
english = ds.where("lang = 'en' AND width >= 150")
assert len(english) == 12 and english[0]["__key__"] == "000052"
assert len(ds.where("json.lang = 'en'")) == 25

seen: list[int] = []
for batch in sx.Loader(english, batch_size=5, shuffle=True, seed=0, fields=["cls", "jpg"]):
    assert batch.keys() == ["cls", "jpg"] and batch.jpg.shape == (len(batch), 8, 16, 3)
    seen += batch.cls.tolist()
assert sorted(seen) == sorted(english["cls"].tolist())

sx.write("english", english, format="tar", shard_rows=10)
back = list(webdataset.WebDataset("english/shard-{000000..000001}.tar", shardshuffle=False))
assert [one["__key__"] for one in back] == english["__key__"] and back[0]["jpg"] == pictures[52]
