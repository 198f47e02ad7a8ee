"""Packs a server with deploy/bundle.sh and looks at what is in the tarball. Argument: the
program recurve-server. Exit status 77, and a line that says why, where this is no
Debian or Ubuntu or a program is missing."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

for program in ("dpkg-query", "strip", "xz"):
    if not shutil.which(program):
        print(f"skipped: there is no {program}")
        sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = pathlib.Path(sys.argv.pop(1)).resolve()


class Bundle(unittest.TestCase):
    def test_what_is_in_it(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        tarball = folder / "out/recurve.tar.xz"
        subprocess.run([ROOT / "deploy/bundle.sh", SERVER.parent, tarball, SERVER.name],
                       check=True, timeout=250, stdout=subprocess.DEVNULL,
                       env={**os.environ, "XZ_LEVEL": "0"})
        # Nothing half written stays behind.
        self.assertEqual({tarball.name, tarball.name + ".sha256"},
                         {p.name for p in tarball.parent.iterdir()})
        digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
        self.assertEqual(f"{digest}  {tarball.name}\n",
                         (tarball.parent / (tarball.name + ".sha256")).read_text())
        subprocess.run(["tar", "-C", folder, "-xf", tarball], check=True)
        (top,) = folder.glob("recurve-*")
        self.assertEqual((ROOT / "LICENSE").read_text(), (top / "LICENSE").read_text())
        version = subprocess.run([top / "bin" / SERVER.name, "--version"], text=True,
                                 check=True, capture_output=True).stdout.split()[1]
        sbom = json.loads((top / "share/sbom/recurve.spdx.json").read_text())
        self.assertEqual(("recurve", version), (sbom["packages"][0]["name"],
                                                sbom["packages"][0]["versionInfo"]))
        packages = {p["name"] for p in sbom["packages"][1:]}
        # One with a library here, one that is headers alone; not those of an image.
        self.assertTrue(list((top / "lib").glob("libprotobuf.so*")))
        self.assertTrue([p for p in packages if p.startswith("libprotobuf")])
        self.assertIn("nlohmann-json3-dev", packages)
        self.assertNotIn("ca-certificates", packages)
        for package in packages:
            self.assertTrue((top / "share/doc" / package / "copyright").is_file(), package)


if __name__ == "__main__":
    unittest.main()
