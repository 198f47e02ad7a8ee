#include "server/chat/output_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace recurve {
namespace {

constexpr absl::string_view kThink = "<think>";
constexpr absl::string_view kEndThink = "</think>";
constexpr absl::string_view kCallMark = "<tool_call>";
constexpr absl::string_view kEndCall = "</tool_call>";

// The length of the longest end of `text` that is a beginning of `mark`.
size_t PartOfMark(absl::string_view text, absl::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (absl::EndsWith(text, mark.substr(0, size))) return size;
  }
  return 0;
}

size_t TrailingNewlines(absl::string_view text) {
  const size_t last = text.find_last_not_of('\n');
  return text.size() - (last == absl::string_view::npos ? 0 : last + 1);
}

}  // namespace

OutputParser::OutputParser(Options options)
    : options_(std::move(options)),
      state_(!options_.splits_reasoning  ? State::kContent
             : options_.begins_reasoning ? State::kReasoning
                                         : State::kStart),
      skip_newlines_(state_ == State::kReasoning) {}

OutputPart OutputParser::Append(absl::string_view text) {
  OutputPart part;
  absl::StrAppend(&held_, text);
  while (Step(/*last=*/false, &part)) {
  }
  return part;
}

OutputPart OutputParser::Finish() {
  OutputPart part;
  while (Step(/*last=*/true, &part)) {
  }
  return part;
}

bool OutputParser::Step(bool last, OutputPart* part) {
  switch (state_) {
    case State::kStart:
      return StepStart(last);
    case State::kReasoning:
      return StepReasoning(last, part);
    case State::kContent:
      return StepContent(last, part);
    case State::kCall:
      return StepCall(last, part);
  }
  return false;
}

bool OutputParser::StepStart(bool last) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(held_);
  if (absl::StartsWith(text, kThink)) {
    held_ = std::string(text.substr(kThink.size()));
    state_ = State::kReasoning;
    skip_newlines_ = true;
    return true;
  }
  if (!last && absl::StartsWith(kThink, text)) return false;
  state_ = State::kContent;
  return true;
}

bool OutputParser::TakeUntil(absl::string_view mark, bool last,
                             std::string* to) {
  if (skip_newlines_) {
    const size_t text = held_.find_first_not_of('\n');
    held_.erase(0, text);  // all of it, without one
    if (held_.empty()) return false;
    skip_newlines_ = false;
  }
  const size_t place = absl::string_view(held_).find(mark);
  if (place != std::string::npos) {
    const absl::string_view before = absl::string_view(held_).substr(0, place);
    absl::StrAppend(to,
                    before.substr(0, before.size() - TrailingNewlines(before)));
    held_.erase(0, place + mark.size());
    skip_newlines_ = true;
    return true;
  }
  absl::string_view certain = held_;
  if (!last) {
    certain.remove_suffix(PartOfMark(certain, mark));
    certain.remove_suffix(TrailingNewlines(certain));
  }
  absl::StrAppend(to, certain);
  held_.erase(0, certain.size());
  return false;
}

bool OutputParser::StepReasoning(bool last, OutputPart* part) {
  if (!TakeUntil(kEndThink, last, &part->reasoning)) return false;
  state_ = State::kContent;
  return true;
}

void OutputParser::AddContent(absl::string_view text, OutputPart* part) {
  if (found_calls_ && options_.one_call) return;
  absl::StrAppend(&part->content, text);
}

bool OutputParser::StepContent(bool last, OutputPart* part) {
  std::string text;
  if (!options_.reads_tools) {
    if (skip_newlines_) held_.erase(0, held_.find_first_not_of('\n'));
    if (held_.empty()) return false;
    skip_newlines_ = false;
    AddContent(std::exchange(held_, ""), part);
    return false;
  }
  const bool found = TakeUntil(kCallMark, last, &text);
  AddContent(text, part);
  if (found) state_ = State::kCall;
  return found;
}

bool OutputParser::StepCall(bool last, OutputPart* part) {
  const size_t end = absl::string_view(held_).find(kEndCall, searched_);
  if (end == std::string::npos && !last) {
    searched_ = held_.size() - PartOfMark(held_, kEndCall);
    return false;
  }
  searched_ = 0;
  const std::string body = held_.substr(0, end);
  std::optional<ToolCall> call = ParseToolCall(body, options_.schemas);
  if (!call) {
    AddContent(kCallMark, part);
    AddContent(body, part);
    if (end != std::string::npos) AddContent(kEndCall, part);
    skip_newlines_ = false;
  } else if (!found_calls_ || !options_.one_call) {
    part->tool_calls.push_back(*std::move(call));
    found_calls_ = true;
  }
  held_.erase(0, end == std::string::npos ? end : end + kEndCall.size());
  state_ = State::kContent;
  return end != std::string::npos;
}

}  // namespace recurve
