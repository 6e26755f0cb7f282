"""`recovery ui`: pages and JSON about flows, until a signal ends the command."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from recovery.base.addresses import host_and_port
from recovery.base.clock import Clock, SystemClock
from recovery.base.credentials.server_certificate import CertificateFiles
from recovery.base.credentials.token import read_tokens
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, RecoveryError
from recovery.host.children import yield_to_others
from recovery.host.signals import StopSignals
from recovery.owner.serving import listening, port_of
from recovery.owner.watch.loopback import is_loopback
from recovery.ui.server.admission import Admission
from recovery.ui.server.gate import Gate
from recovery.ui.server.listening import ListeningServer
from recovery.ui.server.prefix import checked_prefix
from recovery.ui.server.signed_in import SignedIn
from recovery.wire.address import location

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class UiSettings:
    """Where the pages are, and who gets in.

    at: "HOST:PORT", or ":PORT" for the loopback interface. token_file: without one, only this machine's users get in.
    prefix: what all paths begin with, behind a proxy. insecure: listen on another interface without TLS.
    owners_token_file: a token that is not accepted: who has it can change partitions at owners.
    """

    at: str = ":0"
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    prefix: str = ""
    insecure: bool = False
    owners_token_file: Path | None = None


class UiService:
    """Serves an application's pages, until `stop`."""

    def __init__(
        self,
        app: Callable[[Admission], ASGIApp],
        settings: UiSettings,
        log: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        """app: makes the application, which shows the form to sign in by the `Admission`. Raises ConfigurationError."""
        self._settings, self._log = settings, log
        self._read()
        host, port = host_and_port(settings.at)
        host = host.strip("[]") or LOOPBACK
        self._check(host, location(host, port))
        prefix = checked_prefix(settings.prefix)
        with ExitStack() as opened:
            listener = opened.enter_context(listening(host, port))
            self.port = port_of(listener.fileno())
            scheme = "http" if self._tls is None else "https"
            self.url = f"{scheme}://{location(host, self.port)}{prefix}/"
            signed_in = SignedIn(clock or SystemClock(), f"{prefix}/")
            self.admission = Admission(lambda: self._tokens, signed_in, prefix)
            gate = Gate(app(self.admission), prefix, lambda: self._tokens, signed_in)
            self._server = ListeningServer(gate, listener, lambda: self._tls)
            opened.pop_all()
        self._server.start()

    def reload(self) -> None:
        """Read the token and the certificate again, for requests that come from now on. If one of the files cannot be
        used, everything stays in use."""
        try:
            self._read()
        except RecoveryError as error:
            self._log(f"not reloaded, the token and the certificate from before stay in use: {error.parts()[0]}")
            return
        self._log(f"reloaded: {counted(len(self._tokens), 'token')}{'' if self._tls is None else ', TLS'}")

    def stop(self) -> None:
        """Stop listening; answers that are under way end within seconds. May be called again."""
        self._server.stop()

    def _read(self) -> None:
        files = self._settings
        tokens = () if files.token_file is None else read_tokens(files.token_file)
        if tokens and files.owners_token_file is not None and {*tokens} & {*read_tokens(files.owners_token_file)}:
            raise ConfigurationError(
                "readers of the pages would have the token of the owners, and could change partitions with it",
                path=files.token_file,
                cause="--view-token-file and --token-file have the same token.",
                remedy="Make a token for the pages: python -c 'import secrets; print(secrets.token_hex())' > FILE",
            )
        tls: ssl.SSLContext | None = None
        if files.tls_cert is not None:
            certificate = CertificateFiles(files.tls_cert, files.tls_key)
            certificate.warn_if_shared()
            tls = certificate.read().context
        self._tokens, self._tls = tokens, tls

    def _check(self, host: str, where: str) -> None:
        if is_loopback(host):
            return
        if not self._tokens:
            raise ConfigurationError(
                f"{where} is open to other hosts, and everybody there could read all states",
                cause="No token was given.",
                remedy="Give the file of one (--view-token-file FILE), or listen on the loopback interface: --at :PORT",
            )
        if self._tls is None and not self._settings.insecure:
            raise ConfigurationError(
                f"{where} is open to other hosts, and the token and states would cross the network in plain text",
                cause="No certificate was given.",
                remedy="Give one (--tls-cert FILE --tls-key FILE), or listen on the loopback interface; or say "
                "that the network is yours alone: --insecure",
            )


def serve(app: Callable[[Admission], ASGIApp], settings: UiSettings, log: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. SIGHUP reads the token and the certificate again; on a terminal SIGHUP, too, ends
    the service. For the main thread. Raises ConfigurationError."""
    yield_to_others()
    signals = StopSignals(None if os.isatty(0) else lambda: service.reload())
    service = UiService(app, settings, log)
    log(f"at {service.url}")
    signals.wait()
    service.stop()
