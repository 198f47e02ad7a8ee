#include "server/chat/template_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/chat/render_chat_source.h"

namespace recurve {
namespace {

constexpr std::chrono::seconds kStartSeconds{20};

}  // namespace

absl::StatusOr<std::unique_ptr<TemplateProcess>> TemplateProcess::Start(
    const std::string& python, absl::string_view config) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no socket for a process: ", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
                                   O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Its own group, so that Ctrl-C in a terminal is for the server alone, and no
  // signal is blocked or ignored that the server blocks or ignores.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP |
                                            POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF);
  // -I: neither the environment nor the user's folders change what is imported.
  std::string arguments[] = {python, "-I", "-B", "-c", kRenderChatSource};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                  arguments[3].data(), arguments[4].data(), nullptr};
  char locale[] = "LC_ALL=C.UTF-8";
  char* environment[] = {locale, nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, python.c_str(), &actions, &attributes,
                                 argv, environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  if (error != 0) {
    close(sockets[0]);
    return absl::UnavailableError(
        absl::StrCat(python, " cannot be started: ", std::strerror(error)));
  }
  fcntl(sockets[0], F_SETFL, O_NONBLOCK);
  std::unique_ptr<TemplateProcess> process(
      new TemplateProcess(pid, sockets[0]));
  RECURVE_RETURN_IF_ERROR(
      process->Send(config, std::chrono::steady_clock::now() + kStartSeconds));
  return process;
}

TemplateProcess::~TemplateProcess() {
  kill(pid_, SIGKILL);
  close(socket_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool TemplateProcess::alive() const {
  pollfd entry = {socket_, 0, 0};
  return poll(&entry, 1, 0) == 0;
}

absl::Status TemplateProcess::Wait(
    short events, std::chrono::steady_clock::time_point deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry = {socket_, events, 0};
    const int ready =
        poll(&entry, 1,
             static_cast<int>(std::clamp<int64_t>(
                 left.count(), 0, std::numeric_limits<int>::max())));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) return absl::DeadlineExceededError("no answer in time");
    if (errno != EINTR) return absl::AbortedError(std::strerror(errno));
  }
}

absl::Status TemplateProcess::Send(
    absl::string_view payload, std::chrono::steady_clock::time_point deadline) {
  const auto length = static_cast<uint32_t>(payload.size());
  std::string frame(4, '\0');
  for (int i = 0; i < 4; ++i) {
    frame[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
  }
  absl::StrAppend(&frame, payload);
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t count =
        send(socket_, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      RECURVE_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::AbortedError("the process has ended");
    }
  }
  return absl::OkStatus();
}

absl::Status TemplateProcess::ReceiveAll(
    char* data, size_t size,
    std::chrono::steady_clock::time_point deadline) const {
  for (size_t received = 0; received < size;) {
    const ssize_t count = recv(socket_, data + received, size - received, 0);
    if (count > 0) {
      received += static_cast<size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      RECURVE_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    } else if (count == 0 || errno != EINTR) {
      return absl::AbortedError("the process has ended");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TemplateProcess::Receive(
    size_t max_bytes, std::chrono::steady_clock::time_point deadline) {
  unsigned char head[4];
  RECURVE_RETURN_IF_ERROR(
      ReceiveAll(reinterpret_cast<char*>(head), sizeof(head), deadline));
  uint32_t length = 0;
  for (int i = 3; i >= 0; --i) length = length << 8 | head[i];
  if (length > max_bytes) {
    return absl::AbortedError(absl::StrCat("the process sends ", length,
                                           " bytes; at most ", max_bytes));
  }
  std::string payload(length, '\0');
  RECURVE_RETURN_IF_ERROR(ReceiveAll(payload.data(), length, deadline));
  return payload;
}

}  // namespace recurve
