#ifndef RECURVE_SERVER_CHAT_TEMPLATE_PROCESS_H_
#define RECURVE_SERVER_CHAT_TEMPLATE_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// One process of Python that runs render_chat.py, which says what goes to and
// fro and what the process may do.
//
// Thread safety: one thread at a time.
class TemplateProcess {
 public:
  // Starts `python`, a path or a name in PATH, and sends the configuration;
  // does not wait for it. Unavailable if there is no such program.
  static absl::StatusOr<std::unique_ptr<TemplateProcess>> Start(
      const std::string& python, absl::string_view config);
  // Kills the process, which takes no time.
  ~TemplateProcess();
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  absl::Status Send(absl::string_view payload,
                    std::chrono::steady_clock::time_point deadline);
  // The next frame's payload. DeadlineExceeded; Aborted if the process has
  // ended, or its frame is longer than `max_bytes`. After an error of this or
  // Send nothing more can be called.
  absl::StatusOr<std::string> Receive(
      size_t max_bytes, std::chrono::steady_clock::time_point deadline);

  // False: it has ended, and nothing can be sent.
  bool alive() const;
  pid_t pid() const { return pid_; }

 private:
  TemplateProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}
  absl::Status Wait(short events,
                    std::chrono::steady_clock::time_point deadline) const;
  absl::Status ReceiveAll(char* data, size_t size,
                          std::chrono::steady_clock::time_point deadline) const;

  const pid_t pid_;
  const int socket_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_CHAT_TEMPLATE_PROCESS_H_
