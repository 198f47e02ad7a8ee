#include "engine/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/pattern_translator.h"
#include "engine/tokenizer/symbols.h"

namespace recurve {
namespace {

pcre2_code* Code(void* code) { return static_cast<pcre2_code*>(code); }

std::string Pcre2Message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
  }
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// The interpreter's heap limit, even if just-in-time compilation is available:
// a text must not be refused on some machines only.
constexpr uint32_t kHeapKiB = 512 << 10;

// pcre2_match(), from `at`. Each repetition of a group uses some of the
// compiled code's stack, which is small. The interpreter uses the heap: some
// 300 bytes per repetition.
int Match(const pcre2_code* code, PCRE2_SPTR subject, size_t size, size_t at,
          pcre2_match_data* match, pcre2_match_context* context) {
  const int result =
      pcre2_match(code, subject, size, at, PCRE2_NOTEMPTY, match, context);
  if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
  return pcre2_match(code, subject, size, at, PCRE2_NOTEMPTY | PCRE2_NO_JIT,
                     match, context);
}

}  // namespace

const absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void SplitPattern::FreeCode::operator()(void* code) const {
  pcre2_code_free(Code(code));
}

absl::StatusOr<SplitPattern> SplitPattern::Make(absl::string_view pattern) {
  RECURVE_ASSIGN_OR_RETURN(const std::string translated,
                           TranslatePattern(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  SplitPattern split(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      /*options=*/0, &error, &offset, nullptr));
  if (split.code_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is ", Quote(pattern), ", which PCRE2 refuses: ", Pcre2Message(error)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(Code(split.code_.get()), PCRE2_INFO_MATCHEMPTY,
                     &matches_empty);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", Quote(pattern),
                     ", which matches an empty text; expected a "
                     "pattern that takes a character at least"));
  }
  // Without a just-in-time compiler, matching is slower.
  pcre2_jit_compile(Code(split.code_.get()), PCRE2_JIT_COMPLETE);
  return split;
}

absl::Status SplitPattern::Split(absl::string_view text,
                                 std::vector<absl::string_view>* pieces,
                                 size_t max_pieces, bool matches_only) const {
  const SymbolText symbols = ToSymbols(text);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(symbols.symbols.data());
  const size_t size = symbols.symbols.size();
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(
      pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(
      pcre2_match_context_create(nullptr));
  if (match == nullptr || context == nullptr)
    return absl::ResourceExhaustedError("out of memory");
  pcre2_set_heap_limit(context.get(), kHeapKiB);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  const auto add = [&](size_t begin, size_t end) {
    begin = symbols.Start(begin);
    end = symbols.Start(end);
    if (end > begin) pieces->push_back(text.substr(begin, end - begin));
  };
  size_t at = 0;
  while (at < size) {
    const int result =
        Match(Code(code_.get()), subject, size, at, match.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tokenizer's pattern cannot split this text: ",
                       Pcre2Message(result)));
    }
    if (!matches_only) add(at, range[0]);
    add(range[0], range[1]);
    at = range[1];
    if (pieces->size() > max_pieces) return absl::OkStatus();
  }
  if (!matches_only) add(at, size);
  return absl::OkStatus();
}

}  // namespace recurve
