"""`dev` and cmake/cuda.cmake, with programs that only pretend: what is installed,
which nvcc is taken, what RECURVE_CUDA may say, and what is told about tests that do
not run. Argument: the program cmake."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop(1)

PROJECT = f"""cmake_minimum_required(VERSION 3.22)
project(pretends LANGUAGES NONE)
include("{ROOT}/cmake/cuda.cmake")
"""
# An nvcc that compiles nothing.
NVCC = """#!/bin/sh
touch "{folder}/nvcc.called"
echo "Cuda compilation tools, release {version}, V{version}.0"
[ "$1" = --version ]
"""
LOG = """1/4 Testing: alerts_test
1/4 Test: alerts_test
Output:
----------------------------------------------------------
skipped: there is no promtool (apt-get install prometheus)
<end of output>
2/4 Test: client_test
Output:
----------------------------------------------------------
[       OK ] Client.IsNotSkipped
<end of output>
3/4 Test: python_client_test
Output:
----------------------------------------------------------
skipped: No module named 'google'
<end of output>
4/4 Test: other_client_test
Output:
----------------------------------------------------------
skipped: No module named 'google'
<end of output>
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = self.folder / "programs"
        self.programs.mkdir()

    def program(self, name, text):
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def nvcc(self, name, version):
        return self.program(name, NVCC.format(folder=self.folder, version=version))

    def run_program(self, *command, cudacxx=None):
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        environment.pop("CUDACXX", None)
        if cudacxx:
            environment["CUDACXX"] = str(cudacxx)
        return subprocess.run(command, cwd=self.folder, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment)


class DevTest(BuildTest):
    def setUp(self):
        super().setUp()
        shutil.copy(ROOT / "dev", self.folder)
        self.program("dpkg-query", "#!/bin/sh\necho install ok installed\n")
        self.program("cmake", "#!/bin/sh\necho '-- No python3: much is not tested'\n")
        self.program("ctest", "#!/bin/sh\n")

    def dev(self, *arguments, **options):
        result = self.run_program("bash", "dev", *arguments, **options)
        self.assertEqual(0, result.returncode, result.stdout)
        return result.stdout

    def installed(self, *arguments):
        log = self.folder / "apt.log"
        self.program("dpkg-query", "#!/bin/sh\nexit 1\n")
        self.program("sudo", '#!/bin/sh\nexec "$@"\n')
        self.program("apt-get", f'#!/bin/sh\necho "$@" >>"{log}"\n')
        log.unlink(missing_ok=True)
        self.dev("setup", *arguments)
        return log.read_text().split()

    def test_python_is_installed_for_tests_alone(self):
        self.assertIn("python3", self.installed())
        self.assertNotIn("python3", self.installed("release"))

    def test_says_why_tests_are_skipped(self):
        log = self.folder / "build/cpu/Testing/Temporary/LastTest.log"
        log.parent.mkdir(parents=True)
        log.write_text(LOG)
        lines = self.dev("test", "cpu").splitlines()
        self.assertIn("No python3: much is not tested", lines)
        self.assertEqual(
            ["Skipped (there is no promtool (apt-get install prometheus)): alerts_test",
             "Skipped (No module named 'google'): python_client_test other_client_test"],
            [x for x in lines if x.startswith("Skipped")])

    def test_takes_the_nvcc_that_a_build_takes(self):
        nvcc = self.nvcc("nvcc", "11.0")
        (self.folder / "CMakeLists.txt").write_text(PROJECT)
        # It looks for nvcc and then refuses this architecture, before it compiles.
        self.run_program(CMAKE, "-G", "Ninja", "-S", ".", "-B", "b",
                         "-DRECURVE_CUDA=auto", "-DCMAKE_CUDA_ARCHITECTURES=90")
        (taken,) = re.findall(r"^RECURVE_NVCC:\w+=(.*)$",
                              (self.folder / "b/CMakeCache.txt").read_text(), re.M)
        said = "The CUDA toolkit here is 11.0;" in self.dev("build", "cpu")
        self.assertEqual(taken == str(nvcc), said, taken)
        # Where it is named, with an option, nothing else is looked at.
        named = self.nvcc("named", "11.1")
        self.assertIn("The CUDA toolkit here is 11.1;",
                      self.dev("build", "cpu", cudacxx=f"{named} -v"))


class PythonClientTest(BuildTest):
    def test_is_skipped_with_packages_that_are_too_old(self):
        """Debian's are."""
        (self.folder / "google/protobuf").mkdir(parents=True)
        (self.folder / "google/__init__.py").touch()
        (self.folder / "pytest.py").touch()
        for grpcio, protobuf, line in (
                ("1.51.1", "4.22.0", "skipped: grpcio is 1.51.1, the client needs 1.60"),
                ("1.60.0", "3.21.12", "skipped: protobuf is 3.21.12, the client needs 4.22")):
            with self.subTest(line):
                (self.folder / "grpc.py").write_text(f"__version__ = '{grpcio}'\n")
                (self.folder / "google/protobuf/__init__.py").write_text(
                    f"__version__ = '{protobuf}'\n")
                result = self.run_program(
                    "env", f"PYTHONPATH={self.folder}", "PYTHONDONTWRITEBYTECODE=1",
                    sys.executable, str(ROOT / "client/python/tests/run.py"), "server")
                self.assertEqual((77, line + "\n"), (result.returncode, result.stdout))


class CudaOptionTest(BuildTest):
    def configure(self, value):
        """(exit status, output, whether nvcc was called), of a project with an nvcc
        that compiles nothing."""
        (self.folder / "CMakeLists.txt").write_text(PROJECT)
        result = self.run_program(
            CMAKE, "-G", "Ninja", "-S", ".", "-B", f"b_{value}", f"-DRECURVE_CUDA={value}",
            cudacxx=self.nvcc("nvcc", "13.0"))
        called = self.folder / "nvcc.called"
        was_called = called.exists()
        called.unlink(missing_ok=True)
        return result.returncode, " ".join(result.stdout.split()), was_called

    def test_off_in_all_its_spellings(self):
        for value in ("off", "OFF", "False", "no", "0"):
            with self.subTest(value):
                status, output, called = self.configure(value)
                self.assertEqual(0, status, output)
                self.assertIn("No CUDA toolkit in this build: CPU only", output)
                self.assertFalse(called, output)

    def test_on_in_all_its_spellings_requires_a_compiler(self):
        for value in ("on", "ON", "True", "yes", "1"):
            with self.subTest(value):
                status, output, _ = self.configure(value)
                self.assertNotEqual(0, status, output)
                self.assertIn(f"RECURVE_CUDA={value} but no CUDA compiler (nvcc) was found",
                              output)

    def test_auto_builds_without_a_compiler(self):
        for value in ("auto", "AUTO"):
            with self.subTest(value):
                status, output, called = self.configure(value)
                self.assertEqual(0, status, output)
                self.assertIn("No CUDA toolkit in this build: CPU only", output)
                self.assertTrue(called, output)

    def test_another_value_is_refused(self):
        status, output, _ = self.configure("maybe")
        self.assertNotEqual(0, status, output)
        self.assertIn("RECURVE_CUDA is 'maybe'; expected auto, on or off", output)


if __name__ == "__main__":
    unittest.main()
