"""The shared command line."""

import argparse
from dataclasses import replace

import pytest

from controllers.runtime.errors import ConfigurationError
from controllers.runtime.options import (
    ManagerOptions,
    election_options,
    manager_options,
    parser_for,
    positive_float,
    positive_int,
    shard_count,
    worker_count,
)


def test_no_flag_gives_the_documented_defaults() -> None:
    assert manager_options(parser_for("x", "y").parse_args([])) == ManagerOptions()


def test_every_flag_reaches_its_option() -> None:
    arguments = [
        "--kubeconfig=/k", "--context=c", "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:1",
        "--cache-sync-timeout=2.5", "--workers=7", "--log-format=json", "--log-level=debug",
        "--leader-elect", "--leader-elect-lease-duration=30", "--leader-elect-renew-deadline=20",
        "--leader-elect-retry-period=5", "--leader-elect-resource-name=n", "--leader-elect-resource-namespace=ns",
        "--no-leader-elect-release-on-cancel", "--shards=8",
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
        leader_elect=True,
        leader_elect_lease_duration=30.0,
        leader_elect_renew_deadline=20.0,
        leader_elect_retry_period=5.0,
        leader_elect_resource_name="n",
        leader_elect_resource_namespace="ns",
        leader_elect_release_on_cancel=False,
        shards=8,
    )


def test_the_flags_of_an_election_reach_it() -> None:
    options = ManagerOptions(
        leader_elect_lease_duration=30.0,
        leader_elect_renew_deadline=20.0,
        leader_elect_retry_period=5.0,
        leader_elect_resource_name="n",
        leader_elect_resource_namespace="ns",
        leader_elect_release_on_cancel=False,
    )
    made = election_options(options)
    assert str(made) == "ns/n"
    assert (made.lease_duration, made.renew_deadline, made.retry_period, made.release) == (30.0, 20.0, 5.0, False)


@pytest.mark.parametrize("text", ["65", "1000"])
def test_more_shards_than_leases_can_be_kept_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text} is more than 64"):
        shard_count(text)


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
        "--leader-elect-lease-duration=0",
        "--leader-elect-retry-period=soon",
        "--shards=0",
        "--shards=65",
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


@pytest.mark.parametrize("name", ["Bad_Name!", "-a", "a-", "a..b", "a" * 254, "ä"])
def test_a_name_that_no_lease_can_have_is_refused_with_its_flag(name: str) -> None:
    options = ManagerOptions(leader_elect_resource_name=name, leader_elect_resource_namespace="here")
    with pytest.raises(ConfigurationError, match="--leader-elect-resource-name"):
        election_options(options)


def test_with_shards_the_name_of_a_lease_leaves_room_for_what_is_added() -> None:
    options = ManagerOptions(leader_elect_resource_name="a" * 245, leader_elect_resource_namespace="here")
    assert election_options(options).name == "a" * 245
    with pytest.raises(ConfigurationError, match="at most 244 characters"):
        election_options(replace(options, shards=2))
