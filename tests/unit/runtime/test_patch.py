"""Operations of JSON patch."""

import pytest

from controllers.runtime.patch import removal


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        (("status",), "/status"),
        (("status", "conditions", 3), "/status/conditions/3"),
        (("metadata", "labels", "nvidia.com/gpu.count"), "/metadata/labels/nvidia.com~1gpu.count"),
        (("data", "~1/~0"), "/data/~01~1~00"),
    ],
)
def test_a_removal_names_its_path_with_keys_escaped(path: tuple[str | int, ...], pointer: str) -> None:
    assert removal(*path) == {"op": "remove", "path": pointer}
