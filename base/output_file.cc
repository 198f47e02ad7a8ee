#include "base/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace recurve {

bool IsPipeOrDevice(const std::string& path) {
  std::error_code ignored;
  switch (std::filesystem::status(path, ignored).type()) {
    case std::filesystem::file_type::fifo:
    case std::filesystem::file_type::character:
    case std::filesystem::file_type::block:
    case std::filesystem::file_type::socket:
      return true;
    default:
      return false;
  }
}

std::string WhyNotWritable(const std::string& path) {
  if (IsPipeOrDevice(path)) return "";
  std::error_code ignored;
  const bool is_new = std::filesystem::status(path, ignored).type() ==
                      std::filesystem::file_type::not_found;
  std::FILE* const file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return std::strerror(errno);
  std::fclose(file);
  if (is_new) {
    // A dangling link stays; the file created is at its target.
    std::filesystem::remove(std::filesystem::canonical(path, ignored), ignored);
  }
  return "";
}

bool CloseWritten(std::FILE* file) {
  const bool good = std::ferror(file) == 0;
  return std::fclose(file) == 0 && good;
}

}  // namespace recurve
