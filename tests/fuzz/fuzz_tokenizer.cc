// Input: a tokenizer.json, and after a line "---" a text to encode with it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int32_t kVocabSize = 512;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts =
      absl::StrSplit(input, absl::MaxSplits("\n---\n", 1));
  const auto tokenizer =
      recurve::ReadTokenizerJson("tokenizer.json", parts[0], kVocabSize);
  if (!tokenizer.ok() || parts.size() < 2) return 0;
  RECURVE_CHECK((*tokenizer)->vocab_size() == kVocabSize);
  for (const bool add_bos : {false, true}) {
    const auto ids = (*tokenizer)->Encode(parts[1], add_bos);
    if (!ids.ok()) continue;
    const auto count = static_cast<int64_t>(ids->size());
    const auto all = (*tokenizer)->Encode(parts[1], add_bos, count);
    RECURVE_CHECK(all.ok() && *all == *ids);
    if (count > 0) {
      RECURVE_CHECK(absl::IsOutOfRange(
          (*tokenizer)->Encode(parts[1], add_bos, count - 1).status()));
    }
    recurve::StreamDecoder decoder(tokenizer->get(), {});
    for (const int32_t id : *ids) {
      RECURVE_CHECK(id >= 0 && id < kVocabSize);
      RECURVE_CHECK(recurve::IsValidUtf8(decoder.Append(id)));
    }
    RECURVE_CHECK(recurve::IsValidUtf8(decoder.Flush()));
  }
  return 0;
}
