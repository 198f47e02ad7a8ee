#ifndef RECURVE_SERVER_VLLM_MODEL_FILES_H_
#define RECURVE_SERVER_VLLM_MODEL_FILES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace recurve {

// What routers ask about the folder of a checkpoint, and the engine does not
// keep.
struct ModelFiles {
  // As config.json has them; empty or nothing where it says none.
  std::string model_type;
  std::vector<std::string> architectures;
  std::optional<int32_t> pad_token_id;

  // The files of the tokenizer and of the chat template with the configs next
  // to them, as a zip archive, and its SHA-256 in hexadecimal digits. NotFound
  // without a file of a tokenizer.
  struct Archive {
    std::string zip;
    std::string sha256;
  };
  absl::StatusOr<std::shared_ptr<const Archive>> tokenizer;
};

// The largest archive that is made.
inline constexpr int64_t kMaxTokenizerArchiveBytes = int64_t{256} << 20;

// Reads the folder of a checkpoint that was loaded. A file that cannot be read
// is an error of the archive, and a config.json that is no JSON object one that
// names nothing: the checkpoint's loader is to judge it.
ModelFiles ReadModelFiles(const std::string& folder);

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_MODEL_FILES_H_
