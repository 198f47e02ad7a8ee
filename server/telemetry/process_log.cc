#include "server/telemetry/process_log.h"

#include <poll.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

std::atomic<int64_t> dropped_lines{0};

Mutex current_mu;
ProcessLog* current ABSL_GUARDED_BY(current_mu) = nullptr;

// Returns whether everything was written.
bool Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // another process may have set O_NONBLOCK
      pollfd writable = {fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

// A file and its queued lines. The log's instance reports dropped lines.
class ProcessLog::Lines {
 public:
  Lines(int fd, bool is_log) : fd_(fd), is_log_(is_log) {}

  void Push(std::string line) {
    MutexLock lock(&mu_);
    if (waiting_.size() == kMaxLines) {
      waiting_.pop_front();
      ++done_;
      dropped_lines.fetch_add(1);
    }
    waiting_.push_back(std::move(line));
    ++pushed_;
    changed_.NotifyAll();
  }

  // Writes the lines, until Stop.
  void Run() {
    while (const std::optional<std::string> line = Next()) {
      if (is_log_) SayDropped();
      if (!Write(fd_, *line)) dropped_lines.fetch_add(1);
      MutexLock lock(&mu_);
      ++done_;
      changed_.NotifyAll();
    }
  }

  bool Flush(std::chrono::milliseconds patience) {
    MutexLock lock(&mu_);
    const int64_t all = pushed_;
    int64_t done = done_;
    auto end = std::chrono::steady_clock::now() + patience;
    while (done_ < all) {
      if (done_ != done) {
        done = done_;
        end = std::chrono::steady_clock::now() + patience;
      }
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      changed_.WaitFor(&mu_, left);
    }
    return true;
  }

  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }

 private:
  std::optional<std::string> Next() {
    MutexLock lock(&mu_);
    while (waiting_.empty() && !stopped_) changed_.Wait(&mu_);
    if (waiting_.empty()) return std::nullopt;
    std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    return line;
  }

  void SayDropped() {
    const int64_t dropped = dropped_lines.load();
    if (dropped == said_) return;
    if (Write(fd_,
              absl::StrCat("recurve-server: ", dropped - said_,
                           " lines of this log were dropped: they could not be "
                           "written, or not as fast as they came\n"))) {
      said_ = dropped;
    }
  }

  const int fd_;
  const bool is_log_;
  int64_t said_ = dropped_lines.load();  // used by the thread only

  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;  // written or dropped
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

// The sink of spdlog's loggers.
class ProcessLog::Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(std::shared_ptr<Lines> lines) : lines_(std::move(lines)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    lines_->Push(std::string(line.data(), line.size()));
  }
  void flush_() override {}  // would block

 private:
  const std::shared_ptr<Lines> lines_;
};

absl::StatusOr<ProcessLog::File> ProcessLog::File::Open(int fd, bool is_log) {
  File file;
  file.lines = std::make_shared<Lines>(fd, is_log);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  absl::StatusOr<std::thread> thread =
      StartThread("the log", [lines = file.lines] { lines->Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  RECURVE_RETURN_IF_ERROR(thread.status());
  file.thread = *std::move(thread);
  return file;
}

ProcessLog::File::~File() {
  if (!thread.joinable()) return;
  const bool written = lines->Flush(kPatience);
  lines->Stop();
  if (written) {
    thread.join();
  } else {
    thread.detach();
  }
}

absl::StatusOr<std::unique_ptr<ProcessLog>> ProcessLog::Start(int error_fd,
                                                              int output_fd) {
  RECURVE_ASSIGN_OR_RETURN(File error, File::Open(error_fd, /*is_log=*/true));
  RECURVE_ASSIGN_OR_RETURN(File output,
                           File::Open(output_fd, /*is_log=*/false));
  std::unique_ptr<ProcessLog> log(
      new ProcessLog(std::move(error), std::move(output)));
  MutexLock lock(&current_mu);
  current = log.get();
  return log;
}

ProcessLog::ProcessLog(File error, File output)
    : error_(std::move(error)), output_(std::move(output)) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "recurve", std::make_shared<Sink>(error_.lines)));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
}

ProcessLog::~ProcessLog() {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("none"));
  MutexLock lock(&current_mu);
  current = nullptr;
}

void ProcessLog::Print(std::string line) {
  error_.lines->Flush(kPatience);
  output_.lines->Push(std::move(line) + '\n');
}

void ProcessLog::PrintError(std::string line) {
  error_.lines->Push(std::move(line) + '\n');
}

int64_t DroppedLogLines() { return dropped_lines.load(); }

void FlushProcessLog() {
  MutexLock lock(&current_mu);
  if (current != nullptr) current->Flush(std::chrono::milliseconds(100));
}

bool ProcessLog::Flush(std::chrono::milliseconds patience) {
  const bool error = error_.lines->Flush(patience);
  return output_.lines->Flush(patience) && error;
}

}  // namespace recurve
