"""Time series of weather stations: write, look, split, normalise, train with torch, stop and resume."""

import datetime

import numpy as np
import torch

import shardex as sx

# Write: one sample per station and day.
rng = np.random.default_rng(0)
begin = datetime.datetime(2024, 1, 1, 6, tzinfo=datetime.UTC)
schema = {
    "station": str,
    "day": int,
    "time": sx.Timestamp("us", "UTC"),
    "history": sx.Array(np.float32, (24,)),
    "rain": float,
}
with sx.create("weather", schema) as out:
    for day in range(50):
        time = begin + datetime.timedelta(days=day)
        for station in ("bern", "graz", "oslo"):
            out.append(
                station=station,
                day=day,
                time=time,
                history=rng.normal(day, 1, 24).astype("float32"),
                rain=float(day % 3),
            )

# Look.
ds = sx.open("weather")
assert len(ds) == 150 and ds[4].station == "graz" and ds[4].day == 1
assert ds["history"].shape == (150, 24) and ds["history"].dtype == np.float32
assert [sample.day for sample in ds.head(4)] == [0, 0, 0, 1]
assert "150 samples" in repr(ds) and "where station = 'oslo'" in repr(ds.where("station = 'oslo'"))
assert ds.where("station = 'oslo'").sort("day", descending=True)[0].day == 49
assert ds[4].time == begin + datetime.timedelta(days=1)
assert ds["time"][3] - ds["time"][0] == np.timedelta64(1, "D")
assert len(ds.where("time >= ?", [begin + datetime.timedelta(days=40)])) == 30
rain = ds.sql("SELECT station, sum(rain) AS rain FROM ds GROUP BY station ORDER BY station").to_pydict()
assert rain == {"station": ["bern", "graz", "oslo"], "rain": [49.0, 49.0, 49.0]}

# Train on a shuffled split.
train, test = ds.split([0.8, 0.2], seed=0)
mean, std = train["history"].mean(), train["history"].std()


def normalised(sample: sx.DictSample) -> dict[str, object]:
    return {"x": (sample.history - mean) / std, "y": np.float32(sample.rain)}


model = torch.nn.Linear(24, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
loader = sx.Loader(train, batch_size=32, shuffle=True, seed=1, epochs=2, transform=normalised, to="torch")
assert len(loader) == 8
seen = 0
for numbers in loader:
    batch = numbers.to("cpu")
    assert batch.x.dtype == batch.y.dtype == torch.float32
    loss = (model(batch.x)[:, 0] - batch.y).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    seen += len(batch)
    if loader.step == 5:
        break
state = loader.state_dict()

# Resume in a new loader.
again = sx.Loader(train, batch_size=16, shuffle=True, seed=1, epochs=2, transform=normalised, to="torch")
again.load_state_dict(state)
assert seen + sum(len(batch) for batch in again) == 2 * 120

# Add a column later, without rewriting the data.
with sx.edit("weather") as tx:
    tx.add_field("warm", bool, [bool(sample.history.mean() > 25) for sample in ds])
assert sx.open("weather")["warm"].sum() == (ds["history"].mean(axis=1) > 25).sum()
assert "warm" not in sx.open("weather", version=1).fields
