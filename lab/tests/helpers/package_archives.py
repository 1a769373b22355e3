"""Archives of made-up packages."""

import io
import tarfile
import zipfile


def write_wheel(path, files):
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name), content)  # without the time
    return path


def write_sdist(path, files):
    with tarfile.open(path, "w:xz") as sdist:
        for name, content in files.items():
            member = tarfile.TarInfo(f"p-1/{name}")
            member.size = len(content.encode())
            sdist.addfile(member, io.BytesIO(content.encode()))
    return path
