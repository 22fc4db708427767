# The command line: look at data, query it, index it, check it and repair it.
set -eu
python -c 'import shardex as sx; sx.write("weather", [{"station": f"s{k % 3}", "x": k} for k in range(1000)], progress=False)'
python -c 'print("".join(f"{{\"lang\": \"{l}\", \"n\": {n}}}\n" for n, l in enumerate(["de", "en"] * 50)), end="")' > corpus.jsonl

shardex info weather | grep -q "samples *1,000"
shardex info weather --json | python -c 'import json, sys; assert json.load(sys.stdin)["samples"] == 1000'
shardex head weather -n 2 | grep -q "station *'s1'"
shardex sql weather -q "SELECT station, count(*) AS n FROM ds GROUP BY 1 ORDER BY 1" | grep -q "'s0' *334"
shardex index corpus.jsonl -o attributes=lang | grep -q "samples *100"
shardex sql corpus.jsonl -q "SELECT count(*) AS n FROM ds WHERE lang = 'de'" --json | grep -q 50

shardex verify weather
if shardex info nowhere 2> error; then exit 1; fi
grep -qi "no such file" error
if shardex head corpus.jsonl --fromat jsonl 2> error; then exit 1; fi
grep -qi "format" error
if shardex sql weather -q "SELECT statoin FROM ds" 2> error; then exit 1; fi
grep -q "the fields are station, x" error

# Damage, and recovery.
file=$(ls weather/data/*.arrow | head -n 1)
python -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(2000); b = f.read(1); f.seek(2000); f.write(bytes([b[0] ^ 1]))' "$file"
if shardex verify weather > found; then exit 1; fi
grep -q "$(basename "$file")" found

# Conversion.
printf 'def double(sample):\n    return {"n": 2 * sample["n"]}\n' > functions.py
shardex convert corpus.jsonl doubled --to parquet --where "lang = 'de'" --transform functions:double --workers 2 | grep -q "^50 samples, 1 file, "
shardex sql doubled -q "SELECT max(n) AS n FROM ds" --json | grep -q 196
if shardex convert corpus.jsonl doubled --to parquet 2> error; then exit 1; fi
grep -q "pass --mode append or --mode overwrite" error
