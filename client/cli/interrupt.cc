#include "client/cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kNumSignals = 3;
constexpr char kInterrupted = 'i';
constexpr char kStop = 's';

// The pipe to the watcher; -1 if there is none. The only state that a handler
// may access.
std::atomic<int> g_write_end{-1};
std::atomic<bool> g_hung_up{false};
struct sigaction g_former[kNumSignals];

void WriteByte(int fd, char byte) {
  // The pipe's capacity far exceeds what is ever written to it.
  while (write(fd, &byte, 1) < 0 && errno == EINTR) {
  }
}

void OnSignal(int number) {
  const int saved_errno = errno;
  if (number == SIGHUP) g_hung_up.store(true);
  const int fd = g_write_end.load();
  if (fd >= 0) WriteByte(fd, kInterrupted);
  errno = saved_errno;
}

}  // namespace

Interrupt::Interrupt(std::function<void()> on_interrupt)
    : on_interrupt_(std::move(on_interrupt)) {
  RECURVE_CHECK(g_write_end.load() == -1);
  int ends[2];
  RECURVE_CHECK(pipe(ends) == 0);
  read_end_ = ends[0];
  write_end_ = ends[1];
  g_hung_up.store(false);
  g_write_end.store(write_end_);
  watcher_ = std::thread([this] { Watch(); });
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < kNumSignals; ++i) {
    const bool hangup = kSignals[i] == SIGHUP;
    sigaction(kSignals[i], nullptr, &g_former[i]);
    if (hangup && g_former[i].sa_handler == SIG_IGN) continue;
    // SA_RESETHAND: a second signal of a kind meets the default action.
    action.sa_flags =
        SA_RESTART | (hangup ? 0 : static_cast<int>(SA_RESETHAND));
    sigaction(kSignals[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  for (int i = 0; i < kNumSignals; ++i) {
    const bool keep_ignoring = kSignals[i] == SIGHUP && g_hung_up.load();
    sigaction(kSignals[i], keep_ignoring ? &ignored : &g_former[i], nullptr);
  }
  g_write_end.store(-1);
  WriteByte(write_end_, kStop);
  watcher_.join();
  close(read_end_);
  close(write_end_);
}

void Interrupt::Watch() {
  bool called = false;
  char byte = 0;
  for (;;) {
    const ssize_t count = read(read_end_, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count != 1 || byte == kStop) return;
    if (!called) on_interrupt_();
    called = true;
  }
}

}  // namespace recurve
