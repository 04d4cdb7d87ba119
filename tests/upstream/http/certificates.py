"""Throw-away certificates for servers on the loopback."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY: Final = dt.timedelta(days=1)


class Authority:
    """Signs the certificates of servers. `file` holds its own certificate, which clients are to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("an authority of these tests")
        self.file = folder / "authority.pem"
        self.file.write_bytes(_pem(_signed(self._name, self._key, self._name, self._key, [], is_authority=True)))

    def server(self, *names: str, starts: dt.timedelta = -DAY, ends: dt.timedelta = DAY) -> ssl.SSLContext:
        """What a server of these names (or addresses) needs; its certificate holds from `starts` to `ends`, both
        counted from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(_name("a server"), key, self._name, self._key, names, starts=starts, ends=ends)
        return _server(self._folder / "signed.pem", key, certificate)


def certified(folder: Path, *, name: str = "localhost") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server of that name (or of 127.0.0.1) needs that signs its certificate itself, and what a client that
    trusts it needs."""
    key, file = ec.generate_private_key(ec.SECP256R1()), folder / "server.pem"
    subject = _name("test")
    server = _server(file, key, _signed(subject, key, subject, key, [name, "127.0.0.1"], is_authority=True))
    return server, ssl.create_default_context(cafile=file)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: list[str] | tuple[str, ...],
    *,
    starts: dt.timedelta = -DAY,
    ends: dt.timedelta = DAY,
    is_authority: bool = False,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + starts)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(_usage_of_authority(), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage_of_authority() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _server(file: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> ssl.SSLContext:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + _pem(certificate))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(file)
    return server


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
