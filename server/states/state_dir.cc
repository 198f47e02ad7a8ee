#include "server/states/state_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr absl::string_view kStateSuffix = ".state";
constexpr absl::string_view kTemporarySuffix = ".tmp";
constexpr absl::string_view kLockName = "lock";
constexpr size_t kIdDigits = 32;

bool IsStateId(absl::string_view id) {
  return id.size() == kIdDigits &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c)) &&
                  !absl::ascii_isupper(static_cast<unsigned char>(c));
         });
}

absl::Status CheckStateId(absl::string_view id) {
  if (IsStateId(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the id of a state is \"", absl::CHexEscape(id.substr(0, 64)),
      "\"; allowed are 32 of the digits 0-9 and a-f"));
}

// Repeats a system call that a signal interrupts.
template <typename Call>
auto WithoutSignals(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Closes a descriptor that has nothing to write.
class FileCloser {
 public:
  explicit FileCloser(int fd) : fd_(fd) {}
  ~FileCloser() { close(fd_); }
  FileCloser(const FileCloser&) = delete;
  FileCloser& operator=(const FileCloser&) = delete;

 private:
  const int fd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(std::string path) {
  const auto unusable = [&path](int code) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder of states ", path,
                     " cannot be used: ", std::strerror(code)));
  };
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return unusable(errno);
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return unusable(errno);
  std::unique_ptr<StateDir> dir(new StateDir(std::move(path), fd));
  if (made) RECURVE_RETURN_IF_ERROR(dir->SyncParent());
  RECURVE_RETURN_IF_ERROR(dir->Lock());
  RECURVE_RETURN_IF_ERROR(dir->CheckWritable());
  RECURVE_RETURN_IF_ERROR(dir->RemoveTemporaries());
  return dir;
}

StateDir::~StateDir() {
  if (lock_fd_ >= 0) close(lock_fd_);
  close(dir_fd_);
}

absl::Status StateDir::Failed(absl::string_view name, absl::string_view what,
                              int code) const {
  const std::string message =
      absl::StrCat(path_, name.empty() ? "" : "/", name, " ", what, ": ",
                   std::strerror(code));
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status StateDir::Lock() {
  lock_fd_ = openat(dir_fd_, kLockName.data(),
                    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) return NoFileCanBeMade(errno);
  if (WithoutSignals([this] { return flock(lock_fd_, LOCK_EX | LOCK_NB); }) ==
      0) {
    return absl::OkStatus();
  }
  const int code = errno;
  return absl::FailedPreconditionError(absl::StrCat(
      "the folder of states ", path_,
      code == EWOULDBLOCK
          ? " is in use by another server"
          : absl::StrCat(" cannot be locked: ", std::strerror(code))));
}

absl::Status StateDir::NoFileCanBeMade(int code) const {
  return absl::FailedPreconditionError(
      absl::StrCat("no file can be made in the folder of states ", path_, ": ",
                   std::strerror(code)));
}

// The lock may be there from before the folder was made read-only.
absl::Status StateDir::CheckWritable() const {
  const char* const name = "probe.tmp";
  const int fd =
      openat(dir_fd_, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd >= 0) close(fd);
  if (fd >= 0 && unlinkat(dir_fd_, name, 0) == 0) return absl::OkStatus();
  return NoFileCanBeMade(errno);
}

absl::Status StateDir::RemoveTemporaries() const {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                           Names(kTemporarySuffix));
  for (const std::string& id : ids) {
    const std::string name = absl::StrCat(id, kTemporarySuffix);
    if (unlinkat(dir_fd_, name.c_str(), 0) != 0) {
      return Failed(name, "cannot be removed", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> StateDir::Names(
    absl::string_view suffix) const {
  // Not a copy of dir_fd_: copies share their place in the folder.
  const int fd = openat(dir_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const folder = fd < 0 ? nullptr : fdopendir(fd);
  if (folder == nullptr) {
    const int code = errno;
    if (fd >= 0) close(fd);
    return Failed("", "cannot be read", code);
  }
  std::vector<std::string> ids;
  errno = 0;
  while (const dirent* const entry = readdir(folder)) {
    absl::string_view name = entry->d_name;
    if (absl::ConsumeSuffix(&name, suffix) && IsStateId(name)) {
      ids.emplace_back(name);
    }
    errno = 0;
  }
  const int code = errno;
  closedir(folder);
  if (code != 0) return Failed("", "cannot be read", code);
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::StatusOr<std::vector<std::string>> StateDir::List() const {
  return Names(kStateSuffix);
}

absl::Status StateDir::Write(absl::string_view id, StateWriter& writer) {
  RECURVE_RETURN_IF_ERROR(CheckStateId(id));
  const std::string temporary = absl::StrCat(id, kTemporarySuffix);
  const std::string name = absl::StrCat(id, kStateSuffix);
  absl::Status status = WriteFile(temporary, writer);
  if (status.ok() &&
      renameat(dir_fd_, temporary.c_str(), dir_fd_, name.c_str()) != 0) {
    status = Failed(temporary, "cannot be renamed", errno);
  }
  if (!status.ok()) {
    unlinkat(dir_fd_, temporary.c_str(), 0);
    return status;
  }
  return Sync();
}

absl::Status StateDir::WriteFile(const std::string& name,
                                 StateWriter& writer) const {
  const int fd =
      openat(dir_fd_, name.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed(name, "cannot be made", errno);
  int code = 0;
  while (code == 0 && !writer.done()) {
    const std::string piece = writer.Next();
    absl::string_view rest = piece;
    while (code == 0 && !rest.empty()) {
      const ssize_t written =
          WithoutSignals([&] { return write(fd, rest.data(), rest.size()); });
      if (written < 0) {
        code = errno;
      } else {
        rest.remove_prefix(static_cast<size_t>(written));
      }
    }
  }
  if (code == 0 && WithoutSignals([fd] { return fsync(fd); }) != 0) {
    code = errno;
  }
  // Never closed twice: Linux closes it even if a signal interrupts.
  if (close(fd) != 0 && code == 0 && errno != EINTR) code = errno;
  return code == 0 ? absl::OkStatus() : Failed(name, "cannot be written", code);
}

absl::Status StateDir::Sync() const {
  if (WithoutSignals([this] { return fsync(dir_fd_); }) == 0) {
    return absl::OkStatus();
  }
  return Failed("", "cannot be synced to the disk", errno);
}

// A folder just made is to survive a power failure with its files.
absl::Status StateDir::SyncParent() const {
  const int fd = openat(dir_fd_, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("..", "cannot be opened", errno);
  const FileCloser closer(fd);
  if (WithoutSignals([fd] { return fsync(fd); }) == 0) return absl::OkStatus();
  return Failed("..", "cannot be synced to the disk", errno);
}

absl::Status StateDir::Remove(absl::string_view id) {
  RECURVE_RETURN_IF_ERROR(CheckStateId(id));
  const std::string name = absl::StrCat(id, kStateSuffix);
  if (unlinkat(dir_fd_, name.c_str(), 0) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return Failed(name, "cannot be removed", errno);
  }
  return Sync();
}

absl::Status StateDir::Read(absl::string_view id, StateReader& reader) const {
  RECURVE_RETURN_IF_ERROR(CheckStateId(id));
  const std::string name = absl::StrCat(id, kStateSuffix);
  const int fd = openat(dir_fd_, name.c_str(),
                        O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return Failed(name, "cannot be opened", errno);
  const FileCloser closer(fd);
  std::string piece(StateWriter::kPieceBytes, '\0');
  absl::Status status;
  while (status.ok()) {
    const ssize_t size =
        WithoutSignals([&] { return read(fd, piece.data(), piece.size()); });
    if (size < 0) return Failed(name, "cannot be read", errno);
    if (size == 0) {
      status = reader.Finish();
      break;
    }
    status = reader.Append(
        absl::string_view(piece.data(), static_cast<size_t>(size)));
  }
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(path_, "/", name, ": ", status.message()));
}

}  // namespace recurve
