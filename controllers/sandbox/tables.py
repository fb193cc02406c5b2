"""Other renderings of objects that clients may ask for: tables, as kubectl prints them, and metadata alone."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from controllers.sandbox.columns import Column

META = "meta.k8s.io/v1"
ListMeta = Mapping[str, Any]


def metadata_only(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": obj["metadata"]}


def metadata_list(objects: Iterable[Mapping[str, Any]], metadata: ListMeta) -> dict[str, Any]:
    """Objects as a PartialObjectMetadataList."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": META,
        "metadata": dict(metadata),
        "items": [metadata_only(obj) for obj in objects],
    }


def table(
    columns: tuple[Column, ...],
    objects: Iterable[Mapping[str, Any]],
    *,
    metadata: ListMeta,
    include: str,
    now: datetime,
    headers: bool = True,
) -> dict[str, Any]:
    """Objects as a Table; each row has, as ``include`` says, the Object, its Metadata or None.

    ``headers`` False leaves the column definitions out, as the second and further events of a watch do.
    """
    return {
        "kind": "Table",
        "apiVersion": META,
        "metadata": dict(metadata),
        "columnDefinitions": [column.definition() for column in columns] if headers else [],
        "rows": [_row(columns, obj, include, now) for obj in objects],
    }


def _row(columns: tuple[Column, ...], obj: Mapping[str, Any], include: str, now: datetime) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = metadata_only(obj)
    return row
