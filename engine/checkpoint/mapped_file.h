#ifndef RECURVE_ENGINE_CHECKPOINT_MAPPED_FILE_H_
#define RECURVE_ENGINE_CHECKPOINT_MAPPED_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// A whole file mapped read-only, unmapped by the destructor.
//
// Moving the object does not move the bytes. The file must not shrink while it
// is mapped: the kernel answers a read past the new end with SIGBUS, which
// cannot be turned into an error here. Deployments mount models read-only.
//
// Thread safety: const methods may run concurrently.
class MappedFile {
 public:
  // Refuses empty files and anything but regular files.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }

  // Never empty, except in a moved-from object.
  absl::string_view bytes() const {
    return absl::string_view(static_cast<const char*>(data_), size_);
  }

 private:
  MappedFile(std::string path, void* data, size_t size);

  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;  // bytes
};

// An error if `bytes` are a Git LFS pointer: the file itself was never fetched.
absl::Status CheckNotLfsPointer(const std::string& path,
                                absl::string_view bytes);

// Whether `path` exists. An error if it cannot be examined, and for a symbolic
// link whose target is missing: that is an incomplete copy, not an absent file.
absl::StatusOr<bool> FileExists(const std::string& path);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_MAPPED_FILE_H_
