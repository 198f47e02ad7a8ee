#include "engine/tokenizer/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace recurve {

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer,
                             std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {
  // Half a character would match inside a whole one and cut it.
  stop_strings_.erase(std::remove_if(stop_strings_.begin(), stop_strings_.end(),
                                     [](const std::string& stop) {
                                       return stop.empty() ||
                                              !IsValidUtf8(stop);
                                     }),
                      stop_strings_.end());
}

void StreamDecoder::SkipBefore(absl::Span<const int32_t> ids) {
  for (int32_t id : ids) {
    if (!at_start_) return;
    tokenizer_->FirstTokenBytes(id, &at_start_);
  }
}

std::string StreamDecoder::Append(int32_t id) {
  if (stopped()) return "";
  utf8_.Decode(at_start_ ? tokenizer_->FirstTokenBytes(id, &at_start_)
                         : tokenizer_->TokenBytes(id),
               &held_);
  return Release(/*final=*/false);
}

std::string StreamDecoder::Flush() {
  if (stopped()) return "";
  utf8_.Finish(&held_);
  return Release(/*final=*/true);
}

const std::string& StreamDecoder::matched_stop_string() const {
  RECURVE_CHECK(stopped());
  return stop_strings_[matched_];
}

int StreamDecoder::MatchAt(size_t begin, bool* may_begin) const {
  const absl::string_view rest = absl::string_view(held_).substr(begin);
  int best = -1;
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const std::string& stop = stop_strings_[i];
    if (absl::StartsWith(rest, stop)) {
      if (best < 0 || stop.size() < stop_strings_[best].size()) {
        best = static_cast<int>(i);
      }
    } else if (absl::StartsWith(stop, rest)) {
      *may_begin = true;
    }
  }
  return best;
}

std::string StreamDecoder::Release(bool final) {
  size_t safe = 0;  // bytes of held_ that no stop string reaches
  for (; safe < held_.size(); ++safe) {
    bool may_begin = false;
    matched_ = MatchAt(safe, &may_begin);
    if (stopped() || (may_begin && !final)) break;
  }
  std::string text = held_.substr(0, safe);
  if (stopped()) {
    held_.clear();
  } else {
    held_.erase(0, safe);
  }
  return text;
}

}  // namespace recurve
