"""Conversations for a language model: a tokenizer of transformers, masks of the loss, packs, a resumed run."""

import json
import pathlib
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import shardex as sx

chats: list[dict[str, Any]] = [
    {
        "id": k,
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": f"How much is {k} + 1?"},
            {"role": "assistant", "content": f"It is {k + 1}."},
        ],
    }
    for k in range(200)
]
pathlib.Path("chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in chats))

trained = Tokenizer(models.BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trained.decoder = decoders.ByteLevel()
special = ["<|im_start|>", "<|im_end|>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
trained.train_from_iterator([m["content"] for one in chats for m in one["messages"]], trainer)
make: Any = transformers.PreTrainedTokenizerFast
tokenizer = make(tokenizer_object=trained, eos_token="<|im_end|>")

ds = sx.tokenize("chats.jsonl", tokenizer, "tokens", messages="messages", template="chatml", workers=2)
assert len(ds) == 200
counted = tokenizer.decode(ds[7].tokens[ds[7].loss_mask == 1])
assert counted == "It is 8.<|im_end|>", counted

packs = sx.open("tokens").pack(128, "best_fit", labels="huggingface", segments=True)
loader = sx.Loader(packs, batch_size=4, shuffle=True, seed=0, to="torch")
run = iter(loader)
first = next(run)
assert first.input_ids.shape == first.labels.shape == (4, 128)
assert 0 < int((first.labels != -100).sum()) < int((first.attention_mask > 0).sum())
state = loader.state_dict()
expected = next(run).input_ids

again = sx.Loader(packs, batch_size=4, shuffle=True, seed=0, to="torch")
again.load_state_dict(state)
assert next(iter(again)).input_ids.equal(expected)
try:
    sx.Loader(sx.open("tokens").pack(64, "best_fit"), batch_size=4, shuffle=True, seed=0).load_state_dict(state)
    problem = ""
except sx.ShardexError as error:
    problem = str(error)
assert "packed into 128 tokens (best_fit)" in problem and "packed into 64 tokens" in problem
