"""Other renderings of objects that clients may ask for: tables, as kubectl prints them, and metadata alone."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from controllers.sandbox.columns import Column

META = "meta.k8s.io"
ListMeta = Mapping[str, Any]


def metadata_only(obj: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The object as PartialObjectMetadata of meta.k8s.io's ``version``."""
    return {"kind": "PartialObjectMetadata", "apiVersion": f"{META}/{version}", "metadata": obj["metadata"]}


def metadata_list(objects: Iterable[Mapping[str, Any]], metadata: ListMeta, version: str) -> dict[str, Any]:
    """Objects as a PartialObjectMetadataList."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"{META}/{version}",
        "metadata": dict(metadata),
        "items": [metadata_only(obj, version) for obj in objects],
    }


def table(
    columns: tuple[Column, ...],
    objects: Iterable[Mapping[str, Any]],
    *,
    metadata: ListMeta,
    version: str,
    include: str,
    now: datetime,
    headers: bool = True,
) -> dict[str, Any]:
    """Objects as a Table; each row has, as ``include`` says, the Object, its Metadata or None.

    ``headers`` False leaves the column definitions out, as the second and further events of a watch do.
    """
    return {
        "kind": "Table",
        "apiVersion": f"{META}/{version}",
        "metadata": dict(metadata),
        "columnDefinitions": [column.definition() for column in columns] if headers else [],
        "rows": [_row(columns, obj, version, include, now) for obj in objects],
    }


def _row(
    columns: tuple[Column, ...], obj: Mapping[str, Any], version: str, include: str, now: datetime
) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = metadata_only(obj, version)
    return row
