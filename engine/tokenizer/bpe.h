#ifndef RECURVE_ENGINE_TOKENIZER_BPE_H_
#define RECURVE_ENGINE_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Byte-pair encoding of one word. Starts from single bytes or characters and
// merges the pair of the lowest rank, the leftmost of equals, until no pair has
// one. Time n log n in the length of the word, which may be a whole text.
//
// Thread safety: the const methods may run concurrently.
class Bpe {
 public:
  struct Merge {
    int32_t rank = 0;
    int32_t id = 0;  // of the merged token
  };
  using Vocabulary = absl::flat_hash_map<std::string, int32_t>;  // from bytes
  using Merges = absl::flat_hash_map<uint64_t, Merge>;           // by PairKey()

  struct Options {
    // A word that is a token is encoded as that token, whatever the merges say.
    bool ignore_merges = false;
    // Start from characters; a byte that is not part of one counts as one.
    bool characters = false;
    // For a character that the vocabulary lacks: the ids of its bytes, -1 for a
    // byte without one. It is unknown if it has such a byte, or without this.
    std::optional<std::array<int32_t, 256>> fallback_ids;
    // Replaces a byte or character that is unknown; without it such a text is
    // an error.
    std::optional<int32_t> unk_id;
    bool fuse_unk = false;  // one unk_id for a run of unknown ones
  };

  static uint64_t PairKey(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 |
           static_cast<uint32_t>(right);
  }

  // Without `merges` any two adjacent parts that form a token may merge, and
  // the rank is the id of that token, as in tiktoken.
  Bpe(Vocabulary vocabulary, std::optional<Merges> merges, Options options);

  // Appends the ids of `word`. InvalidArgument for what is unknown. REQUIRES:
  // less than 2 GiB.
  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const;

  // A word of n bytes has at least n / max_bytes_per_id() ids.
  size_t max_bytes_per_id() const { return max_bytes_per_id_; }

 private:
  // A part of the word; size 0 after it was merged into its left neighbour.
  struct Part {
    int32_t id;
    uint32_t begin, size;    // bytes of the word
    int32_t previous, next;  // index, or -1
  };
  // Ordered so that the candidate to merge first is the largest.
  struct Candidate {
    int32_t rank;
    int32_t left;               // index of a part
    int32_t left_id, right_id;  // stale if the parts are other tokens now
    int32_t id;                 // of the merged token
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  using Joints = absl::flat_hash_set<uint64_t>;

  // The parts of `word` before any merge.
  absl::Status Split(absl::string_view word, std::vector<Part>* parts) const;
  // Merges the parts from `begin` to before `end`, of `all` parts.
  void MergeParts(absl::string_view word, size_t begin, size_t end,
                  std::vector<Part>* all) const;
  // The pairs of characters that stand next to each other in a token, as
  // PairKey(); nullopt if others may merge, too.
  std::optional<Joints> FindJoints() const;
  // The token that `unit`, a byte or a character, is; -1 if it is none.
  int32_t FindUnit(absl::string_view unit) const;
  // Whether all bytes of `unit` have ids of their own.
  bool FallsBack(absl::string_view unit) const;
  std::optional<Merge> FindMerge(absl::string_view word, const Part& left,
                                 const Part& right) const;

  Vocabulary vocabulary_;
  std::optional<Merges> merges_;
  Options options_;
  size_t longest_ = 0;  // bytes of the longest token
  size_t max_bytes_per_id_ = 0;
  std::array<int32_t, 256> byte_ids_;  // -1: not in the vocabulary
  // If set, no merge joins a pair of parts that is not among them, so a word,
  // which may be a whole text, is merged in short runs: heaps of a few parts
  // are several times as fast as one of millions.
  std::optional<Joints> joints_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_BPE_H_
