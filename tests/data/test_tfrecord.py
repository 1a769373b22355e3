"""TFRecord checksums, against another implementation."""

import random

from tensorboardX.crc32c import crc32c
from tensorboardX.record_writer import masked_crc32c

from anytime_jax.data import tfrecord


def test_masked_checksum_is_that_of_tensorboardx():
    generator = random.Random(0)
    for size in (0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 1026, 1028, 3000):
        data = generator.randbytes(size)
        assert tfrecord.masked_crc32c(data) == masked_crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
