"""`dev` and cmake/cuda.cmake, with programs that only pretend: what is installed,
which nvcc is taken, what RECURVE_CUDA may say, which Python runs the tests, and what is
told about tests that do not run. Argument: the program cmake."""

import importlib.util
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
REQUIREMENTS = ("requirements.txt", "requirements-torch.txt", "requirements-tools.txt")

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
# Its venv has a pip that installs nothing. Files in the folder say what goes wrong.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) [ ! -e no-venv ] && mkdir -p "$3/bin" && cp fake-pip "$3/bin/pip" &&
               echo "#!/bin/sh" >"$3/bin/python" && chmod +x "$3/bin/python" ;;
  *"sys.exit(sys.version_info < (3, 11))"*) [ ! -e old-python ] ;;
  *"print(sys.version, sys.base_prefix)"*) [ ! -e other-python ] || echo other ;;
  *) exit 1 ;;
esac
"""
PIP = """#!/bin/sh
echo "$@" >>pip.log
[ "$1" != download ] || mkdir -p build/torch-wheels
[ ! -e pip-fails ] || ! echo "$@" | grep -q -f pip-fails
"""
TIMEOUT = """#!/bin/sh
[ ! -e expired ] || [ "$(cat expired)" != "$2" ] || exit 124
shift 2
exec "$@"
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

    def run_program(self, *command, cudacxx=None, **variables):
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        for name in ("CUDACXX", "RECURVE_PYTHON"):
            environment.pop(name, None)
        environment.update(variables)
        if cudacxx:
            environment["CUDACXX"] = str(cudacxx)
        return subprocess.run(command, cwd=self.folder, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment)


class DevTestCase(BuildTest):
    def setUp(self):
        super().setUp()
        shutil.copy(ROOT / "dev", self.folder)
        self.program("dpkg-query", "#!/bin/sh\necho install ok installed\n")
        self.program("cmake", "#!/bin/sh\necho \"$@\" >>cmake.log\n"
                     "echo '-- No python3: much is not tested'\n")
        self.program("ctest", "#!/bin/sh\n")
        self.program("timeout", TIMEOUT)
        self.python = self.program("python3", PYTHON)
        (self.folder / "fake-pip").write_text(PIP)
        (self.folder / "fake-pip").chmod(0o755)
        (self.folder / "tests").mkdir()
        for name in REQUIREMENTS:
            shutil.copy(ROOT / "tests" / name, self.folder / "tests")

    def dev(self, *arguments, **options):
        result = self.run_program("bash", "dev", *arguments, **options)
        self.assertEqual(0, result.returncode, result.stdout)
        return result.stdout


class DevTest(DevTestCase):
    def installed(self, *arguments):
        log = self.folder / "apt.log"
        self.program("dpkg-query", "#!/bin/sh\nexit 1\n")
        self.program("sudo", '#!/bin/sh\nexec "$@"\n')
        self.program("apt-get", f'#!/bin/sh\necho "$@" >>"{log}"\n')
        log.unlink(missing_ok=True)
        self.dev("setup", *arguments)
        return log.read_text().split()

    def test_python_is_installed_for_tests_alone(self):
        self.assertLessEqual({"python3", "python3-venv"}, set(self.installed()))
        self.assertTrue({"python3", "python3-venv"}.isdisjoint(self.installed("release")))

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


class PythonPackagesTest(DevTestCase):
    """Which Python `./dev test` has CMake take, and what it has pip do before."""

    def setUp(self):
        super().setUp()
        self.venv = str(self.folder / "build/venv/bin/python")
        self.tools = str(self.folder / "build/venv-tools/bin/python")

    def log(self, name):
        """The lines since the last call."""
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def check(self, *, python, pip, lines=(), presets=("cpu",), **variables):
        """One run, which has CMake take `python`, calls pip with each of `pip`, and says
        nothing but `lines` of packages."""
        output = self.dev("test", *presets, **variables)
        self.assertEqual(list(lines), re.findall(r"^No .* for the tests: .*$", output, re.M))
        for line in self.log("cmake.log"):
            if line.startswith("--preset"):
                tools = self.tools if python == self.venv else python
                self.assertEqual([f"-DRECURVE_PYTHON={python}",
                                  f"-DRECURVE_TOOLS_PYTHON={tools}"] if python else [],
                                 line.split()[2:])
        calls = self.log("pip.log")
        self.assertEqual(len(pip), len(calls), calls)
        for part, call in zip(pip, calls):
            self.assertIn(part, call)

    def tell(self, name, text=""):
        (self.folder / name).write_text(text)

    PACKAGES = ("--force-reinstall --timeout 8 --retries 1 pip==", "-r tests/requirements.txt")
    TORCH = ("download", "--no-index")
    TOOLS = ("-r tests/requirements-tools.txt",)
    NO_PACKAGES = "No Python packages for the tests: {}; what needs that is skipped"
    NO_REGISTRY = NO_PACKAGES.format("pip cannot reach a registry (build/venv.log)")
    NO_TORCH = "No torch for the tests: {}; what needs that is skipped"

    def test_are_installed_once(self):
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH + self.TOOLS,
                   presets=("cpu", "fuzz"))
        self.check(python=self.venv, pip=())
        self.assertFalse((self.folder / "build/torch-wheels").exists())

    def test_are_installed_again_after_a_change(self):
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH + self.TOOLS)
        with open(self.folder / "tests/requirements-tools.txt", "a") as file:
            file.write("more==1  # another\n")
        self.check(python=self.venv, pip=self.TOOLS)
        with open(self.folder / "tests/requirements-torch.txt", "a") as file:
            file.write("more==1  # another\n")
        self.check(python=self.venv, pip=self.TORCH)
        with open(self.folder / "tests/requirements.txt", "a") as file:
            file.write("more==1  # another\n")
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH)
        self.tell("other-python")
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH + self.TOOLS)
        self.check(python=self.venv, pip=())

    def test_an_interrupted_run_is_no_installation(self):
        self.tell("pip-fails", "tests/requirements.txt")
        self.assertNotEqual(0, self.run_program("bash", "dev", "test", "cpu").returncode)
        self.log("pip.log"), self.log("cmake.log")
        (self.folder / "pip-fails").unlink()
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH + self.TOOLS)

    def test_without_a_registry(self):
        self.tell("pip-fails", " pip==")
        self.check(python=self.python, pip=self.PACKAGES[:1], lines=[self.NO_REGISTRY])
        # The next time there may be one.
        (self.folder / "pip-fails").unlink()
        self.check(python=self.venv, pip=self.PACKAGES + self.TORCH + self.TOOLS)

    def test_without_an_answer_of_the_registry(self):
        self.tell("expired", "20")
        self.check(python=self.python, pip=(), lines=[self.NO_REGISTRY])

    @unittest.skipUnless(importlib.util.find_spec("ensurepip"), "no python3-venv")
    def test_without_a_registry_in_truth(self):
        self.program("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (self.programs / "timeout").unlink()
        self.check(python=self.python, pip=(), lines=[self.NO_REGISTRY],
                   PIP_INDEX_URL="http://127.0.0.1:9/", PIP_EXTRA_INDEX_URL="",
                   PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull, no_proxy="127.0.0.1")
        self.assertIn("No matching distribution found for pip==",
                      (self.folder / "build/venv.log").read_text())

    def test_a_package_that_the_registry_lacks_is_an_error(self):
        for broken, name in (("-r tests/requirements.txt", "requirements.txt"),
                             ("download", "requirements-torch.txt"),
                             ("--no-index", "requirements-torch.txt"),
                             ("-r tests/requirements-tools.txt", "requirements-tools.txt")):
            with self.subTest(broken):
                self.tell("pip-fails", broken.replace("-", "[-]"))
                result = self.run_program("bash", "dev", "test", "cpu")
                self.assertEqual(1, result.returncode, result.stdout)
                self.assertIn(f"dev: pip cannot install tests/{name}; RECURVE_PYTHON=python3 "
                              "./dev test does without", result.stdout.splitlines())

    def test_without_venv(self):
        self.tell("no-venv")
        reason = f"{self.python} cannot make a virtual environment (build/venv.log)"
        self.check(python=self.python, pip=(), lines=[self.NO_PACKAGES.format(reason)])

    def test_with_an_old_python(self):
        self.tell("old-python")
        self.check(python=self.python, pip=(), lines=[
            self.NO_PACKAGES.format(f"{self.python} is older than 3.11")])

    def test_torch_that_takes_too_long_is_tried_again(self):
        self.tell("expired", "300")
        line = self.NO_TORCH.format("the download takes more than 300 s")
        self.check(python=self.venv, pip=self.PACKAGES + self.TOOLS, lines=[line])
        self.check(python=self.venv, pip=(), lines=[line])
        # Nor is it an error if the registry is gone by then.
        (self.folder / "expired").unlink()
        self.tell("pip-fails", ".")
        self.check(python=self.venv, pip=("download", " pip=="), lines=[
            self.NO_TORCH.format("pip cannot reach a registry (build/venv.log)")])
        (self.folder / "pip-fails").unlink()
        self.check(python=self.venv, pip=self.TORCH)

    def test_a_named_python_is_taken_as_it_is(self):
        self.check(python=sys.executable, pip=(), RECURVE_PYTHON=sys.executable)
        result = self.run_program("bash", "dev", "test", "cpu", RECURVE_PYTHON="no-such-python")
        self.assertEqual(1, result.returncode)
        self.assertIn("RECURVE_PYTHON: there is no program 'no-such-python'", result.stdout)

    def test_builds_and_fuzz_targets_need_none(self):
        self.check(python=None, pip=(), presets=("fuzz",))
        self.dev("build", "cpu")
        self.assertIn("--preset cpu", self.log("cmake.log"))

    def test_each_is_pinned_and_says_what_it_is_for(self):
        for name in REQUIREMENTS:
            for line in (ROOT / "tests" / name).read_text().splitlines():
                if line and not line.startswith("#"):
                    self.assertRegex(line, r"^[a-z0-9-]+==[0-9][0-9a-z.]*  # \S")


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
