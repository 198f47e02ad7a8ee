#include "engine/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace recurve {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer. No effect on
  // regular files.
  const FileDescriptor fd(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a regular file"));
  }
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  if (static_cast<uint64_t>(info.st_size) >
      std::numeric_limits<size_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds ", info.st_size,
                     " bytes, more than this machine can address"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  }
  return MappedFile(path, data, size);
}

MappedFile::MappedFile(std::string path, void* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  // The destructor of `other` unmaps the old mapping.
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

absl::Status CheckNotLfsPointer(const std::string& path,
                                absl::string_view bytes) {
  if (!absl::StartsWith(bytes, "version https://git-lfs")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   " is a Git LFS pointer and not the file itself; fetch it "
                   "with git lfs pull"));
}

absl::StatusOr<bool> FileExists(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status link =
      std::filesystem::symlink_status(path, error);
  if (link.type() == std::filesystem::file_type::not_found) return false;
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot look for ", path));
  }
  const bool exists = std::filesystem::exists(path, error);
  if (!exists && std::filesystem::is_symlink(link)) {
    std::error_code ignored;
    return absl::NotFoundError(
        absl::StrCat(path, " is a symbolic link to ",
                     std::filesystem::read_symlink(path, ignored).string(),
                     ", which is not there"));
  }
  return exists;
}

}  // namespace recurve
