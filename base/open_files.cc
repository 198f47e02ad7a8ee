#include "base/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace recurve {

absl::Status CheckFiles(absl::string_view what, int count) {
  std::vector<int> files;
  int problem = 0;
  while (problem == 0 && static_cast<int>(files.size()) < count) {
    const int file = open("/", O_PATH | O_CLOEXEC);
    if (file < 0) {
      problem = errno;
    } else {
      files.push_back(file);
    }
  }
  for (const int file : files) close(file);
  if (problem == 0) return absl::OkStatus();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " needs ", count, " more open files and the system gives ",
      files.size(), " (", std::strerror(problem), "); the process may open ",
      limit.rlim_cur, " (ulimit -n)"));
}

}  // namespace recurve
