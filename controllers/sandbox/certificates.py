"""The certificates of a sandbox: a CA of its own, and a serving certificate that is made anew at every start.

Keys are EC (P-256), because making RSA keys would take longer than everything else at the start.
"""

import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = dt.timedelta(days=365)
AUTHORITY_VALIDITY = dt.timedelta(days=3650)
"""A kept CA goes on being trusted by the kubeconfigs of old; kubeadm's lives as long."""
BACKDATE = dt.timedelta(hours=1)
"""How long before now certificates begin to be valid, so that a clock that is stepped back breaks nothing."""
NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server shows and what its clients must trust, as PEM."""

    ca: bytes
    certificate: bytes
    key: bytes

    def context(self) -> ssl.SSLContext:
        """The TLS settings of the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The ssl module reads keys from files only.
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "serving.pem")
            path.touch(mode=0o600)
            path.write_bytes(self.key + self.certificate)
            context.load_cert_chain(path)
        return context


def make_authority() -> bytes:
    """A CA: its key and its certificate, as PEM."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("gpu-mirage-sandbox-ca")
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key) + _pem(certificate)


def make_serving(authority: bytes, addresses: Sequence[str]) -> Serving:
    """A certificate of the CA for a server on the given IP addresses, and on localhost. Raises ValueError."""
    ca, ca_key = x509.load_pem_x509_certificate(authority), serialization.load_pem_private_key(authority, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("gpu-mirage-sandbox")
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in NAMES]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    certificate = (
        _builder(name, ca.subject, key.public_key(), VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Serving(_pem(ca), _pem(certificate), _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
