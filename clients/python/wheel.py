# SPDX-License-Identifier: Apache-2.0

"""Builds the wheel: by pip, as pyproject.toml says, or by hand with `python3 wheel.py DIRECTORY VERSION`.

A wheel is a zip file with a list of what it has. The same sources make the same bytes: the times are those of
SOURCE_DATE_EPOCH, or of 1980.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import time
import zipfile
from typing import Any, Dict, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE_VERSION = "0.0.0"


def python_version(version: str) -> str:
    """A version of boxd as Python writes it: what sorts before a release is a .dev of it."""
    release, tilde, rest = version.partition("~")
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(.*)", release)
    if not match:
        raise SystemExit(f"wheel: version {version!r}: must begin with three numbers")
    public, local = match.group(1), match.group(2) + rest
    if tilde:
        number = re.match(r"git(\d+)", rest)
        public += ".dev" + (number.group(1) if number else "0")
        local = rest[number.end() :] if number else rest
    local = ".".join(part for part in re.split(r"[^A-Za-z0-9]+", local) if part)
    return public + ("+" + local if local else "")


def metadata(version: str) -> str:
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        text = file.read()
    return (
        f"Metadata-Version: 2.1\nName: boxd\nVersion: {version}\nSummary: Client of boxd, the sandbox daemon of this host\n"
        f"License: Apache-2.0\nRequires-Python: >=3.9\nClassifier: Typing :: Typed\nDescription-Content-Type: text/markdown\n\n{text}"
    )


def build(directory: str, version: str) -> str:
    """Writes a wheel, and returns its name."""
    sources: List[Tuple[str, bytes]] = []
    for name in sorted(os.listdir(os.path.join(HERE, "boxd"))):
        if not name.endswith((".py", ".typed")):
            continue
        with open(os.path.join(HERE, "boxd", name), "rb") as file:
            data = file.read()
        if name == "_version.py":
            data = data.replace(SOURCE_VERSION.encode(), version.encode())
        sources.append(("boxd/" + name, data))
    info = f"boxd-{version}.dist-info"
    with open(os.path.join(HERE, "..", "..", "LICENSE"), "rb") as file:
        sources.append((f"{info}/LICENSE", file.read()))
    sources.append((f"{info}/METADATA", metadata(version).encode()))
    sources.append((f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: boxd\nRoot-Is-Purelib: true\nTag: py3-none-any\n"))
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n" for name, data in sources
    )
    sources.append((f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode()))
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]
    wheel = f"boxd-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w") as archive:
        for name, data in sources:
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory: str, config_settings: Optional[Dict[str, Any]] = None, metadata_directory: Optional[str] = None) -> str:
    """What pip calls."""
    return build(wheel_directory, SOURCE_VERSION)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: wheel.py DIRECTORY VERSION")
    print(os.path.join(sys.argv[1], build(sys.argv[1], python_version(sys.argv[2]))))
