#ifndef RECURVE_TESTS_FUZZ_SCRATCH_H_
#define RECURVE_TESTS_FUZZ_SCRATCH_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace recurve {

// A file in memory that the code under test opens by its path. Ends the process
// if the system refuses it: a fuzzer that tests nothing must not look busy.
class MemoryFile {
 public:
  // `content` followed by `zeros` zero bytes, which take no memory until read.
  explicit MemoryFile(absl::string_view content, int64_t zeros = 0);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

// The folder that this process writes into, removed when it exits.
const std::string& ScratchFolder();

// Makes `name` in the scratch folder a link to the file at `target`, replacing
// any previous one; an empty target only removes it.
void Link(const std::string& name, const std::string& target);

}  // namespace recurve

#endif  // RECURVE_TESTS_FUZZ_SCRATCH_H_
