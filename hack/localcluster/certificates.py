"""Certificates of a control plane: one CA, serving and client certificates, and the service-account key pair.

Keys are EC (P-256) because making RSA keys would take longer than starting the API server. The certificates pass
OpenSSL's strict checks (`ssl.VERIFY_X509_STRICT`, on by default from Python 3.13).
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hack.localcluster.layout import Layout

VALIDITY = dt.timedelta(days=365)
# A certificate is valid from a little before now, so that a clock that is stepped back does not break the cluster.
BACKDATE = dt.timedelta(hours=1)
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
SERVER_ADDRESSES = ("127.0.0.1", "10.96.0.1")
SERVING = "serving"
SERVICE_ACCOUNT = "service-account"
MASTERS = "system:masters"


@dataclass(frozen=True)
class ClientIdentity:
    """User and groups that a client certificate stands for."""

    user: str
    groups: tuple[str, ...] = ()


CLIENTS = {
    "admin": ClientIdentity("admin", (MASTERS,)),
    "kube-controller-manager": ClientIdentity("system:kube-controller-manager"),
    "kube-scheduler": ClientIdentity("system:kube-scheduler"),
    "kwok": ClientIdentity("kwok", (MASTERS,)),
}


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def write_certificates(layout: Layout) -> None:
    """Fill `layout.pki`. What a complete earlier run wrote is kept, so that tokens outlive a restart."""
    # The service-account key is written last: where it exists, all the others do.
    if layout.key(SERVICE_ACCOUNT).exists():
        return
    layout.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _make_authority()
    layout.ca.write_bytes(_certificate_pem(authority.certificate))
    _write_serving(layout, authority)
    for name, identity in CLIENTS.items():
        _write_client(layout, authority, name, identity)
    _write_service_account_keys(layout)


def _make_authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("gpu-mirage-local-cluster")
    builder = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _write_serving(layout: Layout, authority: _Authority) -> None:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
    alternatives = x509.SubjectAlternativeName([*names, *addresses])
    _write_leaf(layout, authority, SERVING, _name("kube-apiserver"), [alternatives, _usage(server=True)])


def _write_client(layout: Layout, authority: _Authority, name: str, identity: ClientIdentity) -> None:
    subject = _name(identity.user, identity.groups)
    _write_leaf(layout, authority, name, subject, [_usage(server=False)])


def _write_leaf(
    layout: Layout, authority: _Authority, name: str, subject: x509.Name, extensions: Sequence[x509.ExtensionType]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(subject, authority.certificate.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(issuer_key, critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    layout.certificate(name).write_bytes(_certificate_pem(builder.sign(authority.key, hashes.SHA256())))
    _write_secret(layout.key(name), _key_pem(key))


def _write_service_account_keys(layout: Layout) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (layout.pki / f"{SERVICE_ACCOUNT}.pub").write_bytes(public)
    _write_secret(layout.key(SERVICE_ACCOUNT), _key_pem(key))


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, server: bool) -> x509.ExtendedKeyUsage:
    return x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
