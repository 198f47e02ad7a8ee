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

// What the process writes to standard error and standard output, through a
// thread for each: while it exists, spdlog's default logger and the methods
// here hand over their lines and never wait for the reader. At most
// kMaxLines wait; one more drops the oldest. Lines that are dropped, or cannot
// be written (a full disk), are counted, and a line of its own in the log says
// how many before the next one.
//
// Not spdlog's asynchronous logger, whose end waits for its thread, however
// long that hangs in a write.
//
// Thread safety: all methods may be called from any thread.
class ProcessLog {
 public:
  static constexpr int kMaxLines = 1024;
  // How long a reader may read nothing before the process ends without it.
  static constexpr std::chrono::milliseconds kPatience{1000};

  // At most one at a time. Its threads have all signals blocked, so they may be
  // started before the thread that waits for signals. ResourceExhausted where
  // the system gives no thread.
  static absl::StatusOr<std::unique_ptr<ProcessLog>> Start(
      int error_fd = STDERR_FILENO, int output_fd = STDOUT_FILENO);
  // Flushes. A thread that hangs in a write is left to the end of the process.
  ~ProcessLog();

  // A line of standard output, after what was logged before it, where that is
  // read: waits for it as Flush does.
  void Print(std::string line);
  // A line of standard error as it is, without time and level.
  void PrintError(std::string line);

  // Waits until all lines before it are written or dropped, but no longer than
  // `patience` in which none is. Whether they are.
  bool Flush(std::chrono::milliseconds patience = kPatience);

 private:
  class Lines;
  class Sink;
  // Its end flushes it.
  struct File {
    static absl::StatusOr<File> Open(int fd, bool is_log);
    File() = default;
    File(File&&) = default;
    File& operator=(File&&) = delete;
    ~File();

    std::shared_ptr<Lines> lines;  // the thread holds them, too
    std::thread thread;
  };

  ProcessLog(File error, File output);

  const File error_;
  const File output_;
};

// Lines dropped since the process started.
int64_t DroppedLogLines();

// For what is about to call std::_Exit: flushes the log, if there is one, with
// a patience of 100 ms.
void FlushProcessLog();

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_PROCESS_LOG_H_
