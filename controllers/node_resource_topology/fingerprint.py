"""The fingerprint of a set of pods, by which scheduler-plugins tells whether a topology knows the pods that it knows.

The form is that of the Go package podfingerprint, version 1: each pod is the XXH64 of its name, seeded with the XXH64
of its namespace; these numbers, sorted and as eight little-endian bytes each, are hashed once more.
"""

from collections.abc import Iterable

from xxhash import xxh64_hexdigest, xxh64_intdigest

PREFIX = "pfp0v001"

WITH_EXCLUSIVE_RESOURCES = "with-exclusive-resources"
"""The method that counts only pods which hold something that no other pod can use."""


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods, given by namespace and name, in whatever order."""
    hashes = sorted(_hash(name, seed=_hash(namespace)) for namespace, name in pods)
    return PREFIX + xxh64_hexdigest(b"".join(number.to_bytes(8, "little") for number in hashes))


def _hash(text: str, seed: int = 0) -> int:
    return xxh64_intdigest(text.encode(), seed=seed)
