"""bench/soak.sh and bench/client_rate.sh with programs that only pretend: what
they start ends with them, and what goes wrong is said."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"

SERVER = """#!{python}
import os, signal, sys, time
open("server.pid", "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("listening grpc=127.0.0.1:55699", flush=True)
while True:
    time.sleep(60)
"""
# Does what the file `client.does` says: a status to exit with, or "hang".
CLIENT = """#!{python}
import os, signal, sys, time
does = open("client.does").read()
open("client.calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
print("what the client says", file=sys.stderr, flush=True)
if does == "hang":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    open("client.pid", "w").write(str(os.getpid()))
    while True:
        time.sleep(60)
sys.exit(int(does))
"""


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(condition)
        time.sleep(0.02)


def gone(pid):
    """Ended, whether or not its status was read."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program("recurve-server", SERVER)
        self.program("recurve-client", CLIENT)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text.replace("{python}", sys.executable))
        path.chmod(0o755)

    def start(self, script, does):
        (self.folder / "client.does").write_text(does)
        model = ["model"] if script == "soak.sh" else []
        return subprocess.Popen(
            ["bash", str(BENCH / script), str(self.folder), *model],
            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def pid(self, name):
        path = self.folder / f"{name}.pid"
        wait_for(lambda: path.exists() and path.read_text())
        return int(path.read_text())

    def calls(self):
        return (self.folder / "client.calls").read_text().splitlines()

    def test_soak_runs_against_its_own_server(self):
        soak = self.start("soak.sh", "0")
        _, err = soak.communicate(timeout=60)
        self.assertEqual(soak.returncode, 0, err)
        self.assertEqual(len(self.calls()), 5)
        for call in self.calls():
            self.assertTrue(call.startswith("bench --server 127.0.0.1:55699 "), call)
        wait_for(lambda: gone(self.pid("server")))
        self.assertTrue((self.folder / "server.log").exists())

    def test_soak_goes_on_after_a_failure_and_says_so(self):
        soak = self.start("soak.sh", "1")
        soak.communicate(timeout=60)
        self.assertEqual(soak.returncode, 1)
        self.assertEqual(len(self.calls()), 5)

    def test_soak_stops_when_the_client_was_interrupted(self):
        soak = self.start("soak.sh", "130")
        soak.communicate(timeout=60)
        self.assertEqual(soak.returncode, 130)
        self.assertEqual(len(self.calls()), 1)
        wait_for(lambda: gone(self.pid("server")))

    def test_soak_leaves_nothing_running(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number=number):
                for name in ("client.pid", "server.pid"):
                    (self.folder / name).unlink(missing_ok=True)
                soak = self.start("soak.sh", "hang")
                client, server = self.pid("client"), self.pid("server")
                soak.send_signal(number)
                soak.communicate(timeout=60)
                self.assertEqual(soak.returncode, 128 + number)
                wait_for(lambda: gone(client) and gone(server))

    def test_client_rate_says_that_there_is_no_token_source(self):
        self.program("recurve-token-source", "#!/bin/sh\nexit 3\n")
        rate = self.start("client_rate.sh", "0")
        _, err = rate.communicate(timeout=60)
        self.assertEqual(rate.returncode, 1)
        self.assertIn("recurve-token-source did not come up", err)
        self.assertFalse((self.folder / "client.calls").exists())

    def test_client_rate_shows_what_the_client_says(self):
        self.program("recurve-token-source", SERVER)
        rate = self.start("client_rate.sh", "1")
        _, err = rate.communicate(timeout=60)
        self.assertEqual(rate.returncode, 1)
        self.assertIn("what the client says", err)
        wait_for(lambda: gone(self.pid("server")))


if __name__ == "__main__":
    unittest.main()
