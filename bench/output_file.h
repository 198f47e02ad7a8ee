// Files of results. Header only.
#ifndef RECURVE_BENCH_OUTPUT_FILE_H_
#define RECURVE_BENCH_OUTPUT_FILE_H_

#include <cstdio>
#include <string>

namespace recurve {
namespace bench {

// Whether a file can be written at `path`: to be asked before minutes of
// measuring. What is there stays; an empty file comes where there was none.
inline bool IsWritable(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  return file != nullptr && std::fclose(file) == 0;
}

// Closes it. False if not all of it could be written.
inline bool CloseWritten(std::FILE* file) {
  const bool good = std::ferror(file) == 0;
  return std::fclose(file) == 0 && good;
}

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_OUTPUT_FILE_H_
