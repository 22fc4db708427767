"""Text to tokens: encodes documents with tokenizers of all kinds and writes token files.

In: datasets of documents, a tokenizer. Out: a dataset with an array of tokens for each document, and a description of
the tokenizer that is stored with it.

- `tokenize`: the function that users call
- `encode_documents`: the documents of a batch to arrays of tokens
- `chat`: conversations to tokens with a mask for the loss
- `chat_templates`, `jinja_templates`: conversations to text
- `tokenizer_adapter`: tokenizers in files; the interface of all tokenizers, and the ids that they return
- `tokenizers`: the adapter of what a user gives: tiktoken, sentencepiece, functions
- `huggingface_tokenizers`: adapters of the packages tokenizers and transformers
"""

from shardex.text.tokenize import tokenize
from shardex.text.tokenizer_adapter import JoinedIds, TokenizerAdapter
from shardex.text.tokenizers import adapter_of_function

__all__ = ["JoinedIds", "TokenizerAdapter", "adapter_of_function", "tokenize"]
