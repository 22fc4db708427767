"""Typed samples: dataclasses, pydantic models, named tuples, typed dicts and packable classes."""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

import shardex as sx


@dataclass
class Reading:
    station: str
    values: Annotated[NDArray[np.float32], sx.Array(np.float32, (3,))]
    tags: list[str] = field(default_factory=list)
    note: str | None = None


ds = sx.write("readings", [Reading(f"s{k}", np.full(3, k, np.float32), ["a"] * k) for k in range(4)])
assert str(ds.features["values"]) == "float32[3]"
typed = sx.open("readings", Reading)
assert typed[2].station == "s2" and typed[2].tags == ["a", "a"] and typed[2].values.dtype == np.float32
assert isinstance(typed.where("station = 's3'")[0], Reading)
for batch in sx.Loader(typed, batch_size=2):
    assert batch.values.shape == (2, 3) and isinstance(batch.samples[0], Reading)

with sx.edit("readings") as tx:
    tx.append(Reading("new", np.zeros(3, np.float32), note="last"))
assert sx.open("readings", Reading)[-1].note == "last"


class User(BaseModel):
    name: str
    age: int = 0


with sx.create("users", User) as out:
    out.append(User(name="ada", age=36))
    out.append(name="bob")
users = sx.open("users", User)
assert users[0] == User(name="ada", age=36) and users[1].age == 0


class Pair(NamedTuple):
    x: int
    y: float


assert sx.open([Pair(1, 2.0), Pair(3, 4.0)])[1] == Pair(3, 4.0)


class Row(TypedDict):
    x: int
    y: float


rows = sx.open([{"x": 1, "y": 2.0}]).as_type(Row)
assert rows[0]["x"] == 1


@sx.packable
class Total:
    station: str
    total: float


totals = typed.map(lambda reading: Total(reading.station, float(reading.values.sum())))
assert totals[3] == Total("s3", 9.0) and totals["total"].tolist() == [0.0, 3.0, 6.0, 9.0]

try:
    sx.open("readings", User)
    problem = ""
except sx.ShardexError as error:
    problem = str(error)
assert "field name (text) is missing" in problem
