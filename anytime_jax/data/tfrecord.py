"""Records of a TFRecord file, with their checksums compared, which Grain's reader skips.

A record is its length (uint64), the masked CRC-32C of the length (uint32), the data, and the masked
CRC-32C of the data.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import google_crc32c


def read_tfrecord(path: str | os.PathLike[str], skip: int = 0) -> Iterator[bytes]:
    """Yields the records of a file after the first `skip`, whose data are not read.

    Raises:
      ValueError: at the first record that is truncated or damaged.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while head := file.read(12):
            if len(head) < 12:
                raise ValueError("the file is truncated")
            length, checksum = struct.unpack("<QI", head)
            if checksum != masked_crc32c(head[:8]):
                raise ValueError("the checksum of its length does not match")
            if file.tell() + length + 4 > size:
                raise ValueError("the file is truncated")
            if skip > 0:
                skip -= 1
                file.seek(length + 4, os.SEEK_CUR)
                continue
            data = file.read(length)
            if masked_crc32c(data) != struct.unpack("<I", file.read(4))[0]:
                raise ValueError("its checksum does not match")
            yield data


def masked_crc32c(data: bytes) -> int:
    """Computes the CRC-32C of data, rotated by 15 bits and shifted, as TFRecord files store it."""
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
