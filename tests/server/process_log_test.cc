#include "server/telemetry/process_log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::SizeIs;

// As small as the system lets it be, so that few lines fill it.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_GT(fcntl(ends_[1], F_SETPIPE_SZ, 4096), 0);
  }
  ~Pipe() {
    CloseReader();
    CloseWriter();
  }
  int writer() const { return ends_[1]; }
  void CloseReader() { Close(0); }
  void CloseWriter() { Close(1); }

  bool IsFull() const {
    pollfd writable = {ends_[1], POLLOUT, 0};
    return poll(&writable, 1, 0) == 0;
  }

  // What is in it, without waiting for more.
  std::string Read() {
    std::string text;
    char buffer[4096];
    pollfd readable = {ends_[0], POLLIN, 0};
    while (poll(&readable, 1, 0) > 0 && (readable.revents & POLLIN) != 0) {
      const ssize_t count = ::read(ends_[0], buffer, sizeof buffer);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  void Close(int end) {
    if (ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }

  int ends_[2];
};

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST(ProcessLogTest, WritesLinesInTheirOrder) {
  Pipe error;
  Pipe output;
  {
    const auto log = ProcessLog::Start(error.writer(), output.writer());
    ASSERT_TRUE(log.ok()) << log.status();
    spdlog::info("one {}", 1);
    (*log)->PrintError("as it is");
    spdlog::warn("two");
    (*log)->Print("listening");
    // What was logged before it is there when it is.
    EXPECT_THAT(Lines(error.Read()),
                ElementsAre(EndsWith(" info one 1"), "as it is",
                            EndsWith(" warning two")));
    EXPECT_TRUE((*log)->Flush());
    EXPECT_EQ(output.Read(), "listening\n");
    spdlog::info("last");
  }
  EXPECT_THAT(error.Read(), EndsWith(" info last\n"));
}

TEST(ProcessLogTest, AHungReaderHoldsUpNobody) {
  Pipe error;
  Pipe output;
  const int64_t dropped = DroppedLogLines();
  {
    const auto log = ProcessLog::Start(error.writer(), output.writer());
    ASSERT_TRUE(log.ok()) << log.status();
    std::vector<std::thread> threads;
    const std::string text(100, 'x');
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int line = 0; line < 1000; ++line) spdlog::warn("{}", text);
      });
    }
    for (std::thread& thread : threads) thread.join();
    while (!error.IsFull()) std::this_thread::yield();
    EXPECT_FALSE((*log)->Flush(std::chrono::milliseconds(1)));
    const int64_t lost = DroppedLogLines() - dropped;
    EXPECT_GT(lost, 4000 - ProcessLog::kMaxLines - 100);
    // Standard output has a reader.
    (*log)->Print("listening");
    while (output.Read() != "listening\n") std::this_thread::yield();

    // The reader comes back: it is told how many lines are not there.
    std::string read;
    while (!(*log)->Flush(std::chrono::milliseconds(1))) read += error.Read();
    read += error.Read();
    int64_t said = 0;
    int64_t lines = 0;
    for (const std::string& line : Lines(read)) {
      int64_t count = 0;
      if (sscanf(line.c_str(), "recurve-server: %ld lines of this log",
                 &count) == 1) {
        said += count;
      } else {
        EXPECT_THAT(line, EndsWith(absl::StrCat(" warning ", text)));
        ++lines;
      }
    }
    EXPECT_EQ(said, lost);
    EXPECT_EQ(lines, 4000 - lost);
  }
}

TEST(ProcessLogTest, AHungReaderDoesNotHoldTheEnd) {
  Pipe error;
  Pipe output;
  {
    const auto log = ProcessLog::Start(error.writer(), output.writer());
    ASSERT_TRUE(log.ok()) << log.status();
    for (int line = 0; line < 100; ++line) {
      spdlog::warn("{}", std::string(100, 'x'));
    }
    FlushProcessLog();
  }
  while (!error.IsFull()) std::this_thread::yield();
  spdlog::info("after its end");
  // The thread that was left behind ends with its lines.
  const int64_t dropped = DroppedLogLines();
  error.CloseReader();
  while (DroppedLogLines() == dropped) std::this_thread::yield();
}

TEST(ProcessLogTest, CountsLinesThatCannotBeWritten) {
  Pipe output;
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const int64_t dropped = DroppedLogLines();
  {
    const auto log = ProcessLog::Start(full, output.writer());
    ASSERT_TRUE(log.ok()) << log.status();
    for (int line = 0; line < 3; ++line) spdlog::warn("lost");
    EXPECT_TRUE((*log)->Flush());
  }
  EXPECT_EQ(DroppedLogLines() - dropped, 3);
  close(full);
}

TEST(ProcessLogTest, SharesAFileThatDoesNotBlock) {
  Pipe error;
  Pipe output;
  ASSERT_EQ(fcntl(error.writer(), F_SETFL, O_NONBLOCK), 0);
  const auto log = ProcessLog::Start(error.writer(), output.writer());
  ASSERT_TRUE(log.ok()) << log.status();
  for (int line = 0; line < 100; ++line) {
    spdlog::warn("{}", std::string(100, 'x'));
  }
  std::string read;
  while (!(*log)->Flush(std::chrono::milliseconds(1))) read += error.Read();
  read += error.Read();
  EXPECT_THAT(Lines(read), SizeIs(100));
}

}  // namespace
}  // namespace recurve
