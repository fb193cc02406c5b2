"""Tokens: what was made here is known, what was changed or has ended is not."""

from dataclasses import replace

import pytest

from controllers.sandbox.tokens import ADMIN, Account, Tokens

ACCOUNT = Account("space", "robot", "uid-1", expires=2000)


def test_token_stands_for_its_account_until_it_ends() -> None:
    tokens = Tokens()
    token = tokens.issue(ACCOUNT, 1000, ["anyone"])
    assert tokens.read(token, 1999.0) == replace(ACCOUNT, audiences=("anyone",))
    assert tokens.read(token, 2000.0) is None
    assert ACCOUNT.identity().user == "system:serviceaccount:space:robot"
    assert "system:serviceaccounts:space" in ACCOUNT.identity().groups


def test_admin_token_never_ends() -> None:
    tokens = Tokens()
    assert tokens.read(tokens.admin, 1e12) == ADMIN


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: "x" + t, lambda t: "", lambda t: "a.b.c", lambda t: "ä"]
)
def test_changed_token_is_nobody(change: "object") -> None:
    tokens = Tokens()
    assert callable(change)
    assert tokens.read(change(tokens.admin), 0.0) is None


def test_token_of_another_server_is_nobody() -> None:
    assert Tokens().read(Tokens().admin, 0.0) is None


def test_token_of_a_kept_secret_outlives_its_server() -> None:
    assert Tokens(b"secret").read(Tokens(b"secret").issue(ACCOUNT, 0, []), 0.0) == ACCOUNT
