"""The flags of the compute-domain controller."""

import argparse

import pytest

from controllers.compute_domain.options import ComputeDomainOptions, add_arguments, compute_domain_options


def parsed(*arguments: str) -> ComputeDomainOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return compute_domain_options(parser.parse_args(arguments))


def test_no_flag_gives_the_documented_defaults() -> None:
    assert parsed() == ComputeDomainOptions()
    assert (parsed().max_nodes_per_clique, parsed().sweep_interval, parsed().namespaces) == (18, 600.0, frozenset())


def test_every_flag_reaches_its_option() -> None:
    assert parsed(
        "--driver-namespace=x", "--pool-label=p/q", "--namespaces=a,b", "--domain-selector=k=v",
        "--max-nodes-per-clique=4", "--sweep-interval=1.5",
    ) == ComputeDomainOptions("x", "p/q", frozenset({"a", "b"}), "k=v", 4, 1.5)  # fmt: skip


@pytest.mark.parametrize(("text", "namespaces"), [("", set()), (" a , b,", {"a", "b"}), (",", set()), ("a,a", {"a"})])
def test_namespaces_may_be_written_loosely(text: str, namespaces: set[str]) -> None:
    assert parsed("--namespaces", text).namespaces == namespaces


@pytest.mark.parametrize("flag", ["--max-nodes-per-clique=0", "--sweep-interval=0", "--max-nodes-per-clique=x"])
def test_a_limit_must_be_above_zero(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(flag)
    assert flag.partition("=")[0] in capsys.readouterr().err
