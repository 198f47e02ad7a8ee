#ifndef RECURVE_SERVER_VLLM_ZIP_ARCHIVE_H_
#define RECURVE_SERVER_VLLM_ZIP_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace recurve {

// A zip archive of files, stored uncompressed, with equal bytes for equal
// files: all are dated 1980-01-01. REQUIRES: at most 65,535 files, whose names
// have at most 65,535 bytes, and fewer than 4 GiB in all, which is what the
// format has without its extensions.
std::string ZipOf(
    const std::vector<std::pair<std::string, std::string>>& files);

// The checksum that zip has for each file: CRC-32 as in IEEE 802.3.
uint32_t Crc32(absl::string_view bytes);

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_ZIP_ARCHIVE_H_
