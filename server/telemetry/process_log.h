#ifndef RECURVE_SERVER_TELEMETRY_PROCESS_LOG_H_
#define RECURVE_SERVER_TELEMETRY_PROCESS_LOG_H_

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace recurve {

// The standard error and standard output of the process, each written by a
// thread: while it exists, spdlog's default logger and the methods here queue
// their lines and never wait for the reader. At most kMaxLines wait; one more
// drops the oldest. Lines that are dropped, or cannot be written (a full disk),
// are counted; the log then states their number in a separate line before the
// next one.
//
// Not spdlog's asynchronous logger, whose destructor waits for its thread,
// however long that hangs in a write.
//
// Thread safety: all methods may be called from any thread.
class ProcessLog {
 public:
  static constexpr int kMaxLines = 1024;
  // How long a reader may be stuck before the process ends without it.
  static constexpr std::chrono::milliseconds kPatience{1000};

  // At most one at a time. Its threads have all signals blocked, so they may be
  // started before the thread that waits for signals. ResourceExhausted if the
  // system refuses a thread.
  static absl::StatusOr<std::unique_ptr<ProcessLog>> Start(
      int error_fd = STDERR_FILENO, int output_fd = STDOUT_FILENO);
  // Flushes. A thread that hangs in a write is left until the process ends.
  ~ProcessLog();

  // Writes a line to standard output, after the lines logged before it, if
  // standard error is read: waits for them as Flush does.
  void Print(std::string line);
  // Writes a line to standard error without time and level.
  void PrintError(std::string line);

  // Waits until all earlier lines are written or dropped, but at most for
  // `patience` without progress. Returns whether they are.
  bool Flush(std::chrono::milliseconds patience = kPatience);

 private:
  class Lines;
  class Sink;
  // The destructor flushes it.
  struct File {
    static absl::StatusOr<File> Open(int fd, bool is_log);
    File() = default;
    File(File&&) = default;
    File& operator=(File&&) = delete;
    ~File();

    std::shared_ptr<Lines> lines;  // also held by the thread
    std::thread thread;
  };

  ProcessLog(File error, File output);

  const File error_;
  const File output_;
};

// Lines dropped since the process started.
int64_t DroppedLogLines();

// To be called before std::_Exit: flushes the log, if there is one, with a
// patience of 100 ms.
void FlushProcessLog();

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_PROCESS_LOG_H_
