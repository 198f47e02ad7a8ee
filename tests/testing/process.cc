#include "tests/testing/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gtest/gtest.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {

Process::Process(const std::vector<std::string>& command,
                 const std::vector<std::string>& environment) {
  static std::atomic<int> counter = 0;
  const std::string base = testing::TempDir() + "process_" +
                           std::to_string(getpid()) + "_" +
                           std::to_string(counter++);
  out_ = base + ".out";
  err_ = base + ".err";
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  const int out =
      open(out_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  const int err =
      open(err_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out, 1);
    dup2(err, 2);
    for (const std::string& entry : environment) {
      putenv(const_cast<char*>(entry.c_str()));
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out);
  close(err);
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
  std::filesystem::remove(out_);
  std::filesystem::remove(err_);
}

void Process::Signal(int signal) const { kill(pid_, signal); }

int Process::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool Process::Running() const {
  siginfo_t info = {};
  return pid_ > 0 &&
         waitid(P_PID, static_cast<id_t>(pid_), &info,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

int64_t Process::MemoryBytes() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  int64_t all = 0;
  int64_t resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

namespace {

int64_t CountEntries(const std::string& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return std::distance(begin(entries), end(entries));
}

}  // namespace

int64_t Process::OpenFiles() const {
  return CountEntries("/proc/" + std::to_string(pid_) + "/fd");
}

int64_t Process::Threads() const {
  return CountEntries("/proc/" + std::to_string(pid_) + "/task");
}

std::string Process::Address(const std::string& name) const {
  const std::string key = "listening " + name + "=";
  const std::string out = Out();
  const size_t at = out.find(key);
  if (at == std::string::npos) return "";
  const size_t end = out.find('\n', at);
  if (end == std::string::npos) return "";
  return out.substr(at + key.size(), end - at - key.size());
}

std::string Process::GrpcAddress() const {
  std::string address;
  WaitFor([&] { return !(address = Address("grpc")).empty(); });
  return address;
}

std::string Process::Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace recurve
