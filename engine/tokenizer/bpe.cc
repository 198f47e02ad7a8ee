#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace recurve {

Bpe::Bpe(Vocabulary vocabulary, std::optional<Merges> merges, Options options)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      options_(options) {
  byte_ids_.fill(-1);
  for (const auto& [bytes, id] : vocabulary_) {
    longest_ = std::max(longest_, bytes.size());
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
  }
  // An unk_id may replace any number of bytes that the vocabulary lacks.
  const bool has_unknown = options_.unk_id.has_value() &&
                           std::any_of(byte_ids_.begin(), byte_ids_.end(),
                                       [](int32_t id) { return id < 0; });
  max_bytes_per_id_ = has_unknown ? std::numeric_limits<size_t>::max()
                                  : std::max<size_t>(1, longest_);
}

absl::Status Bpe::Split(absl::string_view word,
                        std::vector<Part>* parts) const {
  for (size_t i = 0; i < word.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(word[i]);
    int32_t id = byte_ids_[byte];
    if (id < 0) {
      if (!options_.unk_id.has_value()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the tokenizer has no token for the byte 0x%02x", byte));
      }
      id = *options_.unk_id;
      if (options_.fuse_unk && i > 0 &&
          byte_ids_[static_cast<uint8_t>(word[i - 1])] < 0) {
        ++parts->back().size;
        continue;
      }
    }
    const auto index = static_cast<int32_t>(parts->size());
    parts->push_back({id, static_cast<uint32_t>(i), 1, index - 1, index + 1});
  }
  parts->back().next = -1;
  return absl::OkStatus();
}

std::optional<Bpe::Merge> Bpe::FindMerge(absl::string_view word,
                                         const Part& left,
                                         const Part& right) const {
  if (merges_.has_value()) {
    const auto found = merges_->find(PairKey(left.id, right.id));
    if (found == merges_->end()) return std::nullopt;
    return found->second;
  }
  const size_t size = size_t{left.size} + right.size;
  if (size > longest_) return std::nullopt;
  const auto found = vocabulary_.find(word.substr(left.begin, size));
  if (found == vocabulary_.end()) return std::nullopt;
  return Merge{found->second, found->second};
}

absl::Status Bpe::Encode(absl::string_view word,
                         std::vector<int32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  if (options_.ignore_merges) {
    const auto found = vocabulary_.find(word);
    if (found != vocabulary_.end()) {
      ids->push_back(found->second);
      return absl::OkStatus();
    }
  }
  std::vector<Part> parts;
  parts.reserve(word.size());
  RECURVE_RETURN_IF_ERROR(Split(word, &parts));
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || parts[left].next < 0) return;
    const Part& right = parts[parts[left].next];
    const std::optional<Merge> merge = FindMerge(word, parts[left], right);
    if (merge.has_value()) {
      queue.push({merge->rank, left, parts[left].id, right.id, merge->id});
    }
  };
  for (size_t i = 0; i < parts.size(); ++i) consider(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Part& left = parts[best.left];
    if (left.size == 0 || left.id != best.left_id || left.next < 0) continue;
    Part& right = parts[left.next];
    if (right.id != best.right_id) continue;
    left.id = best.id;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) parts[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Part& part : parts) {
    if (part.size > 0) ids->push_back(part.id);
  }
  return absl::OkStatus();
}

}  // namespace recurve
