#include "tests/fuzz/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace recurve {
namespace {

// Destroyed when the process exits in order; a crash leaves the folder behind.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const std::string parent = std::filesystem::temp_directory_path().string();
    path_ = absl::StrCat(parent, "/recurve_fuzz_XXXXXX");
    RECURVE_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

MemoryFile::MemoryFile(absl::string_view content, int64_t zeros)
    : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  RECURVE_CHECK(fd_ >= 0);
  while (!content.empty()) {
    const ssize_t written = write(fd_, content.data(), content.size());
    RECURVE_CHECK(written > 0);
    content.remove_prefix(static_cast<size_t>(written));
  }
  RECURVE_CHECK(ftruncate(fd_, lseek(fd_, 0, SEEK_CUR) + zeros) == 0);
  path_ = absl::StrCat("/proc/self/fd/", fd_);
}

MemoryFile::~MemoryFile() { close(fd_); }

const std::string& ScratchFolder() {
  static const TemporaryFolder folder;
  return folder.path();
}

void Link(const std::string& name, const std::string& target) {
  const std::string path = absl::StrCat(ScratchFolder(), "/", name);
  unlink(path.c_str());
  if (target.empty()) return;
  RECURVE_CHECK(symlink(target.c_str(), path.c_str()) == 0);
}

}  // namespace recurve
