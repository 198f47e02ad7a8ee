#include "engine/tokenizer/bytes_tokenizer.h"

#include <array>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr int32_t kNumBytes = 256;

// Every byte once, so that a token's text is a view of one of them.
constexpr std::array<char, kNumBytes> kBytes = [] {
  std::array<char, kNumBytes> bytes{};
  for (int i = 0; i < kNumBytes; ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

absl::Status CheckSpecial(absl::string_view name, std::optional<int32_t> id,
                          int32_t vocab_size) {
  if (!id.has_value() || (*id >= kNumBytes && *id < vocab_size)) {
    return absl::OkStatus();
  }
  if (vocab_size == kNumBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", *id,
        "; a bytes vocabulary of 256 tokens has no special tokens"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", *id, "; expected ", kNumBytes, " to ",
                   vocab_size - 1, " with the bytes tokenizer"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BytesTokenizer::Make(
    int32_t vocab_size, std::optional<int32_t> bos_id,
    std::optional<int32_t> eos_id, const Names& names) {
  if (vocab_size < kNumBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        names.vocab_size, " is ", vocab_size, "; expected at least ", kNumBytes,
        " with the bytes tokenizer"));
  }
  RECURVE_RETURN_IF_ERROR(CheckSpecial(names.bos_id, bos_id, vocab_size));
  RECURVE_RETURN_IF_ERROR(CheckSpecial(names.eos_id, eos_id, vocab_size));
  return absl::WrapUnique<Tokenizer>(new BytesTokenizer(vocab_size, bos_id));
}

absl::StatusOr<std::vector<int32_t>> BytesTokenizer::Encode(
    absl::string_view text, bool add_bos, int64_t max_ids) const {
  const int64_t count = static_cast<int64_t>(text.size()) + (add_bos ? 1 : 0);
  if (count > max_ids) {
    return absl::OutOfRangeError(absl::StrCat("has ", count, " tokens"));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() + 1);
  if (add_bos) {
    if (!bos_id().has_value()) {
      return absl::InvalidArgumentError(
          "the model has no beginning-of-sequence token to add");
    }
    ids.push_back(*bos_id());
  }
  for (char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  return ids;
}

absl::string_view BytesTokenizer::TokenBytes(int32_t id) const {
  RECURVE_CHECK(id >= 0 && id < vocab_size());
  if (id >= kNumBytes) return "";
  return absl::string_view(&kBytes[id], 1);
}

}  // namespace recurve
