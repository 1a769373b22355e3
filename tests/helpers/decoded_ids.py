"""Texts to encode, and incremental decoding of ids against decoding them at once."""

import argparse
import inspect
import random

SOURCE = inspect.getsource(argparse)
AWKWARD = "\tif x:\r\n\t\t  return 'é漢😀'  \n\n\n\f<unk></s><0x41>\x00\x7f \u2028\u00a0 end  "


def decode_one_by_one(vocabulary, ids):
    """Returns the text after each id, and at the end."""
    decoder = vocabulary.incremental_decoder()
    return [*(decoder.decode(int(i)) for i in ids), decoder.flush()]


def check_random_ids(vocabulary, awkward):
    """Compares both kinds of decoding on random ids, many of them from the `awkward` pools."""
    rng = random.Random(0)
    for _ in range(400):
        pools = rng.choices([*awkward, range(vocabulary.size)], k=3)
        ids = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 30))]
        assert "".join(decode_one_by_one(vocabulary, ids)) == vocabulary.decode(ids), ids
