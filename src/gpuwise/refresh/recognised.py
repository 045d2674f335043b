"""The bytes of a list read from files, and which list they are where the user does not say."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

from gpuwise.errors import FileFormatError, InputError
from gpuwise.hardware.refreshed import SPOT_ADVISOR
from gpuwise.plain_files import parse_json, read_regular, reason_of
from gpuwise.refresh.adapters import gpuhunt
from gpuwise.refresh.fetch import LIMIT_BYTES
from gpuwise.refresh.refresh import ListBytes
from gpuwise.refresh.sources import SOURCES, ListRequest, request_of

_JSON_KEYS = {"offers": "vast", "data": "runpod", "Items": "azure", "spot_advisor": SPOT_ADVISOR}


def list_of_files(paths: Sequence[str]) -> ListBytes:
    """The bytes of a list that somebody fetched: its pages, in their order. Raises FileFormatError.

    The day of the prices is that of the newest file, since bytes have none of their own.
    """
    documents, days = [], []
    for path in paths:
        try:
            documents.append(read_regular(path, limit_bytes=LIMIT_BYTES))
            days.append(datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date())
        except (OSError, OverflowError, ValueError) as error:
            raise FileFormatError(f"{path}: cannot be read ({reason_of(error)}).", ["check the path"]) from None
    return ListBytes(tuple(documents), ", ".join(paths), day=max(days, default=date.min))


def request_for(paths: Sequence[str], content: ListBytes, *, name: str = "") -> ListRequest:
    """Which list files have. Raises InputError where neither name nor content says, UnknownNameError for an unknown name.

    Arguments:
        name: "aws" or "gpuhunt:aws"; "" recognises the list by its content and by the names of file and folder.
    """
    source = _source(content.documents[0])
    if name:
        if ":" not in name and source in SOURCES and name in SOURCES[source].providers:
            return request_of(f"{source}:{name}")  # the list that the bytes are, rather than the usual one
        return request_of(name)
    if not source:
        raise InputError(
            f"{paths[0]} is no list that is recognised.",
            ["name the list: gpuwise offers --refresh skypilot:aws --from FILE", "check that the file is whole"],
        )
    providers = SOURCES[source].providers
    if len(providers) == 1:
        return request_of(next(iter(providers)))
    path = Path(paths[0]).absolute()
    hints = [path.stem, path.parent.name, *_members(content.documents[0])]
    by_their_name = {own: provider for provider, own in providers.items()} | {each: each for each in providers}
    provider = next((by_their_name[hint] for hint in hints if hint in by_their_name), None)
    if provider is None:
        raise InputError(
            f"{paths[0]} is a list of {source}, but neither it nor its name says of which provider.",
            [f"name it: gpuwise offers --refresh {source}:{next(iter(providers))} --from {paths[0]}"],
        )
    return request_of(f"{source}:{provider}")


def _source(data: bytes) -> str:
    """The name of the source whose form the bytes have; "" where they have none."""
    if data[:2] == b"PK":
        return "gpuhunt"
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"{":
        with suppress(ValueError, json.JSONDecodeError):
            answer = parse_json(data)
            if isinstance(answer, dict):
                return next((source for key, source in _JSON_KEYS.items() if key in answer), "")
        return ""
    columns = head.split(b"\n", 1)[0].decode("ascii", "replace").strip().split(",")
    if set(gpuhunt.NEEDED) <= set(columns):
        return "gpuhunt"
    return "skypilot" if "InstanceType" in columns else ""


def _members(data: bytes) -> list[str]:
    with suppress(zipfile.BadZipFile, OSError, ValueError, EOFError), zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [Path(name).stem for name in archive.namelist() if name.endswith(".csv")]
        return names if len(names) == 1 else []
    return []
