"""The shared command line."""

import argparse

import pytest

from controllers.runtime.options import (
    ManagerOptions,
    manager_options,
    parser_for,
    positive_float,
    positive_int,
    worker_count,
)


def test_no_flag_gives_the_documented_defaults() -> None:
    assert manager_options(parser_for("x", "y").parse_args([])) == ManagerOptions()


def test_every_flag_reaches_its_option() -> None:
    arguments = [
        "--kubeconfig=/k", "--context=c", "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:1",
        "--cache-sync-timeout=2.5", "--workers=7", "--log-format=json", "--log-level=debug",
    ]  # fmt: skip
    assert manager_options(parser_for("x", "y").parse_args(arguments)) == ManagerOptions(
        kubeconfig="/k",
        context="c",
        metrics_bind_address="0",
        health_probe_bind_address="127.0.0.1:1",
        cache_sync_timeout=2.5,
        workers=7,
        log_format="json",
        log_level="debug",
    )


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "1e3", " "])
def test_what_is_no_count_is_refused_with_the_text_that_was_given(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number of at least 1") as caught:
        positive_int(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["1001", "1000000000"])
def test_more_workers_than_a_machine_can_hold_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text} is more than 1000"):
        worker_count(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "", "soon"])
def test_what_is_no_duration_is_refused_with_the_text_that_was_given(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of seconds above 0") as caught:
        positive_float(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "flag",
    [
        "--workers=0",
        "--workers=1001",
        "--cache-sync-timeout=nan",
        "--log-format=xml",
        "--log-level=loud",
        "--no-such-flag",
    ],
)
def test_a_bad_flag_ends_with_status_2_and_names_the_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser_for("gpu-mirage-x", "y").parse_args([flag])
    assert caught.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_help_names_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_for("gpu-mirage-x", "what it does").parse_args(["--help"])
    text = capsys.readouterr().out
    for expected in ("gpu-mirage-x", "what it does", ":8080", ":8081", "120.0"):
        assert expected in text
