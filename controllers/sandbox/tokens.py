"""Bearer tokens: the administrator's, and those that service accounts are given.

A service account's token is a JWT signed with a secret of this server (HMAC-SHA-256; a real cluster signs with a key
pair, so that others can check its tokens too). It is good while it has not expired and the account of that uid lives.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

ISSUER = "https://kubernetes.default.svc.cluster.local"
MASTERS = "system:masters"
ACCOUNTS = "system:serviceaccounts"
AUTHENTICATED = "system:authenticated"
MINIMUM_LIFETIME = 600  # seconds, the API's
MAXIMUM_LIFETIME = 2**32  # seconds, the API's
DEFAULT_LIFETIME = 3600  # seconds, the API's
REMEMBERED = 1000  # tokens whose signatures need not be checked again


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""


ANONYMOUS = Identity("system:anonymous", ("system:unauthenticated",))
ADMIN = Identity("admin", (MASTERS, AUTHENTICATED))


@dataclass(frozen=True, slots=True)
class Account:
    """A service account that a token was given to, and when the token ends (seconds since 1970)."""

    namespace: str
    name: str
    uid: str
    expires: int
    audiences: tuple[str, ...] = ()  # for whom the token is good; none are all

    def identity(self) -> Identity:
        user = f"system:serviceaccount:{self.namespace}:{self.name}"
        return Identity(user, (ACCOUNTS, f"{ACCOUNTS}:{self.namespace}", AUTHENTICATED), self.uid)


def make_secret() -> bytes:
    """What tokens are signed with."""
    return secrets.token_bytes(32)


class Tokens:
    """Makes and reads tokens with one secret."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or make_secret()
        self._known: dict[str, dict[str, Any]] = {}
        self.admin = self._sign({"sub": "admin"})

    def revoke(self, secret: bytes) -> None:
        """Makes every token that was ever given worthless, as if its time were over; the administrator gets another."""
        self._secret = secret
        self._known.clear()
        self.admin = self._sign({"sub": "admin"})

    def issue(self, account: Account, issued: int, audiences: list[str]) -> str:
        """A token for a service account from ``issued`` on, in seconds since 1970."""
        subject = f"system:serviceaccount:{account.namespace}:{account.name}"
        reference = {
            "namespace": account.namespace,
            "serviceaccount": {"name": account.name, "uid": account.uid},
        }
        return self._sign(
            {
                "aud": audiences,
                "exp": account.expires,
                "iat": issued,
                "nbf": issued,
                "iss": ISSUER,
                "sub": subject,
                "kubernetes.io": reference,
            }
        )

    def read(self, token: str, now: float) -> Account | Identity | None:
        """Whom a token stands for; None where it was not made here or has ended."""
        claims = self._verified(token)
        if claims is None:
            return None
        if claims["sub"] == "admin":
            return ADMIN
        if claims["exp"] <= now:
            return None
        reference = claims["kubernetes.io"]
        account = reference["serviceaccount"]
        return Account(
            reference["namespace"], account["name"], account["uid"], claims["exp"], tuple(claims.get("aud") or ())
        )

    def _sign(self, claims: dict[str, Any]) -> str:
        header = _base64({"alg": "HS256", "typ": "JWT"})
        content = f"{header}.{_base64(claims)}"
        return f"{content}.{self._signature(content)}"

    def _verified(self, token: str) -> dict[str, Any] | None:
        claims = self._known.get(token)
        if claims is None and (claims := self._checked(token)) is not None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[token] = claims
        return claims

    def _checked(self, token: str) -> dict[str, Any] | None:
        content, _, signature = token.rpartition(".")
        if not token.isascii() or not hmac.compare_digest(self._signature(content), signature):
            return None
        _, _, payload = content.partition(".")
        try:
            claims: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=="))
        except (binascii.Error, msgspec.DecodeError):
            return None
        return claims

    def _signature(self, content: str) -> str:
        digest = hmac.new(self._secret, content.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _base64(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()
