"""Tokenizer of byte pairs that knows some letters, and drops other characters."""

import json

import tokenizers
from byte_level_tokenizer import EOS
from tokenizers import models, normalizers, pre_tokenizers

LETTERS = "abcdefghijklmnopqrstuvwxyzé가 "


def write_letters(folder, normalizer=None, pre_tokenizer=None, letters=LETTERS, **model):
    """Writes byte pairs without pairs, whose pieces are letters and EOS."""
    pieces = {piece: index for index, piece in enumerate([EOS, "<unk>", *letters])}
    tokenizer = tokenizers.Tokenizer(models.BPE(pieces, [], **model))
    tokenizer.normalizer = normalizer or normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Sequence([])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return folder
