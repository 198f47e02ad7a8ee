#include "base/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(OpenFilesTest, NamesTheLimit) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // The lowest number that is free: those below it are open.
  const int next = open("/", O_PATH | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(next) + 5;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const absl::Status all = CheckFiles("it", 5);
  const absl::Status again = CheckFiles("it", 5);
  const absl::Status none = CheckFiles("it", 6);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(all, absl::OkStatus());
  EXPECT_EQ(again, absl::OkStatus());  // they were given back
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(none.message(),
            absl::StrCat("it needs 6 more open files and the system gives 5 "
                         "(Too many open files); the process may open ",
                         next + 5, " (ulimit -n)"));
}

}  // namespace
}  // namespace recurve
