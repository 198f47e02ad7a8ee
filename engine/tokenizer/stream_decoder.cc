#include "engine/tokenizer/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace recurve {

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, Options options)
    : tokenizer_(tokenizer),
      stop_strings_(std::move(options.stop_strings)),
      includes_stop_(options.includes_stop),
      special_tokens_(options.special_tokens) {
  // An incomplete character would match inside a complete one and split it.
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
    if (!SpecialText(id).empty()) {
      at_start_ = false;
      return;
    }
    tokenizer_->FirstTokenBytes(id, &at_start_);
  }
}

absl::string_view StreamDecoder::SpecialText(int32_t id) const {
  return special_tokens_ ? tokenizer_->SpecialText(id) : absl::string_view();
}

std::string StreamDecoder::Append(int32_t id, bool may_stop) {
  if (stopped()) return "";
  may_stop_ = may_stop;
  if (tokenizer_->IsByteOfRun(id)) {
    const absl::string_view byte = tokenizer_->TokenBytes(id);
    run_.append(byte.data(), byte.size());
    return "";
  }
  const absl::string_view special = SpecialText(id);
  if (!run_.empty()) {
    if (special.empty() && tokenizer_->TokenBytes(id).empty()) return "";
    EndRun();
  }
  if (!special.empty()) {
    utf8_.Decode(special, &held_);
    at_start_ = false;
    return Release(/*final=*/false);
  }
  utf8_.Decode(at_start_ ? tokenizer_->FirstTokenBytes(id, &at_start_)
                         : tokenizer_->TokenBytes(id),
               &held_);
  return Release(/*final=*/false);
}

std::string StreamDecoder::Flush() {
  if (stopped()) return "";
  EndRun();
  utf8_.Finish(&held_);
  return Release(/*final=*/true);
}

void StreamDecoder::EndRun() {
  if (run_.empty()) return;
  std::string text;
  if (IsValidUtf8(run_)) {
    text = run_;
  } else {
    for (size_t i = 0; i < run_.size(); ++i) AppendCharacter(0xfffd, &text);
  }
  run_.clear();
  utf8_.Decode(at_start_ ? tokenizer_->FirstRun(text) : text, &held_);
  at_start_ = false;
}

const std::string& StreamDecoder::matched_stop_string() const {
  RECURVE_CHECK(stopped());
  return stop_strings_[matched_];
}

size_t StreamDecoder::FindStop() {
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
  for (size_t i = 0; i < stop_strings_.size(); ++i) {
    const size_t size = stop_strings_[i].size();
    const size_t at =
        held_.find(stop_strings_[i], free_ < size ? 0 : free_ + 1 - size);
    if (at == std::string::npos) continue;
    const size_t last = at + size;
    if (last < end || (last == end && at < begin)) {
      begin = at;
      end = last;
      matched_ = static_cast<int>(i);
    }
  }
  return begin;
}

size_t StreamDecoder::FindBeginning() const {
  for (size_t begin = 0; begin < held_.size(); ++begin) {
    const absl::string_view rest = absl::string_view(held_).substr(begin);
    for (const std::string& stop : stop_strings_) {
      // A whole one, which no text could complete, did not count.
      if (rest.size() < stop.size() && absl::StartsWith(stop, rest)) {
        return begin;
      }
    }
  }
  return held_.size();
}

std::string StreamDecoder::Release(bool final) {
  if (!may_stop_) free_ = held_.size();
  if (const size_t stop = FindStop(); stop != std::string::npos) {
    std::string text = held_.substr(
        0, stop + (includes_stop_ ? matched_stop_string().size() : 0));
    held_.clear();
    return text;
  }
  const size_t safe = final ? held_.size() : FindBeginning();
  std::string text = held_.substr(0, safe);
  held_.erase(0, safe);
  free_ -= std::min(free_, safe);
  return text;
}

}  // namespace recurve
