"""What a vocabulary does not write: unknown pieces, and characters in no token."""

import unicodedata

import pytest
import sentencepiece
import tokenizers
from byte_level_tokenizer import write_byte_level
from letter_tokenizer import write_letters
from tokenizers import normalizers, pre_tokenizers

from anytime_jax.corpus.vocabulary_files import load_vocabulary

DECOMPOSED = unicodedata.normalize("NFD", "é가")
MERGED = normalizers.Replace("``", "a")
DELETING = normalizers.Replace("#", "")
WORDS = pre_tokenizers.Whitespace()
SPLIT_AT_SIGNS = pre_tokenizers.Split("#", "removed")


@pytest.mark.parametrize(
    ("text", "normalizer", "pre_tokenizer", "dropped"),
    [
        ("é 漢字\tABC\r\n", None, None, "漢字ABC"),
        ("é 漢字\tABC\r\n", normalizers.Lowercase(), None, "漢字"),
        (f"a{DECOMPOSED}", None, None, DECOMPOSED[1:]),
        (f"a{DECOMPOSED}", normalizers.NFC(), None, ""),
        ("a\u0323\u0302#", normalizers.NFC(), None, "ậ#"),
        ("Émile", normalizers.BertNormalizer(), None, ""),
        ("a\u0301#", normalizers.BertNormalizer(), None, "#"),
        ("a\0b\ufffdc", normalizers.BertNormalizer(), None, "\0\ufffd"),
        ("ab ``c``", MERGED, None, ""),
        ("ab ##c#", DELETING, None, "###"),
        ("a#b c, d", None, SPLIT_AT_SIGNS, "#,"),
        ("a#b", None, pre_tokenizers.CharDelimiterSplit("#"), "#"),
        ("a  b, c", None, WORDS, ","),
        ("a,a b", None, WORDS, ","),
        ("漢A字b", None, None, "漢A字"),
    ],
)
def test_characters_that_no_token_covers(tmp_path, text, normalizer, pre_tokenizer, dropped):
    path = write_letters(tmp_path / "letters", normalizer, pre_tokenizer)
    (encoded,) = load_vocabulary(path).encode_counted([text])
    oracle = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert encoded.ids.tolist() == oracle.encode(text).ids
    assert (encoded.dropped, encoded.unknown) == (len(dropped), 0)


def test_unknown_pieces(tmp_path):
    path = write_letters(tmp_path / "letters", unk_token="<unk>")
    (encoded,) = load_vocabulary(path).encode_counted(["é漢字 ABC <unk>"])
    assert (encoded.dropped, encoded.unknown) == (0, 7)  # of them two signs
    texts = ["words of a text", "more words"] * 20
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(texts), model_prefix=f"{tmp_path}/v", vocab_size=16, minloglevel=5)
    (encoded,) = load_vocabulary(tmp_path / "v.model").encode_counted(["words 漢字 of Q"])
    assert (encoded.dropped, encoded.unknown) == (0, 2)


def test_vocabulary_of_bytes_writes_everything(tmp_path):
    path = write_byte_level(tmp_path / "bytes", ["text"], 300)
    text = f"é{DECOMPOSED} 漢字\t\0\r\n😀"
    (encoded,) = load_vocabulary(path).encode_counted([text])
    assert (encoded.dropped, encoded.unknown) == (0, 0)
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    replaced = normalizers.Replace(" ", "▁")
    path = write_letters(tmp_path / "fallback", replaced, None, pieces, byte_fallback=True)
    (encoded,) = load_vocabulary(path).encode_counted([text])
    assert (encoded.dropped, encoded.unknown, len(encoded.ids)) == (0, 0, len(text.encode()) + 2)
    # An alphabet that is not whole.
    path = write_letters(tmp_path / "part", None, pre_tokenizers.ByteLevel(), "abcĠ")
    (encoded,) = load_vocabulary(path).encode_counted(["abc é😀"])
    assert encoded.dropped == 2


def test_characters_that_sentencepiece_deletes(tmp_path):
    train = sentencepiece.SentencePieceTrainer.train
    texts = ["words of a text", "more words"] * 20
    train(sentence_iterator=iter(texts), model_prefix=f"{tmp_path}/v", vocab_size=16, minloglevel=5)
    vocabulary = load_vocabulary(tmp_path / "v.model")
    text = "a \x01w\x7f\x7f o\u200br\ufeff\td"  # the space without width becomes a space
    (encoded,) = vocabulary.encode_counted([text])
    assert (encoded.dropped, encoded.unknown) == (3, 0)
    assert encoded.ids.tolist() == vocabulary.encode(["a w o r d"])[0].tolist()
