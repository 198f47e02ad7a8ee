#ifndef RECURVE_ENGINE_TOKENIZER_NORMALIZER_H_
#define RECURVE_ENGINE_TOKENIZER_NORMALIZER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace recurve {

// Rewrites a text before it is split into words: the steps of a
// tokenizer.json's normalizer, in order. An empty text stays empty. Time and
// memory are linear in the size of the text, if the strings of the steps are
// short.
//
// Thread safety: immutable, so any thread may call.
class Normalizer {
 public:
  struct Step {
    enum class Kind {
      kNfc,      // Unicode's composed form
      kPrepend,  // puts `to` before a text that is not empty
      kReplace,  // writes `to` for each `from`
    };
    Kind kind = Kind::kNfc;
    std::string from;  // not empty for kReplace
    std::string to;
  };

  Normalizer() = default;  // changes nothing
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }

  std::string Normalize(absl::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_NORMALIZER_H_
