"""Models and tokenizers in the formats of other libraries, written and read.

Begin with `model_format`, tables of tensors and settings; `ai2_olmo` and `transformers_models` are
the formats. `model_writer` and `model_reader` write and read model directories, `tokenizer_writer`
writes vocabularies, and `verifiers/` has scripts for the target libraries.
"""
