// Files of results. Header only.
#ifndef RECURVE_BENCH_OUTPUT_FILE_H_
#define RECURVE_BENCH_OUTPUT_FILE_H_

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

namespace recurve {
namespace bench {

// Whether a file can be written at `path`: to be asked before minutes of
// measuring. What is there stays as it is.
// Pipes and devices are taken on trust: a pipe's reader would see an end.
inline bool IsWritable(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::fifo ||
      type == std::filesystem::file_type::character) {
    return true;
  }
  std::FILE* const file = std::fopen(path.c_str(), "a");
  const bool writable = file != nullptr && std::fclose(file) == 0;
  if (writable && type == std::filesystem::file_type::not_found) {
    std::filesystem::remove(std::filesystem::canonical(path, ignored), ignored);
  }
  return writable;
}

// Closes it. False if not all of it could be written.
inline bool CloseWritten(std::FILE* file) {
  const bool good = std::ferror(file) == 0;
  return std::fclose(file) == 0 && good;
}

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_OUTPUT_FILE_H_
