"""Writes the RBAC manifests of every binary from what its controllers declare.

`python -m hack.generate_rbac` writes `config/base/<binary>/rbac.yaml`; with `--check` it writes nothing and exits 1
where a file differs from the declarations.
"""

import argparse
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from controllers.runtime.lease import DECLARATION as LEASES
from controllers.runtime.rbac import Declaration, manifests

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "gpu-mirage"
ONE_BY_ONE: Mapping[str, tuple[str, ...]] = {
    "compute-domain": ("controllers.compute_domain", "controllers.channel_slices"),
    "channel-slices": ("controllers.channel_slices",),
    "gpu-slices": ("controllers.gpu_slices",),
    "node-pool": ("controllers.node_pool",),
    "node-resource-topology": ("controllers.node_resource_topology",),
    "extended-resource": ("controllers.extended_resource",),
    "gpu-fractioning": ("controllers.gpu_fractioning",),
}
"""Which controllers each binary runs that runs always the same ones."""

BINARIES = {
    **ONE_BY_ONE,
    "all-in-one": tuple(sorted({module for modules in ONE_BY_ONE.values() for module in modules})),
}

HEADER = "# Generated from what the controllers declare: change that, then run `make generate`.\n"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.generate_rbac", description="write the RBAC manifests")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a file is out of date")
    options = parser.parse_args(arguments)
    wanted = {path_of(binary): render(binary, declarations(modules)) for binary, modules in BINARIES.items()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date: run make generate' if options.check else 'written'}")
        if not options.check:
            path.write_text(wanted[path])
    return 1 if options.check and stale else 0


def path_of(binary: str) -> Path:
    return ROOT / "config" / "base" / binary / "rbac.yaml"


def declarations(modules: Iterable[str]) -> list[Declaration]:
    """What the given controller packages declare, and what an election does, which --leader-elect asks for."""
    return [*(importlib.import_module(module).DECLARATION for module in modules), LEASES]


def render(binary: str, declared: Iterable[Declaration]) -> str:
    """The text of a binary's file."""
    documents = manifests(f"gpu-mirage-{binary}", NAMESPACE, declared)
    return HEADER + yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True)


if __name__ == "__main__":
    sys.exit(main())
