#include "engine/tokenizer/sentencepiece_encoder.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {
namespace {

using Parts = std::vector<SentencePiecePart>;
using Type = SentencePieceModel::Type;

// Bytes of the first character of `text`, a normalised text: UTF-8, unless a
// malformed charsmap produced something else.
size_t CharacterSize(absl::string_view text) {
  char32_t code = 0;
  return std::max<size_t>(1, DecodeCharacter(text, &code));
}

class BpeEncoder {
 public:
  BpeEncoder(const SentencePieceModel& model, absl::string_view text)
      : model_(model), text_(text) {}

  Parts Encode() {
    Split();
    for (size_t i = 0; i < symbols_.size(); ++i) {
      Consider(static_cast<int32_t>(i));
    }
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[best.left];
      if (left.text.empty() || left.next < 0) continue;
      Symbol& right = symbols_[left.next];
      if (left.text.size() + right.text.size() != best.size) continue;
      left.text = Joined(left, right);
      left.next = right.next;
      right.text = "";
      if (left.next >= 0) symbols_[left.next].previous = best.left;
      Consider(left.previous);
      Consider(best.left);
    }
    Parts parts;
    for (const Symbol& symbol : symbols_) {
      if (!symbol.text.empty()) TakeApart(symbol.text, &parts);
    }
    return parts;
  }

 private:
  struct Symbol {
    absl::string_view text;  // empty after it was merged into its left
                             // neighbour
    int32_t previous, next;  // index, or -1
    bool frozen;             // a user-defined piece is never merged
  };
  struct Candidate {
    float score;
    int32_t left;  // index of a symbol
    size_t size;   // of both together; stale if the size has changed
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  absl::string_view Joined(const Symbol& left, const Symbol& right) const {
    return text_.substr(left.text.data() - text_.data(),
                        left.text.size() + right.text.size());
  }

  int32_t Find(absl::string_view text) const {
    const auto found = model_.words.find(text);
    return found == model_.words.end() ? -1 : found->second;
  }

  void Split() {
    for (absl::string_view rest = text_; !rest.empty();) {
      int32_t id = 0;
      size_t size = model_.user_defined.LongestPrefix(rest, &id);
      const bool frozen = size > 0;
      if (!frozen) size = CharacterSize(rest);
      const auto index = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({rest.substr(0, size), index - 1, index + 1, frozen});
      rest.remove_prefix(size);
    }
    if (!symbols_.empty()) symbols_.back().next = -1;
  }

  // The pair that begins at `left`, if it is a piece.
  void Consider(int32_t left) {
    if (left < 0 || symbols_[left].next < 0) return;
    const Symbol& first = symbols_[left];
    const Symbol& second = symbols_[first.next];
    if (first.frozen || second.frozen) return;
    const absl::string_view joined = Joined(first, second);
    const int32_t id = Find(joined);
    if (id < 0) return;
    queue_.push({model_.pieces[id].score, left, joined.size()});
    if (model_.pieces[id].type == Type::kUnused) {
      halves_[joined] = {first.text, second.text};
    }
  }

  // Appends the piece of `text`, or, if it is unused, those of its halves. An
  // unused piece of one character has no halves and so is unknown, as in the
  // library since 0.2.3.
  void TakeApart(absl::string_view text, Parts* parts) const {
    std::vector<absl::string_view> left_to_do = {text};
    while (!left_to_do.empty()) {
      const absl::string_view part = left_to_do.back();
      left_to_do.pop_back();
      const int32_t id = Find(part);
      const bool unused = id >= 0 && model_.pieces[id].type == Type::kUnused;
      const auto halves = halves_.find(part);
      if (unused && halves != halves_.end()) {
        left_to_do.push_back(halves->second.second);
        left_to_do.push_back(halves->second.first);
      } else {
        parts->push_back({part, id < 0 || unused ? model_.unk_id : id});
      }
    }
  }

  const SentencePieceModel& model_;
  const absl::string_view text_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
  absl::flat_hash_map<absl::string_view,
                      std::pair<absl::string_view, absl::string_view>>
      halves_;  // of unused pieces
};

// The last part of the best segmentation of the text up to some byte.
struct Node {
  int32_t id = -1;
  float score = 0;         // of the whole segmentation
  int64_t starts_at = -1;  // byte where the part begins; -1: none yet
};

class UnigramEncoder {
 public:
  UnigramEncoder(const SentencePieceModel& model, absl::string_view text)
      : model_(model), text_(text), ends_at_(text.size() + 1) {
    constexpr float kUnknownPenalty = 10;
    float min_score = std::numeric_limits<float>::max();
    for (const SentencePieceModel::Piece& piece : model.pieces) {
      if (piece.type == Type::kNormal) {
        min_score = std::min(min_score, piece.score);
      }
    }
    unknown_score_ = min_score - kUnknownPenalty;
  }

  Parts Encode() {
    for (size_t begin = 0; begin < text_.size();) {
      const size_t character = CharacterSize(text_.substr(begin));
      KeepScoresSmall(begin);
      if (!TryPieces(begin, character)) {
        Improve(begin, begin + character, model_.unk_id, unknown_score_);
      }
      begin += character;
    }
    Parts parts;
    for (size_t end = text_.size(); end > 0;) {
      const auto begin = static_cast<size_t>(ends_at_[end].starts_at);
      parts.push_back({text_.substr(begin, end - begin), ends_at_[end].id});
      end = begin;
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

 private:
  // Tries every piece that begins here. Returns whether the first character
  // alone is one.
  bool TryPieces(size_t begin, size_t character) {
    bool known = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text_.size();) {
      if (!model_.word_prefixes.Walk(&node, text_[end++])) break;
      const int32_t id = model_.word_prefixes.Value(node);
      if (id == ByteTrie::kNone) continue;
      const SentencePieceModel::Piece& piece = model_.pieces[id];
      if (piece.type == Type::kUnused) continue;
      // Other scores are negative: a user-defined piece wins.
      const size_t length = end - begin;
      Improve(begin, end, id,
              piece.type == Type::kUserDefined
                  ? static_cast<float>(0.1 * static_cast<double>(length - 1))
                  : piece.score);
      known |= length == character;
    }
    return known;
  }

  void Improve(size_t begin, size_t end, int32_t id, float score) {
    reached_ = std::max(reached_, end);
    score += ends_at_[begin].score;
    Node& node = ends_at_[end];
    if (node.starts_at >= 0 && !(score > node.score)) return;
    node = {id, score, static_cast<int64_t>(begin)};
  }

  // Sums over long texts would lose the deciding digits. Only differences
  // matter, so the sum up to here is rebased to zero.
  void KeepScoresSmall(size_t begin) {
    constexpr float kLimit = 100000;
    const float score = ends_at_[begin].score;
    if (score >= -kLimit && score <= kLimit) return;
    for (size_t i = begin; i <= reached_; ++i) ends_at_[i].score -= score;
  }

  const SentencePieceModel& model_;
  const absl::string_view text_;
  float unknown_score_ = 0;
  std::vector<Node> ends_at_;  // indexed by byte of text_
  size_t reached_ = 0;         // the last byte where a part ends
};

}  // namespace

Parts EncodeSentencePieceBpe(const SentencePieceModel& model,
                             absl::string_view normalized) {
  return BpeEncoder(model, normalized).Encode();
}

Parts EncodeSentencePieceUnigram(const SentencePieceModel& model,
                                 absl::string_view normalized) {
  return UnigramEncoder(model, normalized).Encode();
}

size_t KnownSentencePieceBytes(const SentencePieceModel& model,
                               absl::string_view normalized) {
  size_t bytes = 0;
  for (absl::string_view rest = normalized; !rest.empty();) {
    const size_t size = CharacterSize(rest);
    const auto found = model.words.find(rest.substr(0, size));
    if (found != model.words.end() &&
        model.pieces[found->second].type != Type::kUnused) {
      bytes += size;
    }
    rest.remove_prefix(size);
  }
  return bytes;
}

}  // namespace recurve
