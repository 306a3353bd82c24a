"""A server that speaks TLS, with a certificate for localhost that signs itself."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

from .server import Server


def certify(folder: Path) -> bool:
    """Writes cert.pem and key.pem into ``folder``. Returns whether there is an openssl for it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return False
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
               "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return True


class TlsServer(Server):
    """Answers on its Unix socket, and by TLS on ``tls_port``."""

    tls_port = 0

    def _arguments(self, port: int) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.tls_port = probe.getsockname()[1]
        return [*super()._arguments(port), "--tls-port", str(self.tls_port)]
