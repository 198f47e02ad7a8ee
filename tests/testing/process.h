#ifndef RECURVE_TESTS_TESTING_PROCESS_H_
#define RECURVE_TESTS_TESTING_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace recurve {

// A child process whose standard output and error go to files. The destructor
// kills it if it still runs.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command,
                   const std::vector<std::string>& environment = {});
  ~Process();

  void Signal(int signal) const;
  // The exit code, or 128 + signal.
  int Wait();
  bool Running() const;
  // Resident memory, in bytes.
  int64_t MemoryBytes() const;
  int64_t OpenFiles() const;
  int64_t Threads() const;

  std::string Out() const { return Read(out_); }
  std::string Err() const { return Read(err_); }

  // HOST:PORT of a server, from its output; empty if it does not start.
  std::string GrpcAddress() const;
  // As GrpcAddress, for any of its "listening NAME=" lines. Call after it has
  // started.
  std::string Address(const std::string& name) const;

 private:
  static std::string Read(const std::string& path);

  std::string out_, err_;
  pid_t pid_ = -1;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_PROCESS_H_
