"""A real app on a free port with a home of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_S = 90


class AppServer:
    """`streamlit run app.py` in its own process group; `restart()` keeps the home."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home.parent / f"{home.name}-app.log"

    def start(self) -> None:
        environment = os.environ | {"KVSCOPE_HOME": str(self.home)} | self._environment
        command = [sys.executable, "-m", "streamlit", "run", "app.py"]
        command += ["--server.port", str(self.port), "--server.headless", "true"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2),
            ):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"the app did not start:\n{self.log.read_text()[-3000:]}")

    def stop(self) -> None:
        if self._process is None:
            return
        group = self._process.pid
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
