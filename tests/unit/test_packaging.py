"""The wheel holds the whole package and its commands, and the pins fit what the project asks for."""

import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+$")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", directory, ROOT],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (path,) = directory.glob("gpu_mirage-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {path for path in (ROOT / "controllers").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "controllers/runtime/client.py" in packed
    assert packed == {path.relative_to(ROOT).as_posix() for path in files}


def test_wheel_installs_a_command_for_each_binary(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(entry_points).decode())
    scripts = dict(parser["console_scripts"])
    assert scripts == PROJECT["scripts"]
    assert scripts.keys() >= {"gpu-mirage-compute-domain", "gpu-mirage-gpu-slices", "gpu-mirage-sandbox"}


def test_wheel_carries_its_licence(wheel: zipfile.ZipFile) -> None:
    (licence,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert "Apache License" in wheel.read(licence).decode()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(PIN.match(line) for line in pinned), [line for line in pinned if not PIN.match(line)]
    return {normal(name): version for name, _, version in (line.partition("==") for line in pinned)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[Requirement]:
    optional = PROJECT["optional-dependencies"].values()
    listed = [Requirement(text) for group in [PROJECT["dependencies"], *optional] for text in group]
    # A group may consist of the project itself with another group.
    return [requirement for requirement in listed if requirement.name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_each_dependency_is_pinned_to_a_version_that_it_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[normal(requirement.name)])


def test_pins_are_sorted_and_unique() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    names = [line.partition("==")[0].lower() for line in lines if line and not line.startswith("#")]
    assert names == sorted(set(names))
