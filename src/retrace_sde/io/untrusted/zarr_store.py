"""What a zarr store may ask for: numbers and text, by codecs that cannot run code, and no more than it holds.

A store names its own codecs, and one of numcodecs' (`pickle`) runs what is in the data. So all metadata are read first,
also the consolidated ones, which may differ from those beside the arrays, and only codecs known to be harmless pass.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retrace_sde.io.formats import need

COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "lz4")
FILTERS = ("shuffle", "delta", "fixedscaleoffset", "quantize", "vlen-utf8", "crc32", "crc32c")
"""Codecs that are read: they give back numbers or text, and say how many bytes they expand to."""

UNCOMPRESSED_CODECS = ("bytes", "transpose", *FILTERS)
"""Codecs of the third format that do not compress."""

NUMPY_TYPES = {"string": "O", "fixed_length_utf32": "U", "null_terminated_bytes": "S", "bool": "?",
         "numpy.datetime64": "M8", "numpy.timedelta64": "m8"}  # fmt: skip
"""Data types of the third format that are not numbers, as numpy knows them."""

METADATA_FILES = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")

TakeArray = Callable[[tuple[int, ...], np.dtype[Any]], None]


def check(
    path: Path, take: Callable[[float], None], take_array: TakeArray, *, contents: bool = True
) -> None:
    """Refuse a store that asks for more than is read here; `take` counts bytes that it will need.

    Without `contents` only what the metadata say is looked at, and `take_array` is asked about single chunks.
    """
    homes: dict[Path, dict[str, Any]] = {}
    chunks: list[Path] = []
    for each in sorted(path.rglob("*")):
        if each.is_symlink() or not (each.is_file() or each.is_dir()):
            raise ValueError(f"{each.name!r} in it is a link or a device, which is not followed.")
        if each.is_dir():
            continue
        if each.name.lower() not in METADATA_FILES:
            chunks.append(each)
            continue
        for where, array in _arrays(_load(each), each):
            _check_array(array, where)
            shape, dtype = tuple(map(int, array["shape"])), _dtype(array)
            if contents:
                take_array(shape, dtype)
            take_array(_chunk_shape(array), dtype)
            homes.setdefault(where, array)
    for chunk in chunks if contents else ():
        home = next((homes[each] for each in chunk.parents if each in homes), None)
        if home is not None:
            _check_chunk(chunk, home, take)


def _load(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"its metadata {file.name!r} are damaged.") from None


def _arrays(found: Any, file: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every array that a file of metadata describes, and its folder."""
    if not isinstance(found, dict):
        raise ValueError(f"its metadata {file.name!r} are damaged.")
    name, here = file.name.lower(), file.parent
    if name == ".zarray":
        yield here, found
    elif name == ".zmetadata":
        for key, each in _items(found, "metadata"):
            if key.lower().endswith(".zarray"):
                yield here / key[: -len(".zarray")], each
    elif name == "zarr.json":
        if found.get("node_type") == "array" or "codecs" in found:
            yield here, found
        for key, each in _items(found.get("consolidated_metadata"), "metadata"):
            yield from _arrays(each, here / key / "zarr.json")


def _items(found: Any, key: str) -> list[tuple[str, Any]]:
    inside = found.get(key) if isinstance(found, dict) else None
    items = list(inside.items()) if isinstance(inside, dict) else []
    if any(".." in Path(name).parts for name, _ in items):
        raise ValueError("its metadata lead out of its folder.")
    return items


def _check_array(array: Any, where: Path) -> None:
    if not isinstance(array, dict) or not isinstance(array.get("shape"), list):
        raise ValueError(f"the metadata of its array {where.name!r} are damaged.")
    inner, outer = _codecs(array)
    for name in [*inner, *outer]:
        if name not in (*COMPRESSORS, *UNCOMPRESSED_CODECS):
            raise ValueError(
                f"its array {where.name!r} asks for the codec {name!r}, which is not read here (some can run code). "
                f"Save it again with one of {', '.join(COMPRESSORS)}."
            )
    if len(outer) > 1 or any(name in COMPRESSORS for name in inner):
        raise ValueError(f"its array {where.name!r} is compressed more than once: save it again.")
    if _dtype(array).kind == "O" and [name for name in inner if name != "bytes"] != ["vlen-utf8"]:
        raise ValueError(
            f"its array {where.name!r} holds Python objects, which are not loaded since they can run code: save numbers "
            "or text."
        )


def _codecs(array: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of what is done to an array first, and of what compresses the result."""
    if "codecs" in array or array.get("zarr_format") == 3:
        names = [_name(each) for each in array.get("codecs") or []]
        outer = [name for name in names if name in COMPRESSORS]
        last = (
            names[len(names) - len(outer) :] == outer
        )  # anything after it would see compressed bytes
        return [name for name in names if name not in outer] if last else names, outer
    compressor = array.get("compressor")
    return (
        [_name(each) for each in array.get("filters") or []],
        [] if compressor is None else [_name(compressor)],
    )


def _name(codec: Any) -> str:
    name = codec.get("name", codec.get("id")) if isinstance(codec, dict) else codec
    return str(name).removeprefix("numcodecs.")


def _dtype(array: dict[str, Any]) -> np.dtype[Any]:
    kind = array.get("data_type", array.get("dtype"))
    size = 0
    if isinstance(kind, dict):
        size = (kind.get("configuration") or {}).get("length_bytes") or 0
        kind = kind.get("name")
    code = NUMPY_TYPES.get(kind, kind) if isinstance(kind, str) else None
    try:
        if code in ("U", "S"):
            return np.dtype((code, int(size) // (4 if code == "U" else 1)))
        found = np.dtype(code if isinstance(code, str) else "V")
    except (TypeError, ValueError):
        found = np.dtype("V")
    if found.kind not in "?biufMmOSU":
        raise ValueError(f"it holds data of type {kind!r:.60}: save numbers or text.")
    return found


def _chunk_shape(array: dict[str, Any]) -> tuple[int, ...]:
    grid = array.get("chunk_grid")
    inside = (grid.get("configuration") or {}) if isinstance(grid, dict) else {}
    return tuple(map(int, array.get("chunks", inside.get("chunk_shape")) or ()))


def _check_chunk(chunk: Path, array: dict[str, Any], take: Callable[[float], None]) -> None:
    inner, outer = _codecs(array)
    content = chunk.read_bytes()
    _expand(content, outer[0] if outer else "", take)
    if "vlen-utf8" not in inner:
        return
    if outer:
        content = bytes(need("numcodecs").get_codec({"id": outer[0]}).decode(content))
    if len(content) < 4 or struct.unpack("<I", content[:4])[0] > len(content) // 4:
        raise ValueError(f"a part of its array {chunk.parent.name!r} is damaged.")


def _expand(content: bytes, codec: str, take: Callable[[float], None]) -> None:
    """Count the bytes that a chunk expands to, as its header says, or as far as it goes."""
    try:
        if codec == "blosc":
            take(struct.unpack("<I", content[4:8])[0])
        elif codec == "lz4":
            take(struct.unpack("<I", content[:4])[0])
        elif codec == "zstd":
            take(_zstd_size(content))
        elif codec in ("gzip", "zlib"):
            stream, rest = zlib.decompressobj(47), content  # 47: either of the two headers
            while rest:
                take(len(stream.decompress(rest, 1 << 20)))
                rest = stream.unconsumed_tail
                if stream.eof:  # another may follow
                    stream, rest = zlib.decompressobj(47), stream.unused_data
        else:
            take(len(content))
    except (struct.error, zlib.error, IndexError):
        raise ValueError("a compressed part of it is damaged.") from None


def _zstd_size(content: bytes) -> int:
    """The size that a frame of Zstandard claims (RFC 8878, 3.1.1.1)."""
    flags = content[4]
    single, ids = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    begin = 5 + (1 - single) + ids
    if content[:4] != b"\x28\xb5\x2f\xfd" or not width or len(content) < begin + width:
        raise ValueError("a compressed part of it does not say how large it is: save it again.")
    return int.from_bytes(content[begin : begin + width], "little") + (256 if width == 2 else 0)
