"""Models and tokenizers in the formats of other libraries, written and read.

`model_format` describes a format as a table of tensors and settings; `olmo` and `olmo2` are two of
them. `model_writer` writes an exported model's directory, `model_reader` reads one. `tokenizer`
writes vocabularies for Hugging Face tokenizers. `verifiers/` are scripts for the target libraries.
"""
