"""Byte-level BPE tokenizer like those of public models, trained with the tokenizers library."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

EOS = "<|endoftext|>"


def write_byte_level(folder, texts, size=600, template="<|begin|> $A", **config):
    """Writes the files of a tokenizer into a folder; returns the path of its tokenizer.json.

    It puts tokens around a text as `template` says, and has settings that preparation must ignore:
    truncation to four tokens, and padding to four.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|padding|>", EOS, "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(["   "])  # as GPT-NeoX has for runs of spaces
    around = [(token, tokenizer.token_to_id(token)) for token in (EOS, "<|begin|>")]
    tokenizer.post_processor = processors.TemplateProcessing(template, None, around)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "GPTNeoXTokenizerFast", "eos_token": EOS, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"
