#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

// Characters of valid text; of other text, at most its bytes.
size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// The size of the character with which a text begins; an invalid byte is one.
size_t CharacterSize(absl::string_view text) {
  char32_t code = 0;
  return std::max<size_t>(1, DecodeCharacter(text, &code));
}

// Where the last character of a valid text begins.
size_t LastCharacter(absl::string_view text) {
  size_t at = text.empty() ? 0 : text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace

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
  const auto is_missing = [](int32_t id) { return id < 0; };
  const auto& last_resort =
      options_.fallback_ids.has_value() ? *options_.fallback_ids : byte_ids_;
  const bool has_unknown =
      options_.unk_id.has_value() &&
      ((options_.characters && !options_.fallback_ids.has_value()) ||
       std::any_of(last_resort.begin(), last_resort.end(), is_missing));
  if (options_.characters && merges_.has_value()) joints_ = FindJoints();
  max_bytes_per_id_ = has_unknown ? std::numeric_limits<size_t>::max()
                                  : std::max<size_t>(1, longest_);
}

std::optional<Bpe::Joints> Bpe::FindJoints() const {
  // The texts of tokens do not tell whether they consist of these.
  absl::flat_hash_set<int32_t> others;
  if (options_.unk_id.has_value()) others.insert(*options_.unk_id);
  if (options_.fallback_ids.has_value()) {
    others.insert(options_.fallback_ids->begin(), options_.fallback_ids->end());
  }
  absl::flat_hash_map<int32_t, absl::string_view> texts;
  for (const auto& [text, id] : vocabulary_) texts[id] = text;
  Joints joints;
  for (const auto& [key, merge] : *merges_) {
    const auto left = static_cast<int32_t>(key >> 32);
    const auto right = static_cast<int32_t>(key & 0xffffffff);
    if (others.contains(left) || others.contains(right)) return std::nullopt;
    const absl::string_view before = texts[left];
    const absl::string_view after = texts[right];
    // -1 if the character is no token: then nothing makes `left` or `right`.
    joints.insert(PairKey(FindUnit(before.substr(LastCharacter(before))),
                          FindUnit(after.substr(0, CharacterSize(after)))));
  }
  return joints;
}

int32_t Bpe::FindUnit(absl::string_view unit) const {
  if (unit.size() == 1) return byte_ids_[static_cast<uint8_t>(unit[0])];
  const auto found = vocabulary_.find(unit);
  return found == vocabulary_.end() ? -1 : found->second;
}

bool Bpe::FallsBack(absl::string_view unit) const {
  return options_.fallback_ids.has_value() &&
         std::all_of(unit.begin(), unit.end(), [this](char c) {
           return (*options_.fallback_ids)[static_cast<uint8_t>(c)] >= 0;
         });
}

absl::Status Bpe::Split(absl::string_view word,
                        std::vector<Part>* parts) const {
  const auto add = [&](int32_t id, size_t begin, size_t size) {
    const auto index = static_cast<int32_t>(parts->size());
    parts->push_back({id, static_cast<uint32_t>(begin),
                      static_cast<uint32_t>(size), index - 1, index + 1});
  };
  // Unknown text that is not a part yet. As in the reference, it becomes one
  // when more of it or a token follows, and the ids of single bytes do not
  // count.
  size_t unknown = 0;
  size_t unknown_begin = 0;
  const auto end_unknown = [&] {
    if (unknown > 0) add(*options_.unk_id, unknown_begin, unknown);
    unknown = 0;
  };
  size_t size = 1;
  for (size_t i = 0; i < word.size(); i += size) {
    if (options_.characters) size = CharacterSize(word.substr(i));
    const absl::string_view unit = word.substr(i, size);
    const int32_t id = FindUnit(unit);
    if (id >= 0) {
      end_unknown();
      add(id, i, size);
    } else if (FallsBack(unit)) {
      for (size_t j = i; j < i + size; ++j) {
        add((*options_.fallback_ids)[static_cast<uint8_t>(word[j])], j, 1);
      }
    } else if (options_.unk_id.has_value()) {
      if (!options_.fuse_unk) end_unknown();
      if (unknown == 0) unknown_begin = i;
      unknown += size;
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the tokenizer has no token for the %s",
          size == 1
              ? absl::StrFormat("byte 0x%02x", static_cast<uint8_t>(unit[0]))
              : absl::StrCat("character ", Quote(unit))));
    }
  }
  end_unknown();
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

void Bpe::MergeParts(absl::string_view word, size_t begin, size_t end,
                     std::vector<Part>* all) const {
  std::vector<Part>& parts = *all;
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || parts[left].next < 0) return;
    const Part& right = parts[parts[left].next];
    const std::optional<Merge> merge = FindMerge(word, parts[left], right);
    if (merge.has_value()) {
      queue.push({merge->rank, left, parts[left].id, right.id, merge->id});
    }
  };
  for (size_t i = begin; i < end; ++i) consider(static_cast<int32_t>(i));
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
  parts.reserve(options_.characters ? CountCharacters(word) : word.size());
  RECURVE_RETURN_IF_ERROR(Split(word, &parts));
  size_t begin = 0;
  for (size_t i = 1; i <= parts.size(); ++i) {
    if (i < parts.size()) {
      if (!joints_.has_value() ||
          joints_->contains(PairKey(parts[i - 1].id, parts[i].id))) {
        continue;
      }
      parts[i - 1].next = -1;
      parts[i].previous = -1;
    }
    if (i > begin + 1) MergeParts(word, begin, i, &parts);
    begin = i;
  }
  for (const Part& part : parts) {
    if (part.size > 0) ids->push_back(part.id);
  }
  return absl::OkStatus();
}

}  // namespace recurve
