#include "engine/tokenizer/tokenizer.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/bytes_tokenizer.h"

namespace recurve {
namespace {

using MakeFunction = absl::StatusOr<std::unique_ptr<Tokenizer>> (*)(
    int32_t vocab_size, std::optional<int32_t> bos_id,
    std::optional<int32_t> eos_id);

struct Kind {
  const char* name;
  MakeFunction make;
};

constexpr Kind kKinds[] = {
    {BytesTokenizer::kName, &BytesTokenizer::Make},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(
    absl::string_view kind, int32_t vocab_size, std::optional<int32_t> bos_id,
    std::optional<int32_t> eos_id) {
  std::string supported;
  for (const Kind& row : kKinds) {
    if (kind == row.name) return row.make(vocab_size, bos_id, eos_id);
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer is '", kind, "'; supported: ", supported));
}

}  // namespace recurve
